"""Shares in proportion to the square root of traffic: best for sends that follow one another."""

from __future__ import annotations

import numpy as np

from agents.bandwidth.rule import RuleOfShares
from agents.bandwidth.traffic import PipeTraffic, shared_by_weight
from envs.step.plans import BandwidthAllocation, Plan
from envs.step.problem import StepProblem


def square_root_allocation(problem: StepProblem, plan: Plan) -> BandwidthAllocation:
    """Rates in proportion to the root of the bytes V that `plan` sends through each pipe.

    One sender of capacity C that sends V_k to receiver k, one after the other, each over a static
    share that nobody borrows, takes sum_k V_k / b_k. Subject to sum b = C that is least where
    V_k / b_k**2 is the same for all k: b_k = C sqrt(V_k) / sum sqrt(V), after (sum sqrt(V))**2 / C
    seconds (Kleinrock's square-root capacity assignment, *Communication Nets*, 1964). Multi-path
    and shared links as in `shared_by_weight`.
    """
    traffic = PipeTraffic.of(problem, plan)
    return shared_by_weight(problem.topology.network, np.sqrt(traffic.volume), traffic.transfers)


class SquareRootShares(RuleOfShares):
    """Best for sends that follow one another."""

    def shares(self, problem: StepProblem, plan: Plan) -> BandwidthAllocation:
        """`square_root_allocation`."""
        return square_root_allocation(problem, plan)
