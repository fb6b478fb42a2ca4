"""Everything on one device: the yardstick of every speed-up."""

from __future__ import annotations

import numpy as np

from agents.base import PlannerResult
from agents.placement.incumbent import Incumbent
from envs.step.problem import StepProblem


class SingleDevice:
    """The fastest device that can hold the whole step by itself; all devices are tried.

    When none can, the status is `infeasible` and the reason says by how many bytes the step does
    not fit the device that comes closest.
    """

    def plan(
        self, problem: StepProblem, budget_s: float, deterministic_limit: int | None = None
    ) -> PlannerResult:
        """As `Planner.plan`; needs neither budget nor limit: there are D plans."""
        incumbent = Incumbent(problem)
        if not incumbent.bound.memory_ok:
            return incumbent.result()
        count = problem.graph.num_operators
        refused: list[tuple[float, str]] = []
        for index, device in enumerate(problem.topology.devices):
            if np.isinf(problem.op_seconds[:, index]).any():
                refused.append((np.inf, f"{device.name!r} cannot run every operator"))
                continue
            excess = float(incumbent.offer(np.full(count, index, dtype=np.int64)).sum())
            short = f"{device.name!r} has {excess:.0f} bytes too few at the peak"
            refused.append((excess, f"does not fit: {short}"))
        return incumbent.result(
            reason="" if incumbent.plan is not None else min(refused)[1],
            without_plan="infeasible",
        )
