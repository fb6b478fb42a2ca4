"""Allocated bandwidth: a step problem whose transfers between servers go through pipes.

The pipe from server s to server d has the rate B[s, d], the sum of the rates allocated to the
channels between the two, and serves its transfers one after another, in the order of the plan. It
is therefore a port like those of `single_port`: an allocation turns a topology into another one, on
which every simulator, bound and planner of the project works as it stands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from envs.arrays import FloatArray
from envs.errors import InputError
from envs.hardware.network import Network
from envs.network.max_min import max_min_rates
from envs.network.pipes import check_bandwidth, pipe_of_pairs, pipe_topology
from envs.step.order import OrderRule
from envs.step.plans import BandwidthAllocation
from envs.step.problem import StepProblem
from envs.step.step import StepSimulator
from envs.units import GIGA


def uniform_allocation(network: Network) -> BandwidthAllocation:
    """Every link shared equally by the channels that run over it, whatever their traffic."""
    crowd = network.incidence.sum(axis=1)  # (K,) channels on each link
    share = np.divide(
        network.link_capacity, crowd, out=np.full_like(crowd, np.inf), where=crowd > 0
    )
    rate = np.where(network.incidence > 0, share[:, None], np.inf).min(axis=0, initial=np.inf)
    return BandwidthAllocation(rate)


def allocated_problem(problem: StepProblem, allocation: BandwidthAllocation) -> StepProblem:
    """`problem` on its topology with the allocated rates.

    A tensor that takes `latency + x` seconds on a route of bandwidth w takes `latency + x w / b`
    through a pipe, where b is the smaller of the pipe's rate and the slowest link between the two
    devices and their NICs; one that takes no longer than the latency keeps its time. Inside a
    server nothing changes. A pipe of rate 0 takes for ever.

    Raises:
        InputError: the allocation breaks a rule of `BandwidthAllocation.violations`, or the
            topology has no bandwidth between some servers, only tabulated times.
    """
    topology = problem.topology
    check_bandwidth(topology)
    violations = allocation.violations(topology.network)
    if violations:
        raise InputError("; ".join(violations), file=f"allocation for topology {topology.name}")
    return _through_pipes(problem, allocation.pipes(topology.network))


def _through_pipes(problem: StepProblem, pipes: FloatArray) -> StepProblem:
    topology = problem.topology
    _, pipe = pipe_of_pairs(topology)
    rate = np.minimum(pipes.ravel()[pipe], topology.network.inner_bandwidth)  # (D, D)
    rates, mark = np.unique(rate, return_inverse=True)
    through, before, marked = pipe_topology(topology, mark.reshape(rate.shape))
    own = marked < 0  # classes inside a server keep their bandwidth
    given = np.where(own, np.inf, rates[marked])  # (L,) bytes/s
    latency, bandwidth = through.class_latency, through.class_bandwidth
    moving = problem.transfer_seconds[:, before]
    with np.errstate(divide="ignore", invalid="ignore"):
        slower = latency + (moving - latency) * (bandwidth / given)
    kept = own | (moving <= latency)
    seconds = np.where(kept, moving, np.where(given > 0.0, slower, np.inf))
    names = tuple(
        name if mine else f"{name} at {r / GIGA:.6g} GB/s"
        for name, mine, r in zip(through.class_names, own, given, strict=True)
    )
    through = replace(through, class_names=names, class_bandwidth=np.where(own, bandwidth, given))
    return replace(problem, topology=through, transfer_seconds=np.ascontiguousarray(seconds))


@dataclass(frozen=True)
class Allocated:
    """Transfers between servers pass one after another through pipes of allocated rates.

    The simulator is the one of `single_port` on `allocated_problem`.

    Args:
        allocation: the rates, or the rule that gives them to the problem's network.

    Raises:
        InputError: `allocation` is neither.
    """

    name: str = "allocated"
    allocation: BandwidthAllocation | Callable[[Network], BandwidthAllocation] = uniform_allocation

    def __post_init__(self) -> None:
        given: object = self.allocation
        if not isinstance(given, BandwidthAllocation) and not callable(given):
            fault = f"{given!r} is neither an allocation nor a rule that gives one"
            raise InputError(fault, field="allocation")

    def simulator(self, problem: StepProblem, order_rule: OrderRule | None = None) -> StepSimulator:
        """The simulator of `problem` with the allocated rates.

        Raises:
            InputError: as from `allocated_problem`.
        """
        given = self.allocation
        if not isinstance(given, BandwidthAllocation):
            given = given(problem.topology.network)
        return StepSimulator(allocated_problem(problem, given), order_rule=order_rule)


def weighted_allocation(network: Network, weight: FloatArray) -> BandwidthAllocation:
    """The weighted max-min shares of the channels: what weights (C,) make of a network.

    Every channel is a flow over its links. Any weights that are finite and not negative give a
    feasible allocation, in which no channel of positive weight can get more without taking from
    one that has no more per weight. A channel of weight 0 gets nothing.

    Raises:
        InputError: a weight is negative or not finite, their number is not C, or a channel has no
            link of finite capacity.
    """
    if np.shape(weight) != (network.num_channels,):
        raise InputError(
            f"has shape {np.shape(weight)}, there are {network.num_channels} channels",
            field="weight",
        )
    return BandwidthAllocation(
        max_min_rates(
            network.link_capacity, network.channel_ptr, network.channel_links, weight=weight
        )
    )
