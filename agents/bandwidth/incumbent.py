"""The best allocation of one search: re-simulated, checked, and turned into a `PlannerResult`."""

from __future__ import annotations

import time

import numpy as np

from agents.bandwidth.piped_step import PATH_ROUNDING, PipedStep
from agents.bandwidth.rules import channel_capacity
from agents.base import PlannerResult, Status
from agents.step.incumbent import AT_THE_BOUND
from envs.step.allocated import allocated_problem
from envs.step.plans import LINK_SLACK, BandwidthAllocation, Plan
from envs.step.problem import StepProblem
from envs.step.step import StepSimulator


class AllocationIncumbent:
    """Keeps the fastest allocation to `plan` that a planner offers, and when it came.

    An allocation is feasible when it breaks no rule of its own and the plan, simulated through
    pipes of those rates, has no violations, those of its peak memory included: the peak depends on
    when things happen. Making the incumbent starts the clock.

    Args:
        problem: the step, on the topology whose links are shared out.
        plan: its placement and order.
        gap: relative distance from the bound that counts as optimal.
    """

    def __init__(self, problem: StepProblem, plan: Plan, gap: float = AT_THE_BOUND) -> None:
        self._start = time.perf_counter()
        self.problem = problem
        self.plan = plan
        self.gap = gap
        self.network = problem.topology.network
        self.impossible = "; ".join(plan.placement.violations(problem))
        self.step: PipedStep | None = None
        self.lower_bound = np.inf
        if not self.impossible:
            self.step = PipedStep(problem, plan)
            self.lower_bound = self._alone(self.step)
        self.allocation: BandwidthAllocation | None = None
        self.step_time = np.inf  # seconds
        self.evaluations = 0
        self.trajectory: list[tuple[float, float]] = []
        self._refusal = ""

    @property
    def seconds(self) -> float:
        """Seconds since the search began."""
        return time.perf_counter() - self._start

    @property
    def optimal(self) -> bool:
        """Whether the best allocation is at the bound."""
        return bool(self.step_time <= self.lower_bound * (1.0 + self.gap))

    def offer(self, allocation: BandwidthAllocation) -> None:
        """Simulate the plan under `allocation`, and keep it if it is feasible and the best so far.

        Raises:
            InputError: the allocation breaks a rule of its own.
        """
        if self.impossible:
            return
        self.evaluations += 1
        allocated = allocated_problem(self.problem, allocation)
        simulator = StepSimulator(allocated)
        step_time = simulator.step_time(self.plan.placement.device, self.plan.order)
        if step_time >= self.step_time:
            return
        violations = self.plan.violations(allocated, simulator)
        if violations:
            self._refusal = "; ".join(violations)
            return
        self._refusal = ""
        self.allocation, self.step_time = allocation, step_time
        self.trajectory.append((self.seconds, step_time))

    def prove(self, lower_bound: float) -> None:
        """Take note of a bound in seconds on the step under every allocation."""
        self.lower_bound = max(self.lower_bound, lower_bound)

    def result(self, *, evaluations: int = 0, reason: str = "") -> PlannerResult:
        """What the search found; `evaluations` are longest paths computed elsewhere."""
        status: Status
        if self.allocation is not None and self.optimal:
            status = "optimal"
        elif self.impossible:
            status, reason = "infeasible", self.impossible
        else:
            status = "limit" if self.allocation is None else "feasible"
            refused = f"the fastest allocation was refused: {self._refusal}"
            reason = "; ".join(part for part in (reason, refused if self._refusal else "") if part)
        return PlannerResult(
            plan=None if self.allocation is None else self.plan,
            status=status,
            step_time=self.step_time,
            seconds=self.seconds,
            lower_bound=min(self.lower_bound, self.step_time),
            evaluations=self.evaluations + evaluations,
            reason=reason,
            trajectory=self.trajectory,
            allocation=self.allocation,
        )

    def _alone(self, step: PipedStep) -> float:
        """Seconds of the step when every pipe has its links for itself: a bound."""
        alone = BandwidthAllocation(channel_capacity(self.network) * (1.0 + LINK_SLACK))
        path = step.longest_path(step.slowness(alone.pipes(self.network)))
        return path.seconds * (1.0 - PATH_ROUNDING)
