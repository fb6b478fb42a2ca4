"""Learned policies that place a step and share its network, then a search in turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from agents.bandwidth.convex import ConvexRates
from agents.bandwidth.joint import JointIncumbent
from agents.bandwidth.shipped import allocator_folder
from agents.placement.policy import Answer, LearnedPlanner
from agents.solver import Budget, Result
from agents.step.fitting import Fitting
from agents.step.grouping import GroupedProblem
from agents.step.incumbent import StepIncumbent
from agents.step.problems import BandwidthPlanner, JointPlanning
from envs.arrays import IntArray
from envs.bounds import Positive, Share, bounded
from envs.joint.piped import PipedGroups
from envs.step.allocated import allocated_problem
from envs.step.plans import BandwidthAllocation, Placement, Plan
from envs.step.price import BestOrder
from models.export.allocator import OnnxAllocator


@bounded
@dataclass(frozen=True, eq=False, kw_only=True)
class LearnedJoint:
    """Places a step and gives its pipes levels by policies, then searches on from that.

    The placer composes plans for the step alone on its network; for each the allocators of all
    servers choose the levels of their pipes. The compiled simulator prices plans with their rates,
    and the best that fits is the first incumbent. From there local search moves groups and order in
    turns: at rates near those of the best plan, and on the network as it is, where no share is
    decided. What a turn finds, and the start, gets the rates that its traffic asks for, and those
    that `allocation` finds.

    Guarantees:
        Never slower than what the policies decide alone, where that fits.

    Source:
        Own work.

    Args:
        placement: the placer, and the search; no search: the policies decide alone.
        allocator: the allocators' folder, or the name of a shipped one; None: equal weights for all
            pipes in use.
        allocation: finds the rates of a plan.
        allocation_s: seconds of one call of it, at most.
        promising: times the best step time: plans up to there are given to it.
        turn_s: seconds of one search.
        spared: part of the uniform shares that a search at rates finds.

    Raises:
        InputError: a folder is no such policy's.
    """

    solves: ClassVar = (JointPlanning,)

    placement: LearnedPlanner
    allocator: str | None = "any_network"
    allocation: BandwidthPlanner = ConvexRates(gap=1e-4, rounds=100)
    allocation_s: Positive = 0.5
    promising: Positive = 1.03
    turn_s: Positive = 0.3
    spared: Share = 0.2

    def __post_init__(self) -> None:
        _ = self.network  # refused here, if it is no such policy's

    @cached_property
    def network(self) -> OnnxAllocator | None:
        """The allocators' policy."""
        return None if self.allocator is None else OnnxAllocator(allocator_folder(self.allocator))

    def solve(
        self, problem: JointPlanning, budget: Budget, start: Sequence[Plan] = ()
    ) -> Result[Plan]:
        """As `agents.solver.Solver.solve`.

        `Budget.evaluations` counts the moves proposed in each of two turns.

        Raises:
            InputError: the topology has no bandwidth between some servers.
        """
        step = problem.step
        incumbent = JointIncumbent(
            step,
            start,
            allocator=self.allocation,
            promising=self.promising,
            allocation_s=self.allocation_s,
            budget_s=budget.seconds,
        )
        if incumbent.impossible:
            return incumbent.result()
        grouped = GroupedProblem.of(step, self.placement.groups)
        answer = Answer(self.placement, grouped)
        plans, evaluations = answer.best_first()
        piped = PipedGroups(step, grouped.fusion)
        ranked = []
        for number, device in enumerate(plans):
            traffic = piped.traffic(device)
            rates = piped.even(traffic.used)
            if self.network is not None:
                rates = piped.allocation(self.network.levels(traffic), traffic.used)
            price = piped.price(device, rates)
            ranked.append((price.excess, price.seconds, number, rates))
        ranked.sort(key=lambda plan: plan[:3])
        devices = [grouped.fusion.expand(plans[number]) for *_, number, _ in ranked]
        for device, (*_, rates) in zip(devices, ranked, strict=True):
            if incumbent.plan is None:
                order = BestOrder(allocated_problem(step, rates)).order(device)
                incumbent.offer_with(Plan(Placement(device), order), rates)
        if incumbent.plan is None:
            fitting = Fitting(incumbent, budget)
            fitting.run(grouped, answer.with_less_room)
            fitting.insist()
        evaluations += self._improve(incumbent, devices, budget) + len(ranked)
        incumbent.evaluations += evaluations
        return incumbent.result()

    def _improve(self, incumbent: JointIncumbent, plans: Sequence[IntArray], budget: Budget) -> int:
        """Placement and order, rates for them, in turns; the moves judged."""
        search, judged, turns = self.placement.search, 0, 0
        if search is not None and incumbent.plan is not None:
            incumbent.offer(incumbent.plan.placement.device, incumbent.plan.order)
        while search is not None and not incumbent.optimal:
            left = budget.seconds - incumbent.seconds
            if left < (self.turn_s / 2.0 if turns and incumbent.plan is not None else 0.0):
                break
            step, rates, best = incumbent.whole, None, incumbent.plan
            given = best and best.allocation
            if turns % 2 == 0 and isinstance(given, BandwidthAllocation):
                rates = incumbent.mixed(given, self.spared)
                step = allocated_problem(step, rates)
            turn = StepIncumbent(step)
            if best is not None:
                plans = [best.placement.device]
                turn.offer_plan(best)
            spell = replace(budget, seconds=min(self.turn_s, left))
            judged += search.improve(turn, spell, plans)
            turns += 1
            if turn.plan is not None:
                if rates is not None:
                    incumbent.offer_with(turn.plan, rates)
                incumbent.offer(turn.plan.placement.device, turn.plan.order)
            if budget.evaluations is not None and turns == 2:
                break
        return judged
