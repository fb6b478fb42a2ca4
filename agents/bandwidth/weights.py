"""Weights by which transfers share the network, alone and with the placement; no link is idle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Gt, Lt

from agents.bandwidth.shared_placement import SharedPlacement
from agents.placement.fusion_milp import FusionMilp
from agents.solver import Budget, Result
from agents.step.incumbent import Incumbent
from agents.step.lower_bound import lower_bound, why_no_plan
from agents.step.problems import (
    JointPlanning,
    Planner,
    SharedPlanning,
    StepPlanning,
)
from envs.arrays import FloatArray, IntArray
from envs.bounds import Count, bounded
from envs.step.allocated import allocated_problem, uniform_allocation
from envs.step.fair import Fair, FairSimulator
from envs.step.plans import MOST_WEIGHT, PairWeights, Plan
from envs.step.problem import StepProblem

USUAL = 64  # the weight that a search begins with: a factor of 64 from either limit
FACTORS = (4.0, 0.25, 2.0, 0.5)  # by which a weight changes, tried in this order


def _equal(step: StepProblem) -> IntArray:
    return np.full((step.topology.num_devices,) * 2, USUAL)


def weights_of(plan: Plan, step: StepProblem) -> IntArray:
    """(D, D) weights of a plan; equal where it has none."""
    given = plan.allocation
    return given.weight.copy() if isinstance(given, PairWeights) else _equal(step)


class _WeighedIncumbent(Incumbent):
    """The fastest plan with the weights that it is played at; `bound` in seconds is proved."""

    def __init__(self, step: StepProblem, bound: float) -> None:
        super().__init__(bound)
        self.step = step

    def offer(self, plan: Plan, simulator: FairSimulator, weight: IntArray) -> float:
        """Play a plan at weights, keep both if they are the best so far; its seconds."""
        self.evaluations += 1
        simulator.weigh(weight)
        seconds = simulator.step_time(plan.placement.device, plan.order)
        made = replace(plan, allocation=PairWeights(weight.copy()))
        self.take(seconds, lambda: made, lambda plan: plan.violations(self.step, simulator))
        return seconds

    def result(self, reason: str = "") -> Result[Plan]:
        """As `Incumbent.result`; pairs that send nothing have the least weight."""
        if self.plan is not None:
            device, edges = self.plan.placement.device, self.step.graph.edges
            weight = np.ones_like(weights_of(self.plan, self.step))
            ends = device[edges[:, 0]], device[edges[:, 1]]
            weight[ends] = weights_of(self.plan, self.step)[ends]
            self.plan = replace(self.plan, allocation=PairWeights(weight))
        return super().result(reason)


@bounded
@dataclass(frozen=True, eq=False, kw_only=True)
class WeightDescent:
    """Coordinate descent on the weights of the pairs of devices that send.

    It begins with the best of equal weights, which are fair sharing, and of weights by the bytes
    that a pair sends, or by their root. The weight of one pair is multiplied by
    each of four factors, and what makes the step faster is kept, until no pair gains any more. Then
    several weights change at random and it descends again, until the budget ends or `patience`
    descents in a row bring nothing.

    Guarantees:
        Never slower than the plan under fair sharing.

    Source:
        Own work; the rates are those of weighted max-min fairness (Bertsekas, Gallager, "Data
        Networks", 1992, section 6.5.2).

    Args:
        patience: descents.
        seed: of what is drawn at random.
    """

    patience: Count = 10
    seed: int = 0

    def improve(
        self, step: StepProblem, plan: Plan, budget: Budget, bound: float = 0.0
    ) -> Result[Plan]:
        """The plan with the best weights found, from those it has.

        `Budget.evaluations` counts simulations; `bound` are seconds proved for every plan.
        """
        incumbent = _WeighedIncumbent(step, bound)
        incumbent.impossible = "; ".join(plan.placement.violations(step))
        if incumbent.impossible:
            return incumbent.result()
        simulator = FairSimulator(step, multipath=True)
        sent = _bytes(step, plan)
        pairs = np.argwhere(sent > 0.0)
        known = _equal(step), weights_of(plan, step)
        for weight in (*known, *map(_scaled, (sent, np.sqrt(sent)))):
            incumbent.offer(plan, simulator, weight)
        rng, vain = np.random.default_rng(self.seed), 0
        weight = weights_of(incumbent.plan or plan, step)
        while (
            len(pairs) > 1
            and vain < self.patience
            and not budget.spent(incumbent.seconds, incumbent.evaluations)
        ):
            before = incumbent.step_time
            self._descend(incumbent, simulator, plan, weight, rng.permutation(pairs), budget)
            vain = 0 if incumbent.step_time < before else vain + 1
            weight = weights_of(incumbent.plan or plan, step)
            for i, j in rng.choice(pairs, 1 + len(pairs) // 4, replace=False):
                weight[i, j] = _times(weight[i, j], float(rng.choice(FACTORS)))
        return incumbent.result()

    def _descend(
        self,
        incumbent: _WeighedIncumbent,
        simulator: FairSimulator,
        plan: Plan,
        weight: IntArray,
        pairs: IntArray,
        budget: Budget,
    ) -> None:
        """Change `weight`, one pair after another, while that helps."""
        seconds, gained = incumbent.offer(plan, simulator, weight), True
        while gained:
            gained = False
            for i, j in pairs:
                known = weight[i, j]
                for factor in FACTORS:
                    if budget.spent(incumbent.seconds, incumbent.evaluations):
                        return
                    weight[i, j] = _times(known, factor)
                    found = incumbent.offer(plan, simulator, weight)
                    if found < seconds * (1.0 - 1e-12):
                        seconds, gained = found, True
                        break
                    weight[i, j] = known


def _bytes(step: StepProblem, plan: Plan) -> FloatArray:
    """(D, D) bytes that a plan sends from each device to each other one; an empty tensor is 1."""
    device, graph = plan.placement.device, step.graph
    source, target, tensor = graph.edges.T
    sends = np.unique(np.array([device[source], device[target], tensor]), axis=1)
    sends = sends[:, sends[0] != sends[1]]
    found = np.zeros((step.topology.num_devices,) * 2)
    np.add.at(found, (sends[0], sends[1]), np.maximum(graph.tensor_bytes[sends[2]], 1.0))
    return found


def _scaled(share: FloatArray) -> IntArray:
    """(D, D) weights in proportion to `share`, as far as whole numbers are."""
    most = share.max(initial=0.0) or 1.0
    found: IntArray = np.maximum(np.rint(share / most * MOST_WEIGHT), 1.0).astype(np.int64)
    return found


def _times(weight: int, factor: float) -> int:
    return int(np.clip(round(weight * factor), 1, MOST_WEIGHT))


Inside = Annotated[float, Gt(0.0), Lt(1.0)]


@bounded
@dataclass(frozen=True, eq=False, kw_only=True)
class JointMilp:
    """Decides placement and order by fusion + MILP and search, and the weights of transfers.

    1. *Placement.* `placement` plans for one port per device, and for uniform static shares.
    2. *Sharing.* `sharing` goes on from these plans, its moves priced under fair sharing.
    3. *Weights.* `weights` gives the best plan its weights, and `sharing` searches on at these, in
       turns, until the budget ends or `patience` turns in a row bring nothing.

    Nothing is reserved, so nothing is left idle: fair sharing is one point of what is searched, and
    the plan of the second stage is where the third begins. `Result.figures` has its seconds,
    `fair_sharing_s`.

    Guarantees:
        Never slower than the plan that is found under fair sharing in the same run, or one of those
        it starts from under fair sharing.

    Source:
        Own work.

    Args:
        placement: plans for ports and for pipes.
        placement_share: of the budget, for both.
        sharing: improves plans under fair and weighted sharing.
        sharing_share: of the budget, for fair sharing alone.
        weights: finds the weights of a plan; None: fair sharing to the end.
        turn_share: of the budget, for weights and for sharing in each turn.
        patience: turns in a row that bring nothing, after which the search ends.
    """

    solves: ClassVar = (JointPlanning,)

    placement: Planner = FusionMilp()
    placement_share: Inside = 0.4
    sharing: SharedPlacement = field(default_factory=SharedPlacement)
    sharing_share: Inside = 0.3
    weights: WeightDescent | None = field(default_factory=WeightDescent)
    turn_share: Inside = 0.05
    patience: Count = 3

    def solve(
        self, problem: JointPlanning, budget: Budget, start: Sequence[Plan] = ()
    ) -> Result[Plan]:
        """As `agents.solver.Solver.solve`.

        `Budget.evaluations` counts the branch-and-bound nodes of `placement`, the kicks of
        `sharing` and the simulations of `weights`, each by itself.

        Raises:
            InputError: the topology has no bandwidth between some servers.
        """
        step = problem.step
        best = _WeighedIncumbent(step, np.inf)
        best.impossible = why_no_plan(step)
        if best.impossible:
            return best.result()
        best.lower_bound = lower_bound(step).seconds
        simulator = FairSimulator(step, multipath=True)

        def within(share: float) -> Budget:
            left = budget.seconds - best.seconds
            return replace(budget, seconds=max(min(share * budget.seconds, left), 0.0))

        def shared(plans: Sequence[Plan], weight: IntArray, share: float, seed: int) -> None:
            asked = SharedPlanning(step, communication=Fair(weights=PairWeights(weight)))
            found = replace(self.sharing, seed=seed).solve(asked, within(share), plans)
            best.evaluations += found.evaluations
            if found.solution is not None:
                best.offer(found.solution, simulator, weight)

        plans = list(start)
        uniform = allocated_problem(step, uniform_allocation(step.topology.network))
        for made in (step, uniform):
            asked = StepPlanning(made)
            placed = self.placement.solve(asked, within(self.placement_share / 2.0), start)
            best.evaluations += placed.evaluations
            plans += [placed.solution] if placed.solution else []
        for plan in plans:
            best.offer(plan, simulator, _equal(step))
        share = self.sharing_share if self.weights else 1.0
        seed, vain = self.sharing.seed, 0
        shared(plans, _equal(step), share, seed)
        fair = {"fair_sharing_s": best.step_time} if best.plan else {}
        for plan in start if self.weights else ():
            best.offer(plan, simulator, weights_of(plan, step))
        while self.weights is not None and best.plan is not None and not best.optimal:
            if vain == self.patience or best.seconds >= budget.seconds:
                break
            before, seed = best.step_time, seed + 1
            weights = replace(self.weights, seed=seed)
            found = weights.improve(step, best.plan, within(self.turn_share), best.lower_bound)
            best.evaluations += found.evaluations
            if found.solution is not None:
                best.offer(best.plan, simulator, weights_of(found.solution, step))
            shared([best.plan], weights_of(best.plan, step), self.turn_share, seed)
            vain = vain + 1 if best.step_time == before else 0
        return replace(best.result(placed.reason), figures=fair)
