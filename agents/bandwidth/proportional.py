"""Shares in proportion to traffic: best for transfers that begin together."""

from __future__ import annotations

from agents.bandwidth.rule import RuleOfShares
from agents.bandwidth.traffic import PipeTraffic, shared_by_weight
from envs.step.plans import BandwidthAllocation, Plan
from envs.step.problem import StepProblem


def proportional_allocation(problem: StepProblem, plan: Plan) -> BandwidthAllocation:
    """Rates in proportion to the bytes V that `plan` sends through each pipe.

    One sender of capacity C that sends V_k to receiver k, all at once, is done when the last is:
    max_k V_k / b_k subject to sum b = C is least where all end together, b_k = C V_k / sum V, after
    sum V / C seconds. Multi-path and shared links as in `shared_by_weight`.
    """
    traffic = PipeTraffic.of(problem, plan)
    return shared_by_weight(problem.topology.network, traffic.volume, traffic.transfers)


class ProportionalShares(RuleOfShares):
    """Best for transfers that begin together."""

    def shares(self, problem: StepProblem, plan: Plan) -> BandwidthAllocation:
        """`proportional_allocation`."""
        return proportional_allocation(problem, plan)
