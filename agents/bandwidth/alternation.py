"""Alternation: a placement for the rates, then rates for the placement, and again."""

from __future__ import annotations

import math

from agents.bandwidth.joint_search.incumbent import JointIncumbent
from agents.base import BandwidthPlanner, Planner, PlannerResult
from envs.errors import InputError
from envs.step.allocated import allocated_problem
from envs.step.plans import BandwidthAllocation
from envs.step.problem import StepProblem

_LEAST_GAIN = 1e-9  # relative; a turn that gains less is in vain


class Alternation:
    """Coordinate descent between a planner of placements and one of bandwidth.

    The first turn places the step under uniform shares, so that the result is never slower than
    that plan with those shares. Every turn then gives the plan its rates, and the next one places
    for them. Rates that fit one placement leave nothing to pipes it does not use, and no placement
    would ever use them again: each turn therefore keeps `spared` of the uniform shares. It ends
    with the budget, or after `patience` turns in a row that gain nothing.

    `PlannerResult.lower_bound` is that of the step without any communication, so it holds for
    every plan with every allocation.

    Args:
        placement: places the step through pipes of given rates.
        bandwidth: allocates the rates of a plan.
        turn_share: of the budget (and of a deterministic limit), for one placement; within 0..1, 0
            left out.
        spared: part of the uniform shares that a placement finds; within 0..1, both left out.
        patience: turns.

    Raises:
        InputError: an argument is not what is said above.
    """

    def __init__(
        self,
        *,
        placement: Planner,
        bandwidth: BandwidthPlanner,
        turn_share: float,
        spared: float,
        patience: int,
    ) -> None:
        if not 0.0 < turn_share <= 1.0:
            raise InputError(f"{turn_share} is not above 0 and at most 1", field="turn_share")
        if not 0.0 < spared < 1.0:
            raise InputError(f"{spared} is not between 0 and 1", field="spared")
        if patience < 1:
            raise InputError(f"{patience} is below 1", field="patience")
        self.placement = placement
        self.bandwidth = bandwidth
        self.turn_share = turn_share
        self.spared = spared
        self.patience = patience

    def plan_jointly(
        self, problem: StepProblem, budget_s: float, deterministic_limit: int | None = None
    ) -> PlannerResult:
        """As `JointPlanner.plan_jointly`; the limit is shared out to the turns of `placement`.

        Raises:
            InputError: the topology has no bandwidth between some servers.
        """
        incumbent = JointIncumbent(
            problem,
            allocator=self.bandwidth,
            promising=1.0,
            allocation_s=budget_s,
            budget_s=budget_s,
        )
        limit = deterministic_limit and math.ceil(self.turn_share * deterministic_limit)
        rates, left, vain = incumbent.uniform, deterministic_limit or 0, 0
        evaluations, reason = 0, ""
        while incumbent.bound.memory_ok and vain < self.patience:
            seconds = budget_s - incumbent.seconds
            if (seconds <= 0.0 or incumbent.optimal) and incumbent.plan is not None:
                break
            turn_s = max(min(self.turn_share * budget_s, seconds), 0.0)
            placed = self.placement.plan(allocated_problem(problem, rates), turn_s, limit)
            evaluations, reason = evaluations + placed.evaluations, placed.reason
            if placed.plan is None:
                break
            before = incumbent.step_time
            incumbent.offer_with(placed.plan, rates)
            seconds = max(budget_s - incumbent.seconds, 0.0)
            found = self.bandwidth.allocate(problem, placed.plan, seconds)
            evaluations += found.evaluations
            if found.allocation is None:
                break
            incumbent.offer_with(placed.plan, found.allocation)
            vain = 0 if incumbent.step_time < before * (1.0 - _LEAST_GAIN) else vain + 1
            rates = self._towards(incumbent.uniform, found.allocation)
            left -= limit or 0
            if limit is not None and left <= 0:
                break
        return incumbent.result(evaluations=evaluations, reason=reason)

    def _towards(
        self, uniform: BandwidthAllocation, found: BandwidthAllocation
    ) -> BandwidthAllocation:
        """A mixture of two feasible allocations, which is feasible: links are linear."""
        return BandwidthAllocation(self.spared * uniform.rate + (1.0 - self.spared) * found.rate)
