"""The search for a plan of least step time by CP-SAT, with the simulator as judge."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import numpy as np

from agents.constraint_program.makespan import MakespanModel
from agents.constraint_program.program import TimeScale
from agents.constraint_program.solver import CpSettings, CpSolver, Outcome
from agents.step.grouping import GroupedProblem
from agents.step.incumbent import AT_THE_BOUND, StepIncumbent
from envs.arrays import FloatArray, IntArray
from envs.step.plans import Plan
from envs.step.problem import StepProblem
from envs.step.step import StepSimulator

_CONSTRAINT_SECONDS = 1e-5  # to write a constraint down
_DELAY_SECONDS = 2.0  # CP-SAT's deterministic seconds for a program that allows delays
_DELAY_CEILING = 10.0  # seconds for it in any case
# units in the horizon, to search and then to prove; far below the limit of `CpSolver.search`, since
# CP-SAT multiplies times with each other and with bytes
_RESOLUTIONS = (2.0**14, 2.0**24)


@dataclass(frozen=True, eq=False)
class _Known:
    """The fastest plan of the model's problem that was accepted."""

    device: IntArray
    order: IntArray
    seconds: float


class StepSearch(ABC):
    """CP-SAT on a `MakespanModel` of `problem`; every solution is simulated and offered.

    When a solution overflows a device, the search learns from it and begins again. Where memory is
    tight, delays are allowed at first, for a while: the smaller program is often enough.
    """

    def __init__(self, incumbent: StepIncumbent, problem: StepProblem) -> None:
        self.incumbent = incumbent
        self.problem = problem
        self.bound = 0.0  # seconds; no plan of `problem` is faster
        self.summary = "not searched"
        self._known: _Known | None = None
        self._prompt = False  # nothing may be put off
        self._left: float | None = None
        self._simulator = StepSimulator(problem)

    @abstractmethod
    def offer(self, device: IntArray, order: IntArray) -> FloatArray:
        """Offer a plan of `problem` to the incumbent; (D,) bytes as `StepIncumbent.offer`."""

    @abstractmethod
    def learn(self, device: IntArray, order: IntArray, excess: FloatArray) -> None:
        """Take note of a plan of `problem` that overflows devices by `excess` (D,) bytes."""

    def model(self, scale: TimeScale, horizon: int, lower: int) -> MakespanModel:
        """The program of `problem`, with what was learned."""
        return MakespanModel(self.problem, scale, horizon, lower)

    def begin(self, plan: Plan) -> None:
        """Start from a plan of `problem`, unless it overflows a device."""
        self._try(plan.placement.device, plan.order)

    def run(self, settings: CpSettings, budget_s: float, limit: float | None) -> None:
        """Search until the optimum is proved, until `budget_s` or the deterministic limit."""
        self._left = limit
        if _program_seconds(self.problem) > budget_s - self.incumbent.seconds:
            self.summary = "the program is too large for the budget"
            return
        for resolution in _RESOLUTIONS:
            outcome = Outcome.AGAIN
            while outcome is Outcome.AGAIN and self._goes_on(budget_s):
                with CpSolver() as solver:
                    left = budget_s - self.incumbent.seconds
                    outcome = self._solve(solver, settings, resolution, left)
            if outcome is Outcome.DONE:
                return
            self._prompt = True  # with fine times, delays can be lengthened for ever

    def _goes_on(self, budget_s: float) -> bool:
        in_time = self.incumbent.seconds < budget_s and (self._left is None or self._left > 0.0)
        known = np.inf if self._known is None else self._known.seconds
        return in_time and known > self.bound * (1.0 + AT_THE_BOUND)

    def _solve(
        self, solver: CpSolver, settings: CpSettings, resolution: float, seconds: float
    ) -> Outcome:
        longest = _serial_seconds(self.problem) if self._known is None else self._known.seconds
        times = [self.problem.op_seconds, self.problem.transfer_seconds]
        scale = TimeScale.of(times, longest, resolution)
        horizon = int(scale.units(np.array(longest))) + int(self._known is None)
        model = self.model(scale, horizon, int(self.bound / float(scale.unit)))
        delays = model.tight and self._known is not None and not self._prompt
        limits = [limit for limit in (self._left, _DELAY_SECONDS if delays else None) if limit]
        if not delays:
            model.forbid_delay()
        if self._known is not None:
            model.set_hint(self._known.device, self._known.order)
        status, used = "", 1.0  # a search that is broken off counts one deterministic second
        for event in solver.search(
            model.program,
            model.watched,
            settings,
            seconds=min(seconds, _DELAY_CEILING) if delays else seconds,
            deterministic_limit=min(limits, default=None),
        ):
            if event.status:
                status, used = event.status, event.deterministic_time
            if event.values is not None and not self._try(*model.plan(event.values)):
                status = "VIOLATED"
                break
            if event.bound is not None:
                self.bound = max(self.bound, scale.bound(event.bound))
        if self._left is not None:
            self._left -= used
        self.summary = f"{self.bound:.9g} s, {scale.explain()}"
        if status == "VIOLATED":
            return Outcome.AGAIN
        if status == "INFEASIBLE":
            self.bound = max(self.bound, np.inf if self._known is None else scale.bound(horizon))
        proved = status in {"OPTIMAL", "INFEASIBLE"}
        if delays and not proved:
            self._prompt = True
            return Outcome.AGAIN
        return Outcome.ROUNDED if proved and not scale.exact else Outcome.DONE

    def _try(self, device: IntArray, order: IntArray) -> bool:
        """Offer a plan; False if a device overflows, which is learned."""
        excess = self.offer(device, order)
        if excess.any():
            self._prompt = True
            self.learn(device, order, excess)
            return False
        seconds = self._simulator.step_time(device, order)
        if self._known is None or seconds < self._known.seconds:
            self._known = _Known(device, order, seconds)
        return True


class WholeSearch(StepSearch):
    """The search on the operators themselves; its bound holds for all plans."""

    def __init__(self, incumbent: StepIncumbent) -> None:
        super().__init__(incumbent, incumbent.problem)
        self.bound = incumbent.lower_bound  # seconds
        self._forbidden: list[tuple[IntArray, IntArray]] = []

    def offer(self, device: IntArray, order: IntArray) -> FloatArray:
        """As `StepSearch.offer`."""
        return self.incumbent.offer(device, order)

    def learn(self, device: IntArray, order: IntArray, excess: FloatArray) -> None:
        """Never this plan, nor one that plays alike."""
        self._forbidden.append((device, order))

    def model(self, scale: TimeScale, horizon: int, lower: int) -> MakespanModel:
        """As `StepSearch.model`."""
        model = super().model(scale, horizon, lower)
        for device, order in self._forbidden:
            model.forbid(device, order)
        return model


class FusedSearch(StepSearch):
    """The search on the pieces of a fused graph; its bound holds for plans of these groups."""

    def __init__(self, incumbent: StepIncumbent, grouped: GroupedProblem) -> None:
        super().__init__(incumbent, grouped.problem)
        self._grouped = grouped

    def offer(self, device: IntArray, order: IntArray) -> FloatArray:
        """As `StepSearch.offer`; a piece's operators run in the graph's order."""
        piece = self._grouped.fusion.piece
        pieces_first = np.argsort(np.argsort(order)[piece], kind="stable")
        return self.incumbent.offer(device[piece], pieces_first)

    def learn(self, device: IntArray, order: IntArray, excess: FloatArray) -> None:
        """Less room on the devices that overflow, for the rest of the search."""
        home = np.empty(self._grouped.num_groups, dtype=np.int64)
        home[self._grouped.fusion.piece_group] = device
        room = self._grouped.less_room(self.problem.capacity, home, excess)
        self.problem = replace(self.problem, capacity=np.maximum(room, 0.0))


def _program_seconds(problem: StepProblem) -> float:
    """About how long a `MakespanModel` takes to make."""
    graph, devices = problem.graph, problem.topology.num_devices
    pairs = graph.num_operators**2 * devices
    moves = 6 * graph.num_tensors * devices**2  # constraints for each tensor and pair of devices
    return _CONSTRAINT_SECONDS * (pairs + moves)


def _serial_seconds(problem: StepProblem) -> float:
    """Seconds that no plan exceeds: everything one after another, wherever it is."""
    work = np.where(np.isfinite(problem.op_seconds), problem.op_seconds, 0.0).max(axis=1).sum()
    able = np.isfinite(problem.transfer_seconds)
    moves = np.where(able, problem.transfer_seconds, 0.0).max(axis=1, initial=0.0).sum()
    return float(work + problem.topology.num_devices * moves)
