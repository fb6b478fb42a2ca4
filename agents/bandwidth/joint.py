"""Placement and reserved rates together: placement alone under static shares, and in turns."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Gt, Le, Lt

from agents.bandwidth.convex import ConvexRates
from agents.bandwidth.pipes import ResponsiveSimulator
from agents.bandwidth.rules import offer_rates
from agents.placement.fusion_milp import FusionMilp
from agents.solver import Budget, Result
from agents.step.incumbent import AT_THE_BOUND, StepIncumbent
from agents.step.lower_bound import lower_bound
from agents.step.problems import (
    BandwidthPlanner,
    BandwidthPlanning,
    JointPlanning,
    Planner,
    StepPlanning,
)
from envs.arrays import FloatArray, IntArray
from envs.bounds import Count, bounded
from envs.hardware.network import Network
from envs.step.allocated import allocated_problem, uniform_allocation
from envs.step.plans import BandwidthAllocation, Placement, Plan
from envs.step.problem import StepProblem

_KNOWN = 4096  # plans whose allocation is remembered


class JointIncumbent(StepIncumbent):
    """Keeps the fastest feasible plan with its allocation.

    What is offered is a placement, with or without an order, as to any `StepIncumbent`: it is
    simulated at the rates its traffic asks for (`ResponsiveSimulator`), and where that is promising
    `allocator` finds better ones for it. Both allocations are then simulated on the problem itself,
    on all operators, and checked: rates, placement, order and peak memory.

    `problem` is the step under uniform shares: what planners fuse, and where they find devices,
    tensors and pipes. The lower bound is that of placements without communication, so it holds for
    every plan with every allocation.

    Args:
        whole: the step, on the topology whose links are shared out.
        start: plans that are offered first.
        allocator: finds the rates of a plan.
        promising: times the best step time; plans that take longer get no allocation of their own.
        allocation_s: seconds of one call of `allocator`, at most.
        budget_s: seconds of the search, after which `allocator` is not called any more.
    """

    simulator: ResponsiveSimulator

    def __init__(
        self,
        whole: StepProblem,
        start: Sequence[Plan] = (),
        *,
        allocator: BandwidthPlanner,
        promising: float,
        allocation_s: float,
        budget_s: float,
    ) -> None:
        uniform = uniform_allocation(whole.topology.network)
        super().__init__(allocated_problem(whole, uniform))
        self.whole = whole
        self.uniform = uniform
        self.simulator = ResponsiveSimulator(self.problem, whole.topology)
        self.allocator = allocator
        self.promising = promising
        self.allocation_s = allocation_s
        self.budget_s = budget_s
        self._allocated: dict[tuple[bytes, bytes], None] = {}
        for plan in start if not self.impossible else ():
            self.offer(plan.placement.device, plan.order)

    def offer(self, device: IntArray, order: IntArray | None = None) -> FloatArray:
        """Simulate placement `device` (N,) at rates that suit it; keep it if it is the best so far.

        Returns (D,) bytes as `StepIncumbent.offer`.
        """
        nothing = np.zeros(len(self.problem.capacity))
        device = np.array(device, dtype=np.int64)
        if order is None:
            order = self.simulator.order(device)
        plan = Plan(Placement(device), np.array(order, dtype=np.int64))
        self.evaluations += 1
        if self.simulator.step_time(device, plan.order) > self.promising * self.step_time:
            return nothing
        key = (device.tobytes(), plan.order.tobytes())
        if key in self._allocated:
            return nothing
        excess = self.offer_with(plan, self.simulator.allocation(device))
        if excess.any():
            return excess
        if len(self._allocated) < _KNOWN:
            self._allocated[key] = None
        seconds = min(self.allocation_s, self.budget_s - self.seconds)
        if seconds <= 0.0:
            return excess
        found = self.allocator.solve(BandwidthPlanning(self.whole, plan), Budget(seconds))
        self.evaluations += found.evaluations
        allocation = found.solution and found.solution.allocation
        if isinstance(allocation, BandwidthAllocation):
            return self.offer_with(plan, allocation)
        return excess

    def offer_with(self, plan: Plan, allocation: BandwidthAllocation) -> FloatArray:
        """Simulate `plan` under `allocation` and keep both if they are the best so far.

        Returns (D,) bytes as `StepIncumbent.offer`.

        Raises:
            InputError: the allocation breaks a rule of its own.
        """
        taken, simulator = offer_rates(self, self.whole, plan, allocation)
        if taken:
            return np.zeros(len(self.problem.capacity))
        return self.excess(simulator, plan.placement.device, plan.order)

    def mixed(self, found: BandwidthAllocation, spared: float) -> BandwidthAllocation:
        """`found`, with a share spared for uniform rates; feasible, as links are linear."""
        return BandwidthAllocation(spared * self.uniform.rate + (1.0 - spared) * found.rate)


@dataclass(frozen=True, eq=False, kw_only=True)
class PlacementAlone:
    """Places a step for fixed uniform shares of the links: the yardstick of joint.

    Guarantees:
        Those of the planner that places.

    Source:
        The yardstick: what a cluster does that shares its network without looking.

    Args:
        placement: plans on the topology through pipes of those shares, with the whole budget.
        allocation: gives every channel its rate, for instance
            `envs.step.allocated.uniform_allocation`.
    """

    solves: ClassVar = (JointPlanning,)

    placement: Planner = FusionMilp()
    allocation: Callable[[Network], BandwidthAllocation] = uniform_allocation

    def solve(
        self, problem: JointPlanning, budget: Budget, start: Sequence[Plan] = ()
    ) -> Result[Plan]:
        """As `agents.solver.Solver.solve`; the budget is that of `placement`.

        The bound is the step without communication: what `placement` proves holds for these shares
        only.

        Raises:
            InputError: the allocation breaks a rule of its own.
        """
        step = problem.step
        allocation = self.allocation(step.topology.network)
        shared = StepPlanning(allocated_problem(step, allocation))
        found = self.placement.solve(shared, budget, start)
        bound = lower_bound(step).seconds
        if found.solution is None:
            return replace(found, bound=bound)
        at_bound = found.value <= bound * (1.0 + AT_THE_BOUND)
        return replace(
            found,
            solution=replace(found.solution, allocation=allocation),
            bound=bound,
            status="optimal" if at_bound else "feasible",
        )


Inside = Annotated[float, Gt(0.0), Lt(1.0)]

_LEAST_GAIN = 1e-9  # relative; a turn that gains less is in vain


@bounded
@dataclass(frozen=True, eq=False, kw_only=True)
class Alternation:
    """Coordinate descent between a planner of placements and one of bandwidth.

    The first turn places the step under uniform shares, so that the result is never slower than
    that plan with those shares. Every turn then gives the plan its rates, and the next one places
    for them. Rates that fit one placement leave nothing to pipes it does not use, and no placement
    would ever use them again: each turn therefore keeps `spared` of the uniform shares. It ends
    with the budget, or after `patience` turns in a row that gain nothing.

    `Result.bound` is that of the step without any communication, so it holds for
    every plan with every allocation.

    Guarantees:
        Never slower than its first placement under uniform shares.

    Source:
        Coordinate descent, the obvious method; own work.

    Args:
        placement: places the step through pipes of given rates.
        bandwidth: allocates the rates of a plan.
        turn_share: of the budget (and of a deterministic limit), for one placement; within 0..1, 0
            left out.
        spared: part of the uniform shares that a placement finds; within 0..1, both left out.
        patience: turns.
    """

    solves: ClassVar = (JointPlanning,)

    placement: Planner = FusionMilp()
    bandwidth: BandwidthPlanner = ConvexRates(gap=1e-6)
    turn_share: Annotated[float, Gt(0.0), Le(1.0)] = 0.2
    spared: Inside = 0.2
    patience: Count = 3

    def solve(
        self, problem: JointPlanning, budget: Budget, start: Sequence[Plan] = ()
    ) -> Result[Plan]:
        """As `agents.solver.Solver.solve`; the limit is shared out to the turns of `placement`.

        Raises:
            InputError: the topology has no bandwidth between some servers.
        """
        budget_s, step = budget.seconds, problem.step
        incumbent = JointIncumbent(
            step,
            start,
            allocator=self.bandwidth,
            promising=1.0,
            allocation_s=budget_s,
            budget_s=budget_s,
        )
        limit = budget.evaluations and math.ceil(self.turn_share * budget.evaluations)
        rates, left, vain = incumbent.uniform, budget.evaluations or 0, 0
        reason = ""
        while not incumbent.impossible and vain < self.patience:
            seconds = budget_s - incumbent.seconds
            if (seconds <= 0.0 or incumbent.optimal) and incumbent.plan is not None:
                break
            turn_s = max(min(self.turn_share * budget_s, seconds), 0.0)
            shared = StepPlanning(allocated_problem(step, rates))
            placed = self.placement.solve(shared, Budget(turn_s, limit))
            plan, reason = placed.solution, placed.reason
            incumbent.evaluations += placed.evaluations
            if plan is None:
                break
            before = incumbent.step_time
            incumbent.offer_with(plan, rates)
            seconds = max(budget_s - incumbent.seconds, 0.0)
            found = self.bandwidth.solve(BandwidthPlanning(step, plan), Budget(seconds))
            incumbent.evaluations += found.evaluations
            allocation = found.solution and found.solution.allocation
            if not isinstance(allocation, BandwidthAllocation):
                break
            incumbent.offer_with(plan, allocation)
            vain = 0 if incumbent.step_time < before * (1.0 - _LEAST_GAIN) else vain + 1
            rates = incumbent.mixed(allocation, self.spared)
            left -= limit or 0
            if limit is not None and left <= 0:
                break
        return incumbent.result(reason)
