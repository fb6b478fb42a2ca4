"""Rates by a rule, with no search: uniform, by traffic, by the root of traffic."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

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


@dataclass(frozen=True, eq=False)
class PipeTraffic:
    """The transfers of one plan from each of the S servers to each other one.

    Their number and their bytes depend on the placement alone. The bytes are those that rates act
    on: (seconds on the link class - its latency) * its bandwidth.
    """

    volume: FloatArray  # (S, S) bytes
    transfers: IntArray  # (S, S) those that take time

    @classmethod
    def of(cls, problem: StepProblem, plan: Plan) -> PipeTraffic:
        """The traffic of `plan`."""
        topology = problem.topology
        timeline = StepSimulator(problem).run(plan.placement.device, plan.order)
        source, destination = timeline.transfer_source, timeline.transfer_destination
        kind = topology.link_class[source, destination]
        seconds = problem.transfer_seconds[timeline.transfer_tensor, kind]
        start, end = topology.server[source], topology.server[destination]
        counted = (seconds > 0.0) & (start != end)
        kind, pair = kind[counted], (start[counted], end[counted])
        moved = (seconds[counted] - topology.class_latency[kind]) * topology.class_bandwidth[kind]
        volume = np.zeros((topology.num_servers, topology.num_servers))
        transfers = np.zeros(volume.shape, dtype=np.int64)
        np.add.at(volume, pair, np.maximum(moved, 0.0))
        np.add.at(transfers, pair, 1)
        return cls(volume, transfers)


def shared_by_weight(network: Network, pipes: FloatArray, used: IntArray) -> BandwidthAllocation:
    """Rates in proportion to the weights `pipes` (S, S) of the pipes, as far as links allow.

    A pipe divides its weight among its channels by their capacities, and all channels together get
    the weighted max-min allocation of their links: where one link is full, what its channels leave
    elsewhere goes to the others, still by weight. Pipes where `used` (S, S) is 0 get nothing: a
    static allocation is for one plan, and that sends nothing there. A pipe in use that weighs
    nothing, because its messages are empty, gets a millionth of the heaviest weight: it must have a
    rate to send at all.
    """
    pipes = np.where(used > 0, pipes, 0.0)
    heaviest = pipes.max(initial=0.0) or 1.0
    pipes = np.where(used > 0, np.maximum(pipes, _EMPTY_SHARE * heaviest), 0.0)
    source, destination = network.channel_source, network.channel_destination
    capacity = channel_capacity(network)
    total = np.zeros(pipes.shape)
    np.add.at(total, (source, destination), capacity)
    share = capacity / total[source, destination]
    return weighted_allocation(network, pipes[source, destination] * share)


def channel_capacity(network: Network) -> FloatArray:
    """(C,) bytes/s of the slowest link of each channel: what it gets when it is alone."""
    capacity = np.where(network.incidence > 0, network.link_capacity[:, None], np.inf)
    found: FloatArray = capacity.min(axis=0, initial=np.inf)
    return found


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
            alone = BandwidthAllocation(channel_capacity(self.network) * (1.0 + LINK_SLACK))
            path = self.step.longest_path(self.step.slowness(alone.pipes(self.network)))
            self.lower_bound = path.seconds * (1.0 - PATH_ROUNDING)

    def offer(self, allocation: BandwidthAllocation) -> None:
        """Simulate the plan under `allocation`, and keep it if it is feasible and the best so far.

        Raises:
            InputError: the allocation breaks a rule of its own.
        """
        if self.impossible:
            return
        self.evaluations += 1
        allocated = allocated_problem(self.problem, allocation)
        simulator = StepSimulator(allocated)
        self.take(
            simulator.step_time(self.given.placement.device, self.given.order),
            lambda: replace(self.given, allocation=allocation),
            lambda plan: plan.violations(allocated, simulator),
        )

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
    def shares(self, problem: StepProblem, plan: Plan) -> BandwidthAllocation:
        """The rates for `plan`, which can run on its devices."""

    def solve(
        self, problem: BandwidthPlanning, budget: Budget = UNLIMITED, start: Sequence[Plan] = ()
    ) -> Result[Plan]:
        """As `agents.solver.Solver.solve`; needs no budget.

        The bound is the step in which every pipe has its links for itself.
        """
        incumbent = AllocationIncumbent(problem.step, problem.plan)
        if not incumbent.impossible:
            incumbent.offer(self.shares(problem.step, problem.plan))
        return incumbent.result()


class UniformShares(RuleOfShares):
    """Equal shares whatever the traffic: what a cluster does that reserves without looking.

    Guarantees:
        Every channel has an equal part of its links.

    Source:
        Max-min fairness: Bertsekas, Gallager, "Data Networks", 1992, section 6.5.2.
    """

    def shares(self, problem: StepProblem, plan: Plan) -> BandwidthAllocation:
        """`uniform_allocation`."""
        return uniform_allocation(problem.topology.network)


class ProportionalShares(RuleOfShares):
    """Rates in proportion to the bytes of each pipe: best for transfers that begin together.

    Guarantees:
        Optimal for one sender that sends to all receivers at once.

    Source:
        A rule of one line: all transfers end together.
    """

    def shares(self, problem: StepProblem, plan: Plan) -> BandwidthAllocation:
        """Rates in proportion to the bytes V that `plan` sends through each pipe.

        One sender of capacity C that sends V_k to receiver k, all at once, is done when the last
        is: max_k V_k / b_k subject to sum b = C is least where all end together, b_k = C V_k / sum
        V, after sum V / C seconds. Multi-path and shared links as in `shared_by_weight`.
        """
        traffic = PipeTraffic.of(problem, plan)
        return shared_by_weight(problem.topology.network, traffic.volume, traffic.transfers)


class SquareRootShares(RuleOfShares):
    """Rates in proportion to the root of the bytes: best for sends that follow one another.

    Guarantees:
        Optimal for one sender that sends to one receiver after another.

    Source:
        A rule of one line: the least sum of bytes / rate.
    """

    def shares(self, problem: StepProblem, plan: Plan) -> BandwidthAllocation:
        """Rates in proportion to the root of the bytes V that `plan` sends through each pipe.

        One sender of capacity C that sends V_k to receiver k, one after the other, each over a
        static share that nobody borrows, takes sum_k V_k / b_k. Subject to sum b = C that is least
        where V_k / b_k**2 is the same for all k: b_k = C sqrt(V_k) / sum sqrt(V), after (sum
        sqrt(V))**2 / C seconds (Kleinrock's square-root capacity assignment, *Communication Nets*,
        1964). Multi-path and shared links as in `shared_by_weight`.
        """
        traffic = PipeTraffic.of(problem, plan)
        return shared_by_weight(
            problem.topology.network, np.sqrt(traffic.volume), traffic.transfers
        )
