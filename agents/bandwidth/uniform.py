"""Uniform static shares: every link is divided equally among the channels that run over it."""

from __future__ import annotations

from agents.bandwidth.incumbent import AllocationIncumbent
from agents.base import PlannerResult
from envs.network.allocated import uniform_allocation
from envs.plans import Plan
from envs.simulation.problem import StepProblem


class UniformShares:
    """Equal shares whatever the traffic: what a cluster does that reserves without looking."""

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
        incumbent.offer(uniform_allocation(problem.topology.network))
        return incumbent.result()
