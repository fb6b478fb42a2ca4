"""Rates by a rule, with no search: uniform, by traffic, by the root of traffic."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from agents.bandwidth.piped_step import PATH_ROUNDING, PipedStep
from agents.solver import UNLIMITED, Budget, Result
from agents.step.incumbent import AT_THE_BOUND, Incumbent
from agents.step.problems import BandwidthPlanning
from envs.arrays import FloatArray, IntArray
from envs.hardware.network import Network
from envs.step.allocated import allocated_problem, uniform_allocation, weighted_allocation
from envs.step.plans import LINK_SLACK, BandwidthAllocation, Plan
from envs.step.problem import StepProblem
from envs.step.step import StepSimulator

_EMPTY_SHARE = 1e-6  # of the largest weight: what a pipe that sends only empty messages weighs


def shared_by_weight(network: Network, weight: FloatArray, used: IntArray) -> BandwidthAllocation:
    """Rates in proportion to the weights (S * S,) of the pipes, as far as links allow.

    A pipe divides its weight among its channels by their capacities, and all channels together get
    the weighted max-min allocation of their links: where one link is full, what its channels leave
    elsewhere goes to the others, still by weight. Pipes where `used` (S * S,) is 0 get nothing: a
    static allocation is for one plan, and that sends nothing there. A pipe in use that weighs
    nothing, because its messages are empty, gets a millionth of the heaviest weight: it must have a
    rate to send at all.
    """
    least = _EMPTY_SHARE * (weight.max(initial=0.0) or 1.0)
    weight = np.where(used > 0, np.maximum(weight, least), 0.0)
    pipe, capacity = network.channel_pipe, network.channel_capacity
    share = capacity / np.bincount(pipe, capacity, len(weight))[pipe]
    return weighted_allocation(network, weight[pipe] * share)


def offer_rates(
    incumbent: Incumbent, problem: StepProblem, plan: Plan, allocation: BandwidthAllocation
) -> tuple[bool, StepSimulator]:
    """Whether `plan` through pipes of those rates is the best so far, and what simulated it.

    Raises:
        InputError: the allocation breaks a rule of its own.
    """
    incumbent.evaluations += 1
    allocated = allocated_problem(problem, allocation)
    simulator = StepSimulator(allocated)
    taken = incumbent.take(
        simulator.step_time(plan.placement.device, plan.order),
        lambda: replace(plan, allocation=allocation),
        lambda made: made.violations(allocated, simulator),
    )
    return taken, simulator


class AllocationIncumbent(Incumbent):
    """The fastest allocation to the plan `given`.

    An allocation is feasible when it breaks no rule of its own and the plan, simulated through
    pipes of those rates, has no violations, those of its peak memory included: the peak depends on
    when things happen. The bound at first is the step when every pipe has its links for itself.
    """

    nothing = ""

    def __init__(self, problem: StepProblem, given: Plan, gap: float = AT_THE_BOUND) -> None:
        super().__init__(np.inf, gap=gap)
        self.impossible = "; ".join(given.placement.violations(problem))
        self.problem = problem
        self.given = given
        self.network = problem.topology.network
        self.step: PipedStep | None = None
        if not self.impossible:
            self.step = PipedStep(problem, given)
            alone = BandwidthAllocation(self.network.channel_capacity * (1.0 + LINK_SLACK))
            path = self.step.longest_path(self.step.slowness(alone.pipes(self.network)))
            self.lower_bound = path.seconds * (1.0 - PATH_ROUNDING)

    def offer(self, allocation: BandwidthAllocation) -> None:
        """Simulate the plan under `allocation`, and keep it if it is feasible and the best so far.

        Raises:
            InputError: the allocation breaks a rule of its own.
        """
        offer_rates(self, self.problem, self.given, allocation)

    def result(self, reason: str = "") -> Result[Plan]:
        if self.refusal and not (self.plan and self.optimal):
            refused = f"the fastest allocation was refused: {self.refusal}"
            reason, self.refusal = "; ".join(part for part in (reason, refused) if part), ""
        self.lower_bound = min(self.lower_bound, self.step_time)
        return super().result(reason)


class RuleOfShares(ABC):
    """One allocation for each plan."""

    solves = (BandwidthPlanning,)

    @abstractmethod
    def shares(self, step: PipedStep) -> BandwidthAllocation:
        """The rates for a step."""

    def solve(
        self, problem: BandwidthPlanning, budget: Budget = UNLIMITED, start: Sequence[Plan] = ()
    ) -> Result[Plan]:
        """As `agents.solver.Solver.solve`; needs no budget.

        The bound is the step in which every pipe has its links for itself.
        """
        incumbent = AllocationIncumbent(problem.step, problem.plan)
        if incumbent.step is not None:
            incumbent.offer(self.shares(incumbent.step))
        return incumbent.result()


class UniformShares(RuleOfShares):
    """Equal shares whatever the traffic: what a cluster does that reserves without looking.

    Guarantees:
        Every channel has an equal part of its links.

    Source:
        Max-min fairness: Bertsekas, Gallager, "Data Networks", 1992, section 6.5.2.
    """

    def shares(self, step: PipedStep) -> BandwidthAllocation:
        """`uniform_allocation`."""
        return uniform_allocation(step.network)


class ProportionalShares(RuleOfShares):
    """Rates in proportion to the bytes of each pipe: best for transfers that begin together.

    Guarantees:
        Optimal for one sender that sends to all receivers at once.

    Source:
        A rule of one line: all transfers end together.
    """

    def shares(self, step: PipedStep) -> BandwidthAllocation:
        """Rates in proportion to the bytes V that the step sends through each pipe.

        One sender of capacity C that sends V_k to receiver k, all at once, is done when the last
        is: max_k V_k / b_k subject to sum b = C is least where all end together, b_k = C V_k / sum
        V, after sum V / C seconds. Multi-path and shared links as in `shared_by_weight`.
        """
        return shared_by_weight(step.network, step.volume, step.transfers)


class SquareRootShares(RuleOfShares):
    """Rates in proportion to the root of the bytes: best for sends that follow one another.

    Guarantees:
        Optimal for one sender that sends to one receiver after another.

    Source:
        A rule of one line: the least sum of bytes / rate.
    """

    def shares(self, step: PipedStep) -> BandwidthAllocation:
        """Rates in proportion to the root of the bytes V that the step sends through each pipe.

        One sender of capacity C that sends V_k to receiver k, one after the other, each over a
        static share of its own, takes sum_k V_k / b_k. Subject to sum b = C that is least
        where V_k / b_k**2 is the same for all k: b_k = C sqrt(V_k) / sum sqrt(V), after (sum
        sqrt(V))**2 / C seconds (Kleinrock's square-root capacity assignment, *Communication Nets*,
        1964). Multi-path and shared links as in `shared_by_weight`.
        """
        return shared_by_weight(step.network, np.sqrt(step.volume), step.transfers)
