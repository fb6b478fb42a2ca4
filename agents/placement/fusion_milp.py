"""Fusion + co-location + MILP: the strongest white-box baseline."""

from __future__ import annotations

import highspy
import numpy as np
from numpy.typing import NDArray

from agents.base import PlannerResult
from agents.placement.critical_path import critical_seconds
from agents.placement.grouping import GroupedProblem
from agents.placement.incumbent import Incumbent
from agents.placement.milp_model import AssignmentModel, PlacementModel
from agents.placement.milp_windows import add_windows
from envs.simulation.problem import StepProblem
from envs.simulation.step import StepSimulator

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

_ROUNDS = 15  # into which the budget is divided
_ROUND_NODES = 1000  # branch-and-bound nodes of a round with a deterministic limit
_GAP = 0.02  # relative, at which a round ends: the model is no more accurate than that
_EFFORT = 0.3  # of HiGHS in looking for solutions rather than proofs
_SURPRISE = 1.01  # a lesson is learned when the step takes this many times what the model said
_RELEVANT = 1.3  # ... and is not this many times slower than the best plan
_FEW = 8  # devices of the first model where there are more
_ASSIGN_SECONDS, _ASSIGN_GAP = 1.0, 0.1  # of one assignment without transfers
_REPAIRS = 16  # assignments tried, where nothing else was found, until activations fit


class FusionMilp:
    """Fuses the graph and alternates between a MILP (HiGHS) and the simulator.

    The MILP is `PlacementModel` with `add_windows`: loads, ports, memory, filling and draining the
    pipeline. It knows nothing of the order in which devices run their work. Each round HiGHS
    solves it, every solution it finds on the way is simulated in full, and where the step turns out
    longer than the model said, the groups on the critical path of the simulation become a new
    row (`PlacementModel.add_lesson`), as in logic-based Benders decomposition (Hooker, Ottosson,
    Mathematical Programming 96, 2003) with the simulator as subproblem; where activations overflow,
    another one rules that out (`add_overflow`). Rounds end when HiGHS closes the gap to two per
    cent, after a fifteenth of the budget, or at the budget; the search ends early when a finished
    round brings nothing new.

    The model grows with the square of the number of devices and is slow to give a solution where
    there are many. With more than eight the search therefore begins with the first eight, in
    `GroupedProblem.device_order`, and doubles their number when a model is exhausted or has used
    half of what is left of the budget. If the budget ends without any plan, `AssignmentModel`,
    which knows no transfers, makes one within a few seconds.

    HiGHS starts cold in every round: no heuristic's plan is handed to it and none replaces its
    own; the plan returned is the fastest simulated solution. Groups contain whole co-location
    groups.

    `PlannerResult.reason` states HiGHS's bound before any lesson: where all micro-batches are
    alike, no placement of these groups on these devices has a smaller step time.
    `PlannerResult.lower_bound` holds for all placements of the problem.

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
        grouped = incumbent.group(self.groups)
        if grouped is None:
            return incumbent.result()
        stages = _stages(grouped)
        nodes, reason = deterministic_limit, ""
        for number, devices in enumerate(stages):
            share = 1.0 if number == len(stages) - 1 else 0.5
            left = budget_s - incumbent.seconds
            if left <= 0.0 or nodes == 0:
                break
            rounds = _Rounds(incumbent, grouped, devices, self.forgiven, self.seed)
            if nodes is None:
                rounds.by_time(budget_s - (1.0 - share) * left, budget_s)
            else:
                nodes -= min(nodes, rounds.by_nodes(int(np.ceil(share * nodes)), budget_s))
            reason = rounds.summary or reason
        if incumbent.plan is None:
            _assign(incumbent, grouped, self.seed)
        return incumbent.result(reason=reason)


def _stages(grouped: GroupedProblem) -> list[IntArray]:
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


def _assign(incumbent: Incumbent, grouped: GroupedProblem, seed: int) -> None:
    """Offer solutions of `AssignmentModel` until one fits."""
    model = AssignmentModel(grouped)
    for _ in range(_REPAIRS):
        solver = model.program.solver(time_limit=_ASSIGN_SECONDS, seed=seed)
        solver.setOptionValue("mip_rel_gap", _ASSIGN_GAP)
        solver.run()
        if (
            solver.getInfo().primal_solution_status
            != highspy.SolutionStatus.kSolutionStatusFeasible
        ):
            break
        device = model.devices(np.array(solver.getSolution().col_value, dtype=np.float64))
        excess = incumbent.offer(grouped.fusion.expand(device))
        if not excess.any():
            break
        model.add_overflow(device, excess)


class _Rounds:
    """One model, of the placement on `devices`, solved again and again with more rows."""

    def __init__(
        self,
        incumbent: Incumbent,
        grouped: GroupedProblem,
        devices: IntArray,
        forgiven: float,
        seed: int,
    ) -> None:
        self.incumbent = incumbent
        self.devices = devices
        self.grouped = grouped.on_devices(devices)
        self.forgiven = forgiven
        self.seed = seed
        self.simulator = StepSimulator(self.grouped.problem)
        self.model = PlacementModel(self.grouped)
        add_windows(self.model)
        self.seen: set[bytes] = set()
        self.taught = False  # the model has rows beyond those it began with
        self.summary = ""

    def by_time(self, end: float, budget_s: float) -> None:
        """Rounds until the search is `end` seconds old; until the budget if it finds nothing."""
        slice_s = max(end - self.incumbent.seconds, 0.0) / _ROUNDS
        while self.incumbent.seconds < (end if self.seen else budget_s):
            left = budget_s - self.incumbent.seconds
            if not self._solve(min(slice_s, left), highspy.kHighsIInf)[1]:
                break
            if not self.seen:
                slice_s *= 2.0

    def by_nodes(self, nodes: int, budget_s: float) -> int:
        """Rounds of at most `nodes` branch-and-bound nodes together; returns those taken."""
        taken, again = 0, True
        while again and taken < nodes and self.incumbent.seconds < budget_s:
            left = budget_s - self.incumbent.seconds
            used, again = self._solve(left, min(nodes - taken, _ROUND_NODES))
            taken += max(used, 1)
        return taken

    def _solve(self, time_limit: float, node_limit: int) -> tuple[int, bool]:
        """One round; returns the nodes it took and whether another may bring something."""
        solver = self.model.program.solver(time_limit=time_limit, seed=self.seed)
        solver.setOptionValue("mip_max_nodes", node_limit)
        solver.setOptionValue("mip_rel_gap", _GAP)
        solver.setOptionValue("mip_heuristic_effort", _EFFORT)
        found: list[tuple[float, IntArray, FloatArray]] = []

        def simulate(event: highspy.HighsCallbackEvent) -> None:
            device = self.model.devices(np.array(event.data_out.mip_solution, dtype=np.float64))
            if device.tobytes() not in self.seen:
                self.seen.add(device.tobytes())
                placed = self.grouped.fusion.expand(self.devices[device])
                excess = self.incumbent.offer(placed)[self.devices]
                expected = event.data_out.objective_function_value * self.model.scale
                found.append((expected, device, excess))

        solver.cbMipSolution.subscribe(simulate)
        solver.run()
        info = solver.getInfo()
        if not self.taught and np.isfinite(info.mip_dual_bound):
            self.summary = (
                f"bound of the model of {self.grouped.num_groups} groups"
                f"{self._on_devices()}: {max(info.mip_dual_bound, 0.0) * self.model.scale:.6g} s"
            )
        taught = sum(self._learn(*solution) for solution in found) > 0
        self.taught |= taught
        finished = solver.getModelStatus() != highspy.HighsModelStatus.kTimeLimit
        return int(info.mip_node_count), taught or not finished

    def _on_devices(self) -> str:
        count = self.incumbent.problem.topology.num_devices
        return "" if len(self.devices) == count else f" on {len(self.devices)} devices"

    def _learn(self, expected: float, device: IntArray, excess: FloatArray) -> bool:
        if excess.any():
            self.model.add_overflow(device, excess)
            return True
        blame = critical_seconds(self.simulator, self.grouped, device)
        actual = float(blame.sum())
        if not expected * _SURPRISE < actual <= _RELEVANT * self.incumbent.step_time:
            return False
        self.model.add_lesson(device, blame, self.forgiven)
        return True
