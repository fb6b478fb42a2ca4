"""The best placement, order and allocation of one search, and its refinement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from agents.bandwidth.joint_search.pipes import Pipes, ResponsiveSimulator
from agents.placement.integer_program.refinement import SimulatedRefinement
from agents.solver import Budget
from agents.step.grouping import GroupedProblem
from agents.step.incumbent import StepIncumbent
from agents.step.problems import BandwidthPlanner, BandwidthPlanning
from envs.arrays import FloatArray, IntArray
from envs.step.allocated import allocated_problem, uniform_allocation
from envs.step.plans import BandwidthAllocation, Placement, Plan
from envs.step.problem import StepProblem
from envs.step.ready import ReadySimulator
from envs.step.step import Simulator, StepSimulator

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
        self.pipes = Pipes.of(self.problem, whole.topology)
        self.simulator = ResponsiveSimulator(self.problem, self.pipes)
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
        device = np.array(device, dtype=np.int64)
        if order is None:
            order = self.simulator.order(device)
        plan = Plan(Placement(device), np.array(order, dtype=np.int64))
        self.evaluations += 1
        if self.simulator.step_time(device, plan.order) > self.promising * self.step_time:
            return np.zeros(len(self.problem.capacity))
        key = (device.tobytes(), plan.order.tobytes())
        if key in self._allocated:
            return np.zeros(len(self.problem.capacity))
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
        self.evaluations += 1
        allocated = allocated_problem(self.whole, allocation)
        simulator = StepSimulator(allocated)
        device = plan.placement.device
        step_time = simulator.step_time(device, plan.order)
        made = replace(plan, allocation=allocation)
        if self.take(step_time, lambda: made, lambda plan: plan.violations(allocated, simulator)):
            return np.zeros(len(self.problem.capacity))
        return self.excess(simulator, device, plan.order)


class JointRefinement(SimulatedRefinement):
    """`SimulatedRefinement` with the rates decided anew for every placement it prices.

    A move changes the traffic, and with it the rates: a `ResponsiveSimulator` plays the fused graph
    in `descend` and the whole one when a placement is offered. The neighbourhood MILPs of `kick`
    decide rates as `formulation` says.
    """

    incumbent: JointIncumbent

    def simulator(self, grouped: GroupedProblem) -> Simulator:
        """Plays `grouped` at the rates that placements lead to."""
        return ResponsiveSimulator(grouped.problem, self.incumbent.pipes.grouped(grouped))

    def ready_simulator(self, device: IntArray) -> Simulator:
        """What a dynamic runtime does at the rates that `device` (N,) asks for."""
        allocation = self.incumbent.simulator.allocation(device)
        return ReadySimulator(allocated_problem(self.incumbent.whole, allocation))
