"""Fusion + co-location + MILP: the strongest white-box baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any

import highspy
import numpy as np
from annotated_types import Ge, Le, MinLen

from agents.hybrid.fusion import FusedStages
from agents.partition.dp import ContiguousDP
from agents.placement.baselines import ContiguousSplit, SingleDevice, SpeedShares
from agents.placement.integer_program.order import OrderFormulation
from agents.placement.integer_program.refinement import Refinement, compile_kernels
from agents.placement.integer_program.rounds import (
    ROUND_NODES,
    Formulation,
    Rounds,
    assign,
)
from agents.placement.list_planners import Heft, MSct
from agents.placement.local_search import LocalSearch
from agents.solver import Budget, Result
from agents.step.grouping import GroupedProblem
from agents.step.incumbent import StepIncumbent, StepSolver
from agents.step.problems import HybridPlanner, Planner, StepPlanning
from envs.arrays import IntArray
from envs.bounds import bounded
from envs.errors import InputError
from envs.hybrid.problem import HybridProblem
from envs.step.problem import StepProblem

_ROUNDS = 40  # into which the budget is divided
_LEAST_ROUND = 0.25  # seconds
_COARSE = 0.3  # share of the budget for the model of all groups
_FEW = 8  # devices of the first model where there are more
_WORTH = 1.15  # times the best step time: a solution of the MILP that is refined
_REFINED = 2  # solutions of one round that are refined, at most
_KICK_NODES = 10  # what a kick counts for, at least, in the deterministic limit
_START, _START_SECONDS = 0.05, 0.5  # share of the budget for each of the starts, at least seconds
_MOVES = 100  # proposed moves of the polish that count for one node in the deterministic limit
_FULL, _TIGHT_SHARE = 0.85, 0.8  # a device used so far: memory binds, and polish has this share
_VAIN = 200  # kicks in a row that bring nothing, after which the search ends


# Planners whose plans are starts, by name.
STARTS: Mapping[str, Planner] = MappingProxyType({
    "single_device": SingleDevice(), "contiguous": ContiguousSplit(),
    "contiguous_speed": ContiguousSplit(shares=SpeedShares()), "dp": ContiguousDP(),
    "heft": Heft(), "m_sct": MSct(),
})  # fmt: skip


@bounded
class FusionMilp(StepSolver):
    """Fuses the graph, decides by MILP (HiGHS) and fuses anew around what it decided.

    0. *Starts.* The plans of quick planners are offered first, so that the result is never slower
       than theirs. The best of them descend (2), and HiGHS starts from the best placement.
    1. *Coarse.* The graph is fused to few groups, and `Rounds` of a MILP and the simulator place
       them; then to more groups, as `coarse` says. A stage ends when HiGHS has closed the gap of a
       model that the simulator has nothing left to teach, or when its share of the budget is used.
    2. *Refined.* The promising solutions of each round descend through finer groupings, as
       `levels` says, each fused around the placement found so far: `Refinement.descend`.
    3. *Neighbourhoods.* When the coarse models are done, a MILP over a part of the groups, or a few
       random moves, lead away from the best plan, and it descends again (`Refinement.kick`).
    4. *Polished.* From a share of the budget on, `polish` changes the placement and the order of
       single operators, starting from the best plan, until the budget ends or the plan reaches
       the lower bound. Where memory binds, its share is larger: what fits then hangs on the order.

    Placements are priced in the best of the orders that the problem allows, live activations
    included. While no plan fits, the bytes that overflow are what the descents make smaller, and
    kicks lead away from the placement that comes nearest.

    A model grows with the square of the number of devices and is slow to give a solution where
    there are many. With more than eight a coarse stage therefore begins with the first eight, in
    `GroupedProblem.device_order`, and doubles their number. A grouping with a group that fits no
    device is skipped. If all that ends without any plan, `AssignmentModel`, which knows no
    transfers, makes one within a few seconds, of more groups if need be.

    The plan returned is the fastest in simulation. Groups contain whole co-location groups.

    `Result.reason` states what HiGHS proved of the last coarse model: with
    `OrderFormulation` no placement of these groups on these devices, in any order, is faster on the
    fused graph.
    `Result.bound` holds for all plans of the problem.

    Guarantees:
        Never slower than the plans of `starts`; the bound of the last coarse model, stated in
        `reason`.

    Source:
        Own work. Cuts that a simulator teaches a MILP are logic-based Benders decomposition:
        Hooker, Ottosson, "Logic-based Benders decomposition", Mathematical Programming 96, 2003.

    Args:
        coarse: groups of the coarse models, one after the other.
        levels: groups of the refined ones. Empty: no moves priced by the simulator, nothing but the
            coarse models and MILPs over parts of their groups.
        formulation: makes the models.
        starts: planners whose plans are offered first, by name; None: HiGHS starts cold.
        polish: changes single operators of the best plan; or None.
        polish_share: of the budget, for `polish`, within 0..1.
        hybrid: the same for layers in stages that are replicated and sharded; None: not planned.
        seed: of HiGHS and of what is drawn at random.
    """

    solves = (StepPlanning, HybridProblem)

    def __init__(
        self,
        *,
        coarse: Annotated[Sequence[int], MinLen(1)] = (8, 12),
        levels: Sequence[int] = (16, 24, 32, 48, 64, 128, 256, 512),
        formulation: Formulation = OrderFormulation(gap=0.02, at_once=8),
        starts: Mapping[str, Planner] | None = STARTS,
        polish: LocalSearch | None = LocalSearch(),
        polish_share: Annotated[float, Ge(0.0), Le(1.0)] = 0.5,
        hybrid: HybridPlanner | None = FusedStages(),
        seed: int = 0,
    ) -> None:
        self.starts = tuple((starts or {}).values())
        self.polish = polish
        self.polish_share = polish_share
        self.hybrid = hybrid
        self.coarse = tuple(coarse)
        self.levels = tuple(levels)
        self.formulation = formulation
        self.seed = seed

    def compile(self, problem: StepProblem) -> None:
        compile_kernels(problem)

    def _plan(self, incumbent: StepIncumbent, budget: Budget) -> str:
        """`Budget.evaluations` counts branch-and-bound nodes."""
        budget_s, nodes = budget.seconds, budget.evaluations
        refinement = Refinement(
            incumbent, levels=self.levels, kick_groups=self.coarse[-1],
            formulation=self.formulation, seed=self.seed,
        )  # fmt: skip
        starts = self._offer_starts(incumbent, budget_s)
        share = self.polish_share if self.polish is not None else 0.0
        if share > 0.0 and _binds(incumbent):
            share = max(share, _TIGHT_SHARE)
        until = incumbent.seconds + (1.0 - share) * max(budget_s - incumbent.seconds, 0.0)
        limit = nodes and max(round((1.0 - share) * nodes), 1)
        reason = self._decide(_Search(incumbent, refinement, until, limit), starts)
        judged = 0
        if self.polish is not None and not incumbent.optimal:
            limit = nodes and max(round(share * nodes), 1) * _MOVES
            judged = self.polish.improve(incumbent, Budget(budget_s, limit))
        incumbent.evaluations += refinement.simulations + judged
        return reason

    def solve(
        self, problem: StepPlanning | HybridProblem, budget: Budget, start: Sequence[Any] = ()
    ) -> Result[Any]:
        """As `StepSolver.solve`; by `hybrid` where it is a pipeline that is asked for.

        Raises:
            InputError: there is no `hybrid`.
        """
        if isinstance(problem, StepPlanning):
            return super().solve(problem, budget, start)
        if self.hybrid is None:
            raise InputError("plans no pipelines without it", file="FusionMilp", field="hybrid")
        return self.hybrid.solve(problem, budget, start)

    def _offer_starts(self, incumbent: StepIncumbent, budget_s: float) -> list[IntArray]:
        """(N,) placements of the plans of `starts`, which are offered, the best first."""
        found: list[tuple[float, IntArray]] = []
        for start in self.starts:
            share = max(_START * budget_s, min(_START_SECONDS, budget_s))
            result = start.solve(StepPlanning(incumbent.problem), Budget(share))
            if result.solution is not None:
                incumbent.offer_plan(result.solution)
                found.append((result.value, result.solution.placement.device))
        return [device for _, device in sorted(found, key=lambda start: start[0])]

    def _decide(self, search: _Search, starts: Sequence[IntArray]) -> str:
        """Everything but the polish; what HiGHS proved.

        `starts` are placements (N,), the best first; HiGHS starts from it.
        """
        incumbent, refinement, budget_s = search.incumbent, search.refinement, search.budget_s
        hint = starts[0] if starts else None
        for device in starts[:_REFINED] if self.levels else ():
            if search.has_time(_COARSE):
                refinement.descend(device, budget_s)
        reason = ""
        for stage, groups in enumerate(self.coarse):
            grouped = GroupedProblem.of(incumbent.problem, groups)
            share = (stage + 1) / len(self.coarse)
            sets = [] if grouped.too_large else _device_sets(grouped)
            for number, devices in enumerate(sets):
                if not search.has_time(_COARSE if incumbent.plan is not None else 1.0):
                    break
                rounds = Rounds(incumbent, grouped, devices, self.formulation, self.seed, hint)
                search.coarse(rounds, _COARSE * share * (number + 1) / len(sets))
                reason = rounds.summary or reason
        if incumbent.plan is None:
            reason = self._assign(incumbent, refinement, budget_s) or reason
        search.neighbourhoods()
        return reason

    def _assign(self, incumbent: StepIncumbent, refinement: Refinement, budget_s: float) -> str:
        """Assignments of ever more groups until one fits, or the groups are as fine as they get.

        The last one descends. Returns why the last ones could not be assigned, or nothing.
        """
        groups = self.coarse[-1]
        while True:
            grouped = GroupedProblem.of(incumbent.problem, groups)
            if not grouped.too_large:
                placed = assign(incumbent, grouped, self.seed)
                if placed is not None:
                    refinement.descend(placed, budget_s)
                if incumbent.plan is not None or incumbent.seconds >= budget_s:
                    return ""
            if grouped.num_groups < groups:
                return grouped.too_large
            groups *= 2


class _Search:
    """Shares the budget out: to the coarse models and their refinement, then neighbourhoods."""

    def __init__(
        self,
        incumbent: StepIncumbent,
        refinement: Refinement,
        budget_s: float,
        node_limit: int | None,
    ) -> None:
        self.incumbent = incumbent
        self.refinement = refinement
        self.budget_s = budget_s
        self.node_limit = node_limit
        self.nodes = 0
        self.begun = incumbent.seconds

    def coarse(self, rounds: Rounds, share: float) -> None:
        """Rounds until `share` of the budget is used; until all of it while there is no plan."""
        slice_s = max(self.budget_s / _ROUNDS, _LEAST_ROUND)
        while not rounds.finished and self.has_time(
            share if rounds.seen or self.incumbent.plan is not None else 1.0
        ):
            self._solve(rounds, slice_s)
            if not rounds.seen:
                slice_s *= 2.0
            for over, seconds, device in sorted(rounds.found, key=lambda found: found[:2])[
                :_REFINED
            ]:
                worth = not over or self.incumbent.plan is None
                if worth and seconds <= _WORTH * self.incumbent.step_time and self.has_time(1.0):
                    self.refinement.descend(device, self.budget_s)

    def neighbourhoods(self) -> None:
        """Kicks until the budget is used, nothing helps, or the plan is proved to be the best."""
        vain = 0
        while self.has_time(1.0) and vain < _VAIN:
            before = self.incumbent.step_time
            nodes = self.refinement.kick(self.budget_s, self._node_limit())
            self.nodes += max(nodes, _KICK_NODES)
            gained = self.incumbent.plan is None or self.incumbent.step_time < before
            vain = 0 if gained else vain + 1

    def has_time(self, share: float) -> bool:
        """Whether this share of the budget is not yet used."""
        if self.incumbent.optimal:
            return False
        if self.node_limit is not None and self.nodes >= share * self.node_limit:
            return False
        part = share if self.node_limit is None else 1.0
        return self.incumbent.seconds < self.begun + part * (self.budget_s - self.begun)

    def _solve(self, rounds: Rounds, slice_s: float) -> None:
        left = self.budget_s - self.incumbent.seconds
        limit = left if self.node_limit is not None else min(slice_s, left)
        self.nodes += max(rounds.solve(limit, self._node_limit()), 1)

    def _node_limit(self) -> int:
        if self.node_limit is None:
            return int(highspy.kHighsIInf)
        return min(self.node_limit - self.nodes, ROUND_NODES)


def _binds(incumbent: StepIncumbent) -> bool:
    """Whether the best plan nearly fills a device, or none is known."""
    plan, problem = incumbent.plan, incumbent.problem
    if plan is None:
        return True
    peak = incumbent.simulator.run(plan.placement.device, plan.order).peak_memory
    return bool((peak > _FULL * problem.capacity).any())


def _device_sets(grouped: GroupedProblem) -> list[IntArray]:
    """Devices of one model after the other; the last has all."""
    count = grouped.problem.topology.num_devices
    order = grouped.device_order()
    size, stages = _FEW, []
    while size < count:
        few = grouped.on_devices(order[:size])
        if not few.too_large and few.state.sum() <= few.problem.capacity.sum():
            stages.append(order[:size])
        size *= 2
    return [*stages, np.arange(count)]
