"""The best placement of one partition search: re-evaluated, checked, and when it came."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from agents.base import PlannerResult, Status
from agents.step.incumbent import AT_THE_BOUND
from agents.step.lower_bound import lower_bound
from envs.partition.problem import PartitionProblem
from envs.step.plans import Placement, Plan

IntArray = NDArray[np.int64]


class PartitionIncumbent:
    """Keeps the best feasible placement of `problem` that a search offers.

    Making the incumbent starts the clock. `bound` is what is proved so far: seconds below which no
    placement's objective is.
    """

    def __init__(self, problem: PartitionProblem) -> None:
        self._start = time.perf_counter()
        self.problem = problem
        self.objective = np.inf  # seconds
        self.device: IntArray | None = None  # (N,)
        self.bound = 0.0  # seconds
        self.trajectory: list[tuple[float, float]] = []
        self._refusal = ""

    @property
    def seconds(self) -> float:
        """Seconds since the search began."""
        return time.perf_counter() - self._start

    @property
    def optimal(self) -> bool:
        """Whether the best placement is at the bound."""
        return self.objective <= self.bound * (1.0 + AT_THE_BOUND)

    def offer(self, device: IntArray) -> None:
        """Keep placement `device` (N,) if it is feasible and the best so far."""
        objective = self.problem.objective(device)
        if objective >= self.objective:
            return
        violations = self.problem.violations(device)
        if violations:
            self._refusal = "; ".join(violations)
            return
        self.device, self.objective = np.array(device, dtype=np.int64), objective
        self.trajectory.append((self.seconds, objective))

    def prove(self, seconds: float) -> None:
        """Take note of a proved lower bound."""
        self.bound = max(self.bound, seconds)

    def result(self, *, evaluations: int = 0, impossible: str = "") -> PlannerResult:
        """What the search found; `impossible` says why there is no placement, where proved."""
        status: Status = "limit"
        plan, reason = None, ""
        if self.device is not None:
            status = "optimal" if self.optimal else "feasible"
            plan = Plan(Placement(self.device), np.arange(len(self.device), dtype=np.int64))
        elif not impossible:
            memory = lower_bound(self.problem.step)
            impossible = "" if memory.memory_ok else memory.reason
            reason = self._refusal or "no feasible placement was found"
        if impossible:
            status, reason, self.bound = "infeasible", impossible, np.inf
        return PlannerResult(
            plan=plan,
            status=status,
            step_time=self.objective,
            seconds=self.seconds,
            lower_bound=self.bound,
            evaluations=evaluations,
            reason=reason,
            trajectory=self.trajectory,
        )
