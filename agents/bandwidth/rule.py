"""Planners of bandwidth that follow a rule, with no search."""

from __future__ import annotations

from abc import ABC, abstractmethod

from agents.bandwidth.incumbent import AllocationIncumbent
from agents.base import PlannerResult
from envs.step.plans import BandwidthAllocation, Plan
from envs.step.problem import StepProblem


class RuleOfShares(ABC):
    """One allocation for each plan."""

    @abstractmethod
    def shares(self, problem: StepProblem, plan: Plan) -> BandwidthAllocation:
        """The rates for `plan`, which can run on its devices."""

    def allocate(
        self,
        problem: StepProblem,
        plan: Plan,
        budget_s: float,
        deterministic_limit: int | None = None,
    ) -> PlannerResult:
        """As `BandwidthPlanner.allocate`; needs neither budget nor limit.

        The bound is the step in which every pipe has its links for itself.
        """
        incumbent = AllocationIncumbent(problem, plan)
        if not incumbent.impossible:
            incumbent.offer(self.shares(problem, plan))
        return incumbent.result()
