"""Uniform static shares: every link is divided equally among the channels that run over it."""

from __future__ import annotations

from agents.bandwidth.rule import RuleOfShares
from envs.step.allocated import uniform_allocation
from envs.step.plans import BandwidthAllocation, Plan
from envs.step.problem import StepProblem


class UniformShares(RuleOfShares):
    """Equal shares whatever the traffic: what a cluster does that reserves without looking."""

    def shares(self, problem: StepProblem, plan: Plan) -> BandwidthAllocation:
        """`uniform_allocation`."""
        return uniform_allocation(problem.topology.network)
