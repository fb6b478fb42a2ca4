"""Placement alone: a planner of placements under static shares that are given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from agents.base import Planner, PlannerResult
from agents.placement.incumbent import AT_THE_BOUND
from agents.placement.lower_bound import lower_bound
from envs.hardware.network import Network
from envs.step.allocated import allocated_problem
from envs.step.plans import BandwidthAllocation
from envs.step.problem import StepProblem


class PlacementAlone:
    """Places a step for static shares of the links that nobody decides: the yardstick of joint.

    Args:
        placement: plans on the topology through pipes of those shares, with the whole budget.
        allocation: gives every channel its rate, for instance
            `envs.step.allocated.uniform_allocation`.
    """

    def __init__(
        self, *, placement: Planner, allocation: Callable[[Network], BandwidthAllocation]
    ) -> None:
        self.placement = placement
        self.allocation = allocation

    def plan_jointly(
        self, problem: StepProblem, budget_s: float, deterministic_limit: int | None = None
    ) -> PlannerResult:
        """As `JointPlanner.plan_jointly`; the limit is that of `placement`.

        The bound is the step without communication: what `placement` proves holds for these shares
        only.

        Raises:
            InputError: the allocation breaks a rule of its own.
        """
        allocation = self.allocation(problem.topology.network)
        found = self.placement.plan(
            allocated_problem(problem, allocation), budget_s, deterministic_limit
        )
        bound = lower_bound(problem).seconds
        if found.plan is None:
            return replace(found, lower_bound=bound)
        at_bound = found.step_time <= bound * (1.0 + AT_THE_BOUND)
        return replace(
            found,
            lower_bound=bound,
            status="optimal" if at_bound else "feasible",
            allocation=allocation,
        )
