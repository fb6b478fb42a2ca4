"""Fusion + co-location + MILP: the strongest white-box baseline."""

from __future__ import annotations

import highspy
import numpy as np
from numpy.typing import NDArray

from agents.base import PlannerResult
from agents.placement.critical_path import critical_seconds
from agents.placement.grouping import GroupedProblem
from agents.placement.incumbent import Incumbent
from agents.placement.milp_model import PlacementModel
from agents.placement.milp_windows import add_windows
from envs.simulation.problem import StepProblem
from envs.simulation.step import StepSimulator

IntArray = NDArray[np.int64]

_ROUNDS = 15  # into which the budget is divided
_ROUND_NODES = 1000  # branch-and-bound nodes of a round with a deterministic limit
_GAP = 0.02  # relative, at which a round ends: the model is no more accurate than that
_EFFORT = 0.3  # of HiGHS in looking for solutions rather than proofs
_SURPRISE = 1.01  # a lesson is learned when the step takes this many times what the model said
_RELEVANT = 1.3  # ... and is not this many times slower than the best plan


class FusionMilp:
    """Fuses the graph and alternates between a MILP (HiGHS) and the simulator.

    The MILP is `PlacementModel` with `add_windows`: loads, ports, memory, filling and draining the
    pipeline. It knows nothing of the order in which devices run their work. Each round HiGHS
    solves it, every solution it finds on the way is simulated in full, and where the step turns out
    longer than the model said, the groups on the critical path of the simulation become a new
    row (`PlacementModel.add_lesson`), as in logic-based Benders decomposition (Hooker, Ottosson,
    Mathematical Programming 96, 2003) with the simulator as subproblem. Rounds end when HiGHS
    closes the gap to two per cent, after a fifteenth of the budget, or at the budget; the search
    ends early when a finished round brings nothing new.

    HiGHS starts cold in every round: no heuristic's plan is handed to it and none replaces its
    own; the plan returned is the fastest simulated solution. Groups contain whole co-location
    groups.

    `PlannerResult.reason` states HiGHS's bound before any lesson: where all micro-batches are
    alike, no placement of these groups has a smaller step time. `PlannerResult.lower_bound` holds
    for all placements of the problem.

    Args:
        groups: groups of the fused graph.
        forgiven: part of its blame a group takes along when it moves; see `add_lesson`.
        seed: of HiGHS.
    """

    def __init__(self, *, groups: int, forgiven: float, seed: int) -> None:
        self.groups = groups
        self.forgiven = forgiven
        self.seed = seed

    def plan(
        self, problem: StepProblem, budget_s: float, deterministic_limit: int | None = None
    ) -> PlannerResult:
        """As `Planner.plan`; the deterministic limit counts branch-and-bound nodes."""
        incumbent = Incumbent(problem)
        if not incumbent.bound.memory_ok:
            return incumbent.result()
        grouped = GroupedProblem.of(problem, self.groups)
        if grouped.too_large:
            return incumbent.result(reason=grouped.too_large)
        rounds = _Rounds(incumbent, grouped, self.forgiven, self.seed)
        slice_s = budget_s if deterministic_limit is not None else budget_s / _ROUNDS
        nodes = deterministic_limit if deterministic_limit is not None else highspy.kHighsIInf
        while nodes > 0 and incumbent.seconds < budget_s:
            limit = min(nodes, _ROUND_NODES) if deterministic_limit is not None else nodes
            used, again = rounds.solve(min(slice_s, budget_s - incumbent.seconds), limit)
            if not again:
                break
            nodes -= max(used, 1) if deterministic_limit is not None else 0
        return incumbent.result(reason=rounds.summary)


class _Rounds:
    """One model, solved again and again with more rows."""

    def __init__(
        self, incumbent: Incumbent, grouped: GroupedProblem, forgiven: float, seed: int
    ) -> None:
        self.incumbent = incumbent
        self.grouped = grouped
        self.forgiven = forgiven
        self.seed = seed
        self.simulator = StepSimulator(grouped.problem)
        self.model = PlacementModel(grouped)
        add_windows(self.model)
        self.seen: set[bytes] = set()
        self.summary = ""

    def solve(self, time_limit: float, node_limit: int) -> tuple[int, bool]:
        """One round; returns the nodes it took and whether another may bring something."""
        solver = self.model.program.solver(time_limit=time_limit, seed=self.seed)
        solver.setOptionValue("mip_max_nodes", node_limit)
        solver.setOptionValue("mip_rel_gap", _GAP)
        solver.setOptionValue("mip_heuristic_effort", _EFFORT)
        found: list[tuple[float, IntArray]] = []

        def simulate(event: highspy.HighsCallbackEvent) -> None:
            device = self.model.devices(np.array(event.data_out.mip_solution, dtype=np.float64))
            if device.tobytes() not in self.seen:
                self.seen.add(device.tobytes())
                self.incumbent.offer(self.grouped.fusion.expand(device))
                found.append((event.data_out.objective_function_value * self.model.scale, device))

        solver.cbMipSolution.subscribe(simulate)
        solver.run()
        info = solver.getInfo()
        if not self.summary:
            self.summary = (
                f"bound of the model of {self.grouped.num_groups} groups: "
                f"{max(info.mip_dual_bound, 0.0) * self.model.scale:.6g} s"
            )
        taught = [self._learn(expected, device) for expected, device in found]
        finished = solver.getModelStatus() != highspy.HighsModelStatus.kTimeLimit
        return int(info.mip_node_count), any(taught) or not finished

    def _learn(self, expected: float, device: IntArray) -> bool:
        blame = critical_seconds(self.simulator, self.grouped, device)
        actual = float(blame.sum())
        if not expected * _SURPRISE < actual <= _RELEVANT * self.incumbent.step_time:
            return False
        self.model.add_lesson(device, blame, self.forgiven)
        return True
