"""The best of one search: judged anew, checked, timed, and turned into a `Result`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import ClassVar

import numpy as np

from agents.solver import Budget, Result, Status
from agents.step.grouping import GroupedProblem
from agents.step.lower_bound import lower_bound, why_no_plan
from agents.step.memory_moves import MemoryMoves, Moved, compile_kernels
from agents.step.problems import Partition, StepPlanning
from envs.arrays import FloatArray, IntArray
from envs.compilation import clock
from envs.errors import InputError
from envs.partition.problem import PartitionProblem
from envs.step.fusion import fuse
from envs.step.plans import Placement, Plan
from envs.step.price import BestOrder
from envs.step.problem import StepProblem
from envs.step.step import Simulator, StepSimulator

_GROUPS = 64  # of a step, for each of which memory moves are chosen
_PATIENCE = 2  # placements in a row that memory moves do not help, before some are passed over
_PAUSES = 6  # at most 2**6 refused plans are not repaired after one that was in vain
AT_THE_BOUND = 1e-9  # relative distance from the lower bound that counts as optimal


class Incumbent:
    """Keeps the best feasible plan of a search, when it came, and what is proved of all plans.

    Making it starts the clock. Subclasses say what a plan takes and which rules it
    breaks.

    Args:
        lower_bound: seconds, proved for every plan.
        gap: relative distance from the bound that counts as optimal.
    """

    nothing = "no plan was tried"  # the reason where nothing was found and nothing refused
    without_plan: Status = "limit"  # `infeasible` where a solver has tried all plans of its kind

    def __init__(self, lower_bound: float = 0.0, gap: float = AT_THE_BOUND) -> None:
        self._start = clock()
        self._lower_bound = lower_bound
        self._proof: Callable[[], float] | None = None  # of a bound, at the first question
        self.impossible = ""  # why no plan exists, where that is proved
        self.gap = gap
        self.step_time = np.inf  # seconds, of the objective
        self.plan: Plan | None = None
        self.evaluations = 0  # simulations, and whatever else a solver counts
        self.trajectory: list[tuple[float, float]] = []
        self.refusal = ""  # why the last plan that was faster than the best was refused

    @property
    def seconds(self) -> float:
        """Seconds since the search began."""
        return clock() - self._start

    @property
    def lower_bound(self) -> float:
        """Seconds, proved for every plan."""
        if self._proof is not None:
            self.lower_bound = max(self._lower_bound, self._proof())
        return self._lower_bound

    @lower_bound.setter
    def lower_bound(self, seconds: float) -> None:
        self._lower_bound, self._proof = seconds, None

    @property
    def optimal(self) -> bool:
        """Whether the best plan is at the bound."""
        return bool(self.step_time <= self.lower_bound * (1.0 + self.gap))

    def prove(self, lower_bound: float) -> None:
        """Take note of a proved bound in seconds."""
        self.lower_bound = max(self.lower_bound, lower_bound)

    def take(
        self,
        step_time: float,
        plan: Callable[[], Plan],
        violations: Callable[[Plan], Sequence[str]],
    ) -> bool:
        """Keep the plan if it is the best so far; False where it was better and broke a rule."""
        if step_time >= self.step_time:
            return True
        made = plan()
        broken = violations(made)
        if broken:
            self.refusal = "; ".join(broken)
            return False
        self.refusal = ""
        self.plan, self.step_time = made, step_time
        self.trajectory.append((self.seconds, step_time))
        return True

    def result(self, reason: str = "") -> Result[Plan]:
        """What the search found.

        A problem that is proved to have no plan is `infeasible`, whatever was tried.
        """
        status, plan = self.without_plan, self.plan
        if plan is not None:
            status = "optimal" if self.optimal else "feasible"
        elif self.impossible:
            status, reason = "infeasible", self.impossible
        else:
            reason = "; ".join(part for part in (reason, self.refusal) if part)
            reason = reason or self.nothing
        return Result(
            plan,
            status,
            self.step_time,
            self.seconds,
            self.lower_bound,
            self.evaluations,
            reason,
            self.trajectory,
        )


class StepIncumbent(Incumbent):
    """The fastest plan of `problem`, as its simulator plays it.

    A plan is feasible when it has no violations, those of its peak memory included. A placement
    without an order gets the best that the problem allows, and so does one with an order that it
    does not. A planner returns `result()` at once where the problem is `impossible`. Where the
    problem allows memory moves, a plan that does not fit is offered once more with them.
    """

    def __init__(self, problem: StepProblem) -> None:
        if problem.memory_moves:
            compile_kernels()
        super().__init__()
        self.problem = problem
        self.simulator: Simulator = (best := BestOrder(problem))
        self.pricer = best.pricer
        self.impossible = why_no_plan(problem)
        self._proof = lambda: np.inf if self.impossible else lower_bound(problem).seconds
        self._vain = 0  # repairs in a row that brought nothing
        self._pause = 0  # refused plans until the next repair: more after each vain one

    def group(self, max_groups: int) -> GroupedProblem | None:
        """The problem in at most `max_groups` groups; None where one is too large for every device.

        `result()` then says so.
        """
        grouped = GroupedProblem.of(self.problem, max_groups)
        self.refusal = grouped.too_large
        return None if grouped.too_large else grouped

    def offer(self, device: IntArray, order: IntArray | None = None) -> FloatArray:
        """Simulate placement `device` (N,) on the problem and keep it if it is the best so far.

        Without `order` the simulator's rule gives it. Returns (D,) bytes by which the peak memory
        exceeds each device: all zero unless a faster plan was refused for its memory.

        Raises:
            InputError: it is no device for every operator.
        """
        operators, devices = self.problem.op_seconds.shape
        chosen = np.asarray(device)
        if chosen.shape != (operators,) or ((chosen < 0) | (chosen >= devices)).any():
            fault = f"is no device, 0 to {devices - 1}, for each of {operators} operators"
            raise InputError(fault, field="device")
        self.evaluations += 1
        if order is None or not self.problem.any_order:
            order = self.simulator.order(device)
        plan = Plan(Placement(np.array(device, dtype=np.int64)), np.array(order, dtype=np.int64))
        excess = np.zeros(devices)
        if not self.take(
            self.simulator.step_time(device, order),
            lambda: plan,
            lambda plan: plan.violations(self.problem, self.simulator),
        ):
            excess = self.excess(self.simulator, device, order)
        if self.problem.memory_moves:
            return self._move(device, order, excess)
        return excess

    @cached_property
    def _moves(self) -> MemoryMoves:
        return MemoryMoves(self.problem, fuse(self.problem, _GROUPS).group)

    @property
    def may_move(self) -> bool:
        """Whether a placement that overflows may fit with memory moves."""
        return bool(self.problem.memory_moves)

    def improve_moves(self, budget_s: float) -> None:
        """Change the memory moves of the best plan, one group after another, while that helps.

        Until this is `budget_s` seconds old; not beyond one change of every group.
        """
        plan = self.plan
        if plan is None or plan.residence is None:
            return
        start = Moved(plan.order, plan.residence, self.step_time, np.zeros(0))
        device = plan.placement.device
        found = self._moves.improve(device, start, lambda: self.seconds < budget_s)
        if found.seconds < self.step_time:
            self._take_moved(replace(plan, residence=found.residence))

    def offer_plan(self, plan: Plan) -> FloatArray:
        """`offer` the plan of another planner, with its memory moves where it has any."""
        if plan.residence is None:
            return self.offer(plan.placement.device, plan.order)
        self.evaluations += 1
        self._take_moved(plan)
        return np.zeros(self.problem.topology.num_devices)

    def _move(self, device: IntArray, order: IntArray, excess: FloatArray) -> FloatArray:
        """Offer a placement with memory moves, unless they were in vain for those before.

        Returns (D,) bytes by which it exceeds each device even so; `excess` where it was not tried.
        """
        self._pause -= 1
        if self._pause > 0:
            return excess
        before = self.step_time
        found = self._moves.best(device, order, before)
        if found is None:
            self._pause = 1
            return excess
        self.evaluations += 1
        if found.fits and found.seconds < before:
            placement = Placement(np.array(device, dtype=np.int64))
            self._take_moved(Plan(placement, found.order, found.residence))
        self._vain = 0 if self.step_time < before else self._vain + 1
        self._pause = 2 ** min(max(self._vain - _PATIENCE, 0), _PAUSES)
        return np.minimum(found.excess, excess) if excess.any() else excess

    def _take_moved(self, plan: Plan) -> None:
        step, device, order = plan.played(self.problem)
        seconds = StepSimulator(step).step_time(device, order)
        self.take(seconds, lambda: plan, lambda plan: plan.violations(self.problem))

    def adopt(self, found: Result[Plan], began: float) -> None:
        """Offer the plan of another search, which began after `began` seconds, with its curve."""
        if found.solution is None:
            return
        curve = [(began + at, value) for at, value in found.history if value < self.step_time]
        entries = len(self.trajectory)
        self.offer(found.solution.placement.device, found.solution.order)
        if len(self.trajectory) > entries and curve:
            self.trajectory[-1:] = curve

    def excess(self, simulator: Simulator, device: IntArray, order: IntArray | None) -> FloatArray:
        """(D,) bytes by which the peak memory exceeds each device."""
        peak = simulator.run(device, order).peak_memory
        return np.maximum(peak - self.problem.capacity, 0.0)


class PartitionIncumbent(Incumbent):
    """The best placement of a partition problem, by its objective; the order is the graph's."""

    nothing = "no feasible placement was found"

    def __init__(self, problem: PartitionProblem) -> None:
        super().__init__()
        self.problem = problem

    def offer(self, device: IntArray) -> None:
        """Keep placement `device` (N,) if it is feasible and the best so far."""
        self.take(
            self.problem.objective(device),
            lambda: Plan(Placement(np.array(device, dtype=np.int64)), np.arange(len(device))),
            lambda plan: self.problem.violations(plan.placement.device),
        )

    @property
    def device(self) -> IntArray | None:
        """(N,) of the best placement."""
        return None if self.plan is None else self.plan.placement.device

    def result(self, reason: str = "") -> Result[Plan]:
        """As `Incumbent.result`; memory may rule out every placement."""
        if self.plan is None:
            self.impossible = self.impossible or why_no_plan(self.problem.step)
            self.lower_bound = np.inf if self.impossible else self.lower_bound
        return super().result(reason)


class StepSolver(ABC):
    """Finds the placement and the order of a step; plans to start from are offered first."""

    solves: ClassVar[tuple[type, ...]] = (StepPlanning,)

    def compile(self, problem: StepProblem) -> None:  # noqa: B027 (may do nothing)
        """Have kernels compiled, before the clock starts."""

    @abstractmethod
    def _plan(self, incumbent: StepIncumbent, budget: Budget) -> str:
        """Offer plans until `incumbent` is `budget.seconds` old.

        Returns what is to be said of the best of them, or why there is none.
        """

    def solve(
        self, problem: StepPlanning, budget: Budget, start: Sequence[Plan] = ()
    ) -> Result[Plan]:
        """As `agents.solver.Solver.solve`."""
        self.compile(problem.step)
        incumbent = StepIncumbent(problem.step)
        if incumbent.impossible:
            return incumbent.result()
        for plan in start:
            incumbent.offer_plan(plan)
        return incumbent.result(self._plan(incumbent, budget))


class StepAndPartitionSolver(StepSolver):
    """The same, of the max-load and the latency objective too."""

    solves = (StepPlanning, Partition)

    @abstractmethod
    def _partition(self, problem: PartitionProblem, budget: Budget) -> Result[Plan]:
        """The best placement found."""

    def solve(
        self, problem: StepPlanning | Partition, budget: Budget, start: Sequence[Plan] = ()
    ) -> Result[Plan]:
        if isinstance(problem, Partition):
            return self._partition(problem.problem, budget)
        return super().solve(problem, budget, start)
