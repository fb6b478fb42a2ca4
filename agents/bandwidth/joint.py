"""Fusion + co-location + MILP over placement and rates: the strongest joint planner."""

from __future__ import annotations

import math
from collections.abc import Sequence

from agents.bandwidth.joint_search.incumbent import JointIncumbent
from agents.bandwidth.joint_search.rates import RateFormulation
from agents.bandwidth.joint_search.refinement import JointRefinement
from agents.base import BandwidthPlanner, Planner, PlannerResult
from agents.placement.fusion_milp import FusionMilp
from agents.placement.integer_program.refinement import compile_kernels
from envs.errors import InputError
from envs.step.problem import StepProblem


class JointMilp:
    """Decides placement, order and the rates of all channels together.

    1. *Start.* `start` places the step under uniform static shares, for a share of the budget. Its
       plan with those shares is the first incumbent, so that the result is never slower than it.
    2. *Coarse.* The search of `FusionMilp`, with two things changed: its MILPs (HiGHS, own
       solutions only) also choose a level of rate for every pipe (`RateModel`), and its refinement
       prices every placement at the rates its traffic asks for (`JointRefinement`). What is
       promising gets the rates that `allocator` finds for it, on all operators.
    3. *Neighbourhoods.* Kicks away from the best plan and descents from there, likewise, until the
       budget ends.

    Placement and rates so never wait for one another: every placement that is looked at has rates
    of its own, and a placement that gains nothing at fixed rates may gain with its own. Rates are
    per channel: a pipe has as much of several links as its channels can carry together.

    `PlannerResult.lower_bound` is that of the step without any communication
    (`agents.placement.lower_bound`), so it holds for every placement and order with every
    allocation; nothing sharper is claimed. `PlannerResult.reason` states what HiGHS proved of the
    last coarse model, for rates at its levels.

    Args:
        start: places the step under uniform shares.
        start_share: of the budget, for `start`; within 0..1, both left out.
        coarse: groups of the coarse models, one after the other.
        levels: groups at which placements are refined.
        rates: levels of rate in the MILP, shares of what a pipe alone could carry, ascending within
            0..1, 0 left out.
        gap: relative, at which a round of HiGHS ends.
        at_once: disjunctions of each kind that one solution adds, at most.
        allocator: finds the rates of a plan.
        promising: times the best step time, at least 1; slower plans are not given to `allocator`.
        allocation_s: seconds of one call of `allocator`, at most.
        seed: of HiGHS and of what is drawn at random.

    Raises:
        InputError: an argument is not what is said above.
    """

    def __init__(
        self,
        *,
        start: Planner,
        start_share: float,
        coarse: Sequence[int],
        levels: Sequence[int],
        rates: Sequence[float],
        gap: float,
        at_once: int,
        allocator: BandwidthPlanner,
        promising: float,
        allocation_s: float,
        seed: int,
    ) -> None:
        if not coarse:
            raise InputError("at least one number of groups is needed", field="coarse")
        if not 0.0 < start_share < 1.0:
            raise InputError(f"{start_share} is not between 0 and 1", field="start_share")
        if not rates or rates[0] <= 0.0 or rates[-1] > 1.0 or list(rates) != sorted(set(rates)):
            raise InputError(f"{list(rates)} do not ascend within 0..1", field="rates")
        if not 0.0 <= gap < 1.0:
            raise InputError(f"{gap} is not within 0..1", field="gap")
        if at_once < 1:
            raise InputError(f"{at_once} is below 1", field="at_once")
        if not promising >= 1.0:
            raise InputError(f"{promising} is below 1", field="promising")
        if not allocation_s > 0.0:
            raise InputError(f"{allocation_s} is not positive", field="allocation_s")
        self.start = start
        self.start_share = start_share
        self.coarse = tuple(coarse)
        self.levels = tuple(levels)
        self.rates = tuple(rates)
        self.gap = gap
        self.at_once = at_once
        self.allocator = allocator
        self.promising = promising
        self.allocation_s = allocation_s
        self.seed = seed

    def plan_jointly(
        self, problem: StepProblem, budget_s: float, deterministic_limit: int | None = None
    ) -> PlannerResult:
        """As `JointPlanner.plan_jointly`; the limit counts branch-and-bound nodes.

        Raises:
            InputError: the topology has no bandwidth between some servers.
        """
        compile_kernels(problem)
        incumbent = JointIncumbent(
            problem,
            allocator=self.allocator,
            promising=self.promising,
            allocation_s=self.allocation_s,
            budget_s=budget_s,
        )
        if not incumbent.bound.memory_ok:
            return incumbent.result()
        uniform = incumbent.problem
        limit = deterministic_limit and math.ceil(self.start_share * deterministic_limit)
        first = self.start.plan(uniform, self.start_share * budget_s, limit)
        if first.plan is not None:
            incumbent.offer_with(first.plan, incumbent.uniform)
            incumbent.offer(first.plan.placement.device, first.plan.order)
        formulation = RateFormulation(incumbent.pipes, self.rates, self.gap, self.at_once)
        refinement = JointRefinement(
            incumbent, levels=self.levels, kick_groups=self.coarse[-1],
            formulation=formulation, seed=self.seed,
        )  # fmt: skip
        planner = FusionMilp(
            coarse=self.coarse, levels=self.levels, formulation=formulation,
            warm_start=None, seed=self.seed,
        )  # fmt: skip
        if first.plan is not None:
            refinement.descend(first.plan.placement.device, budget_s)
        left = deterministic_limit and max(deterministic_limit - (limit or 0), 1)
        reason = planner.search(incumbent, refinement, budget_s, left, None)
        return incumbent.result(evaluations=refinement.simulations, reason=reason)
