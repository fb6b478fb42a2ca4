"""The best plan of one search: re-simulated, checked, and turned into a `PlannerResult`."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from agents.base import PlannerResult, Status
from agents.step.grouping import GroupedProblem
from agents.step.lower_bound import lower_bound
from envs.step.plans import Placement, Plan
from envs.step.problem import StepProblem
from envs.step.step import Simulator, StepSimulator

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

AT_THE_BOUND = 1e-9  # relative distance from the lower bound that counts as optimal


class Incumbent:
    """Keeps the fastest feasible plan of `problem` that a planner offers, and when it came.

    A plan is feasible when it has no violations, those of its peak memory included. Making
    the incumbent starts the clock and computes the lower bound; a planner returns `result()` at
    once when `bound.memory_ok` is false.
    """

    def __init__(self, problem: StepProblem) -> None:
        self._start = time.perf_counter()
        self.problem = problem
        self.simulator: Simulator = StepSimulator(problem)
        self.bound = lower_bound(problem)
        self.step_time = np.inf  # seconds
        self.plan: Plan | None = None
        self.evaluations = 0
        self.trajectory: list[tuple[float, float]] = []
        self._refusal = ""

    @property
    def seconds(self) -> float:
        """Seconds since the search began."""
        return time.perf_counter() - self._start

    @property
    def optimal(self) -> bool:
        """Whether the best plan is at the bound."""
        return bool(self.step_time <= self.bound.seconds * (1.0 + AT_THE_BOUND))

    def group(self, max_groups: int) -> GroupedProblem | None:
        """The problem in at most `max_groups` groups; None when there is nothing to search.

        `result()` then says why: no plan exists, or some group is too large for every device.
        """
        if not self.bound.memory_ok:
            return None
        grouped = GroupedProblem.of(self.problem, max_groups)
        self._refusal = grouped.too_large
        return None if grouped.too_large else grouped

    def offer(self, device: IntArray, order: IntArray | None = None) -> FloatArray:
        """Simulate placement `device` (N,) on the problem and keep it if it is the best so far.

        Without `order` the simulator's rule gives it. Returns (D,) bytes by which the peak memory
        exceeds each device: all zero unless a faster plan was refused for its memory.
        """
        self.evaluations += 1
        devices = self.problem.topology.num_devices
        step_time = self.simulator.step_time(device, order)
        if step_time >= self.step_time:
            return np.zeros(devices)
        if order is None:
            order = self.simulator.order(device)
        plan = Plan(Placement(np.array(device, dtype=np.int64)), np.array(order, dtype=np.int64))
        violations = plan.violations(self.problem, self.simulator)
        if violations:
            self._refusal = "; ".join(violations)
            peak = self.simulator.run(device, order).peak_memory
            return np.maximum(peak - self.problem.capacity, 0.0)
        self.plan, self.step_time = plan, step_time
        self.trajectory.append((self.seconds, step_time))
        return np.zeros(devices)

    def result(
        self, *, evaluations: int = 0, reason: str = "", without_plan: Status = "limit"
    ) -> PlannerResult:
        """What the search found; `evaluations` are simulations made elsewhere (fused graphs).

        `without_plan` is the status when nothing feasible was offered: `infeasible` where the
        planner has tried all plans of its kind. A problem that is proved to have no plan is
        `infeasible` in any case.
        """
        status: Status = without_plan
        if self.plan is not None:
            status = "optimal" if self.optimal else "feasible"
        elif not self.bound.memory_ok:
            status, reason = "infeasible", self.bound.reason
        else:
            reason = "; ".join(part for part in (reason, self._refusal) if part)
            reason = reason or "no plan was tried"
        return PlannerResult(
            plan=self.plan,
            status=status,
            step_time=self.step_time,
            seconds=self.seconds,
            lower_bound=self.bound.seconds,
            evaluations=self.evaluations + evaluations,
            reason=reason,
            trajectory=self.trajectory,
        )
