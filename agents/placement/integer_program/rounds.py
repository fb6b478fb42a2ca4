"""A placement model and the simulator in turns: solve, simulate, learn, solve again."""

from __future__ import annotations

from collections.abc import Callable

import highspy
import numpy as np

from agents.linear_program import best_values
from agents.placement.integer_program.model import AssignmentModel
from agents.placement.integer_program.order import OrderModel
from agents.step.grouping import GroupedProblem, by_piece
from agents.step.incumbent import StepIncumbent
from envs.arrays import BoolArray, FloatArray, IntArray

ROUND_NODES = 1000  # branch-and-bound nodes of a round with a deterministic limit
_EFFORT = 0.3  # of HiGHS in looking for solutions rather than proofs
# of HiGHS, absolute: its own, or such a part of the gap where that is less
_TOLERANCE, _PART = 1e-6, 1e-3
_TOLERANCES = (
    "mip_abs_gap",
    "mip_feasibility_tolerance",
)
_ASSIGN_SECONDS, _ASSIGN_GAP = 1.0, 0.1  # of one assignment without transfers
_REPAIRS = 16  # assignments tried, where nothing else was found, until activations fit


Formulation = Callable[[GroupedProblem], OrderModel]  # or one with rates


class Rounds:
    """One model, of the placement of `grouped` on `devices`, solved again and again.

    Every solution that HiGHS finds in a round is simulated on all operators, in the 1F1B order and
    in the model's own, and offered to `incumbent`. What the model got wrong becomes new rows
    (`OrderModel.learn`), as in logic-based Benders decomposition (Hooker, Ottosson, Mathematical
    Programming 96, 2003) with the simulator as subproblem; where activations overflow, another row
    rules that out (`add_overflow`).

    Args:
        incumbent: takes the plans.
        grouped: the groups, on all devices.
        devices: the devices of the model.
        formulation: makes the model.
        seed: of HiGHS.
        hint: (N,) a placement with which HiGHS starts every round; None: it starts cold.
    """

    def __init__(
        self,
        incumbent: StepIncumbent,
        grouped: GroupedProblem,
        devices: IntArray,
        formulation: Formulation,
        seed: int,
        hint: IntArray | None = None,
    ) -> None:
        self.incumbent = incumbent
        self.devices = devices
        self.hint = hint
        self.grouped = grouped.on_devices(devices)
        self.seed = seed
        self.model = formulation(self.grouped)
        self.seen: dict[bytes, float] = {}  # placements of the groups: seconds of the step
        self.found: list[tuple[float, float, IntArray]] = []  # in the last round: bytes over,
        # seconds and (N,) devices of each placement
        self.taught = False  # the model has rows beyond those it began with
        self.learned = False  # the last round added rows
        self.finished = False  # a round ended by itself and brought nothing new
        self.proved = 0.0  # seconds, by HiGHS: no placement in the model takes less

    def solve(
        self,
        time_limit: float,
        node_limit: int,
        domain: BoolArray | None = None,
    ) -> int:
        """One round; returns the branch-and-bound nodes it took.

        `domain` (G, D) restricts the devices of each group in this round, and the round then
        proves nothing about the model.
        """
        solver = self.model.program.solver(time_limit=time_limit, seed=self.seed)
        solver.setOptionValue("mip_max_nodes", node_limit)
        solver.setOptionValue("mip_rel_gap", self.model.gap)
        solver.setOptionValue("mip_heuristic_effort", _EFFORT)
        tolerance = min(_TOLERANCE, _PART * self.model.gap)
        if tolerance < _TOLERANCE:
            for option in _TOLERANCES:
                solver.setOptionValue(option, tolerance)
        if domain is not None:
            columns = self.model.place.ravel()
            upper = (domain & self.grouped.allowed).ravel().astype(np.float64)
            solver.changeColsBounds(
                len(columns), columns.astype(np.int32), np.zeros(len(columns)), upper
            )
        if self.hint is not None:
            chosen = self.model.place[self._hinted(self.hint)].astype(np.int32)
            solver.setSolution(len(chosen), chosen, np.ones(len(chosen)))
        self.found = []
        lessons: list[tuple[FloatArray, IntArray, FloatArray]] = []

        def simulate(event: highspy.HighsCallbackEvent) -> None:
            solution = np.array(event.data_out.mip_solution, dtype=np.float64)
            lessons.append(self._simulate(solution))

        solver.cbMipSolution.subscribe(simulate)
        solver.run()
        info = solver.getInfo()
        # HiGHS does not look for what is better by less than its tolerance
        bound = max(info.mip_dual_bound - tolerance, 0.0) * self.model.scale
        if solver.getModelStatus() == highspy.HighsModelStatus.kInfeasible:
            bound = np.inf
        if domain is None and (self.model.complete or not self.taught):
            self.proved = max(self.proved, min(bound, self.incumbent.step_time))
        self.learned = False
        for values, device, excess in lessons:
            if excess.any():
                self.model.add_overflow(device, excess)
                self.learned = True
            else:
                self.learned |= self.model.learn(values, self.incumbent.step_time)
        self.taught |= self.learned
        ended = (highspy.HighsModelStatus.kOptimal, highspy.HighsModelStatus.kInfeasible)
        self.finished = not self.learned and solver.getModelStatus() in ended
        return int(info.mip_node_count)

    def _simulate(self, solution: FloatArray) -> tuple[FloatArray, IntArray, FloatArray]:
        """Offer a solution; itself, its devices and (D,) bytes of excess."""
        device = self.model.devices(solution)
        placed = self.grouped.fusion.expand(self.devices[device])
        excess = np.zeros(len(self.devices))
        if device.tobytes() not in self.seen:
            seconds = self.incumbent.simulator.step_time(placed)
            excess = self.incumbent.offer(placed)[self.devices]
            self.seen[device.tobytes()] = seconds
            self.found.append((float(excess.sum()), seconds, placed))
        expanded = by_piece(self.grouped.fusion.piece, self.model.order(solution))
        excess = np.maximum(excess, self.incumbent.offer(placed, expanded)[self.devices])
        if self.incumbent.may_move:  # the model moves, too: it learns what there is to move
            simulator = self.incumbent.simulator
            excess = self.incumbent.excess(simulator, placed, expanded)[self.devices]
        return solution, device, excess

    def _hinted(self, hint: IntArray) -> tuple[IntArray, IntArray]:
        """Groups, and the device in the model on which `hint` has most of their operators."""
        count = self.incumbent.problem.topology.num_devices
        votes = np.zeros((self.grouped.num_groups, count))
        np.add.at(votes, (self.grouped.fusion.group, hint), 1.0)
        return np.arange(len(votes)), votes[:, self.devices].argmax(axis=1)

    @property
    def summary(self) -> str:
        """What has been proved, in words."""
        if self.proved == 0.0:
            return ""
        count = self.incumbent.problem.topology.num_devices
        some = "" if len(self.devices) == count else f" on {len(self.devices)} devices"
        return f"bound of the model of {self.grouped.num_groups} groups{some}: {self.proved:.6g} s"


def assign(incumbent: StepIncumbent, grouped: GroupedProblem, seed: int) -> IntArray | None:
    """Offer solutions of `AssignmentModel`, which knows no transfers, until one fits.

    Returns the last one (N,), whether it fits or not; None where there is none.
    """
    model = AssignmentModel(grouped)
    placed: IntArray | None = None
    for _ in range(_REPAIRS):
        solver = model.program.solver(time_limit=_ASSIGN_SECONDS, seed=seed)
        solver.setOptionValue("mip_rel_gap", _ASSIGN_GAP)
        values = best_values(solver)
        if values is None:
            break
        device = model.devices(values)
        placed = grouped.fusion.expand(device)
        excess = incumbent.offer(placed)
        if not excess.any():
            break
        model.add_overflow(device, excess)
    return placed
