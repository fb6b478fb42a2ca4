"""The search for the best plan of a step or a partition by CP-SAT, which a simulator judges."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from enum import Enum, auto

import numpy as np

from agents.constraint_program.makespan import MakespanModel
from agents.constraint_program.partition import MODELS, PartitionModel
from agents.constraint_program.program import TimeScale
from agents.constraint_program.solver import CpSettings, CpSolver
from agents.step.grouping import GroupedProblem
from agents.step.incumbent import AT_THE_BOUND, Incumbent, PartitionIncumbent, StepIncumbent
from envs.arrays import FloatArray, IntArray
from envs.errors import InputError
from envs.step.plans import Plan
from envs.step.problem import StepProblem
from envs.step.step import StepSimulator

_CONSTRAINT_SECONDS = 1e-5  # to write a constraint down
_DELAY_SECONDS = 2.0  # CP-SAT's deterministic seconds for a program that allows delays
_DELAY_CEILING = 10.0  # seconds for it in any case
# units in the horizon, to search and then to prove; far below the limit of `CpSolver.search`, since
# CP-SAT multiplies times with each other and with bytes
_RESOLUTIONS = (2.0**14, 2.0**24)
_PARTITION_RESOLUTIONS = (2.0**30,)  # at most; see `CpSolver.search`


class _Outcome(Enum):
    """How one search ended."""

    AGAIN = auto()  # the program was not the right one yet
    ROUNDED = auto()  # with a proof, for rounded times
    DONE = auto()  # with a proof, or at a limit


class ProgramSearch(ABC):
    """CP-SAT on programs of one problem; every solution is judged and offered to an incumbent.

    When a solution breaks a rule, the search learns from it and begins again. Where memory is
    tight, delays are allowed at first, for a while: the smaller program is often enough.
    """

    def __init__(
        self,
        incumbent: Incumbent,
        times: Sequence[FloatArray],
        longest: float,  # seconds that no plan exceeds
        resolutions: Sequence[float],
    ) -> None:
        self.incumbent = incumbent
        self.bound = incumbent.lower_bound  # seconds; no plan is faster
        self.summary = "not searched"
        self.forbidden: list[Plan] = []
        self._times = times
        self._longest = longest
        self._resolutions = resolutions
        self._known: tuple[float, Plan] | None = None  # the fastest plan that was accepted
        self._prompt = False  # nothing may be put off
        self._left: float | None = None

    @abstractmethod
    def take(self, plan: Plan) -> float | None:
        """Offer a plan to the incumbent: its seconds, or None where it breaks a rule.

        That is learned from.
        """

    @abstractmethod
    def model(self, scale: TimeScale, horizon: int, lower: int) -> MakespanModel | PartitionModel:
        """The program of the problem."""

    def begin(self, plan: Plan) -> None:
        """Start from a plan, unless it breaks a rule."""
        self._try(plan)

    def run(self, settings: CpSettings, budget_s: float, limit: float | None) -> None:
        """Search until the optimum is proved, until `budget_s` or the deterministic limit."""
        self._left = limit
        for resolution in self._resolutions:
            outcome = _Outcome.AGAIN
            while outcome is _Outcome.AGAIN and self._goes_on(budget_s):
                with CpSolver() as solver:
                    left = budget_s - self.incumbent.seconds
                    outcome = self._solve(solver, settings, resolution, left)
            if outcome is _Outcome.DONE:
                return
            self._prompt = True  # with fine times, delays can be lengthened for ever

    def _goes_on(self, budget_s: float) -> bool:
        in_time = self.incumbent.seconds < budget_s and (self._left is None or self._left > 0.0)
        known = np.inf if self._known is None else self._known[0]
        return in_time and known > self.bound * (1.0 + AT_THE_BOUND)

    def _solve(
        self, solver: CpSolver, settings: CpSettings, resolution: float, seconds: float
    ) -> _Outcome:
        longest = self._longest if self._known is None else self._known[0]
        scale = TimeScale.of(self._times, longest, resolution)
        horizon = int(scale.units(np.array(longest))) + int(self._known is None)
        model = self.model(scale, horizon, int(self.bound / float(scale.unit)))
        for plan in self.forbidden:
            model.forbid(plan)
        delays = False
        if isinstance(model, MakespanModel) and model.tight:
            delays = self._known is not None and not self._prompt
            if not delays:
                model.forbid_delay()
        limits = [limit for limit in (self._left, _DELAY_SECONDS if delays else None) if limit]
        if self._known is not None:
            model.set_hint(self._known[1])
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
            if event.values is not None and not self._try(model.plan(event.values)):
                status = "VIOLATED"
                break
            if event.bound is not None:
                self.bound = max(self.bound, scale.bound(event.bound))
        if self._left is not None:
            self._left -= used
        self.summary = f"{self.bound:.9g} s, {scale.explain()}"
        if status == "VIOLATED":
            return _Outcome.AGAIN
        if status == "INFEASIBLE":
            self.bound = max(self.bound, np.inf if self._known is None else scale.bound(horizon))
        proved = status in {"OPTIMAL", "INFEASIBLE"}
        if delays and not proved:
            self._prompt = True
            return _Outcome.AGAIN
        return _Outcome.ROUNDED if proved and not scale.exact else _Outcome.DONE

    def _try(self, plan: Plan) -> bool:
        """Offer a plan; False if it breaks a rule."""
        seconds = self.take(plan)
        if seconds is None:
            self._prompt = True
            return False
        if self._known is None or seconds < self._known[0]:
            self._known = seconds, plan
        return True


class PartitionProgramSearch(ProgramSearch):
    """The search on max-load or latency; a placement that violates something is ruled out.

    Raises:
        InputError: the problem is neither.
    """

    incumbent: PartitionIncumbent

    def __init__(self, incumbent: PartitionIncumbent) -> None:
        problem = incumbent.problem
        if type(problem) not in MODELS:
            raise InputError("cp_sat does not solve this problem", field="problem")
        times = [problem.step.op_seconds, problem.traffic.seconds]
        able = np.where(np.isfinite(times[1]), times[1], 0.0)
        longest = _work(times[0]) + 2.0 * able.sum()
        super().__init__(incumbent, times, float(longest), _PARTITION_RESOLUTIONS)

    def take(self, plan: Plan) -> float | None:
        """As `ProgramSearch.take`."""
        device, problem = plan.placement.device, self.incumbent.problem
        self.incumbent.offer(device)
        if problem.violations(device):
            self.forbidden.append(plan)
            return None
        return problem.objective(device)

    def model(self, scale: TimeScale, horizon: int, lower: int) -> PartitionModel:
        """As `ProgramSearch.model`."""
        problem = self.incumbent.problem
        return MODELS[type(problem)](problem, scale, horizon, lower)


class StepSearch(ProgramSearch):
    """The search on the operators themselves; its bound holds for all plans.

    A plan that overflows a device is forbidden, and so are those that play alike.
    """

    incumbent: StepIncumbent

    def __init__(self, incumbent: StepIncumbent, problem: StepProblem) -> None:
        self.problem = problem
        self._simulator = StepSimulator(problem)
        able = np.isfinite(problem.transfer_seconds)
        moves = np.where(able, problem.transfer_seconds, 0.0).max(axis=1, initial=0.0).sum()
        longest = float(_work(problem.op_seconds) + problem.topology.num_devices * moves)
        times = [problem.op_seconds, problem.transfer_seconds]
        super().__init__(incumbent, times, longest, _RESOLUTIONS)

    def run(self, settings: CpSettings, budget_s: float, limit: float | None) -> None:
        """As `ProgramSearch.run`, if there is time to write the program down."""
        if _program_seconds(self.problem) > budget_s - self.incumbent.seconds:
            self.summary = "the program is too large for the budget"
            return
        super().run(settings, budget_s, limit)

    def take(self, plan: Plan) -> float | None:
        """As `ProgramSearch.take`."""
        device, order = plan.placement.device, plan.order
        excess = self.offer(device, order)
        if excess.any():
            self.learn(plan, excess)
            return None
        return self._simulator.step_time(device, order)

    def model(self, scale: TimeScale, horizon: int, lower: int) -> MakespanModel:
        """As `ProgramSearch.model`."""
        return MakespanModel(self.problem, scale, horizon, lower)

    def offer(self, device: IntArray, order: IntArray) -> FloatArray:
        """Offer a plan of `problem` to the incumbent; (D,) bytes as `StepIncumbent.offer`."""
        return self.incumbent.offer(device, order)

    def learn(self, plan: Plan, excess: FloatArray) -> None:
        """Take note of a plan of `problem` that overflows devices by `excess` (D,) bytes."""
        self.forbidden.append(plan)


class FusedSearch(StepSearch):
    """The search on the pieces of a fused graph; its bound holds for plans of these groups.

    Where a plan overflows devices, these have less room for the rest of the search.
    """

    def __init__(self, incumbent: StepIncumbent, grouped: GroupedProblem) -> None:
        super().__init__(incumbent, grouped.problem)
        self.bound = 0.0
        self._grouped = grouped

    def offer(self, device: IntArray, order: IntArray) -> FloatArray:
        """As `StepSearch.offer`; a piece's operators run in the graph's order."""
        piece = self._grouped.fusion.piece
        pieces_first = np.argsort(np.argsort(order)[piece], kind="stable")
        return self.incumbent.offer(device[piece], pieces_first)

    def learn(self, plan: Plan, excess: FloatArray) -> None:
        """As `StepSearch.learn`."""
        home = np.empty(self._grouped.num_groups, dtype=np.int64)
        home[self._grouped.fusion.piece_group] = plan.placement.device
        room = self._grouped.less_room(self.problem.capacity, home, excess)
        self.problem = replace(self.problem, capacity=np.maximum(room, 0.0))


def _program_seconds(problem: StepProblem) -> float:
    """About how long a `MakespanModel` takes to make."""
    graph, devices = problem.graph, problem.topology.num_devices
    pairs = graph.num_operators**2 * devices
    moves = 6 * graph.num_tensors * devices**2  # constraints for each tensor and pair of devices
    return _CONSTRAINT_SECONDS * (pairs + moves)


def _work(seconds: FloatArray) -> float:
    """Seconds of all operators one after another, each where it is slowest."""
    return float(np.where(np.isfinite(seconds), seconds, 0.0).max(axis=1).sum())
