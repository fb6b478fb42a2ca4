"""Allocated bandwidth: a step problem whose transfers between servers go through pipes.

The pipe from server s to server d has the rate B[s, d], the sum of the rates allocated to the
channels between the two, and serves its transfers one after another, in the order of the plan. It
is therefore a port like those of `single_port`: an allocation turns a topology into another one, on
which every simulator, bound and planner of the project works as it stands.

Pipes whose rates change: the transfer times of `allocated_problem`, updated in place.

`allocated_problem` makes a new problem of every allocation, whose link classes depend on the
rates. Where a plan is judged under many allocations the classes are better fixed: here there is one
for every pipe, old class and slowest inner link, and a change of rates rewrites seconds only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from inspect import signature
from typing import NamedTuple

import numpy as np

from envs.arrays import FloatArray, IntArray
from envs.compilation import unchecked, unchecked_inner
from envs.errors import InputError
from envs.graphs.contraction import Fusion, sum_rows
from envs.graphs.op_graph import NONE
from envs.hardware.network import Network
from envs.hardware.topology import Topology
from envs.network.max_min import max_min_rates
from envs.network.pipes import check_bandwidth, pipe_name, pipe_of_pairs, pipe_topology
from envs.step.order import OrderRule
from envs.step.plans import BandwidthAllocation
from envs.step.problem import StepProblem
from envs.step.step import StepSimulator
from envs.units import GIGA

_SAID = 3  # of what is wrong with an allocation


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
        said = "; ".join(violations[:_SAID])
        more = f"; and {len(violations) - _SAID} more" if len(violations) > _SAID else ""
        raise InputError(said + more, file=f"allocation for topology {topology.name}")
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
        if isinstance(given, BandwidthAllocation):
            return
        fault = f"{given!r} is neither an allocation nor a rule that makes one of a network"
        if isinstance(given, type) or not callable(given):
            raise InputError(fault, field="allocation")
        try:
            signature(given).bind(None)
        except TypeError as error:
            raise InputError(f"{fault}: {error}", field="allocation") from None
        except ValueError:  # of a function in C, which does not say what it takes
            return

    def simulator(self, problem: StepProblem, order_rule: OrderRule | None = None) -> StepSimulator:
        """The simulator of `problem` with the allocated rates.

        Raises:
            InputError: as from `allocated_problem`.
        """
        rule, network = self.allocation, problem.topology.network
        made: object = rule if isinstance(rule, BandwidthAllocation) else rule(network)
        if not isinstance(made, BandwidthAllocation):
            fault = f"{rule!r} gives {type(made).__name__}, not a BandwidthAllocation"
            raise InputError(fault, field="allocation")
        return StepSimulator(allocated_problem(problem, made), order_rule=order_rule)


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


class PipeTable(NamedTuple):
    """A transfer of tensor t on class l takes fixed[t, l] + nbytes[t, l] / rate seconds.

    The rate is the smaller of the pipe's and `inner`. Classes inside a server have pipe NONE,
    and all of their seconds are fixed.
    """

    fixed: FloatArray  # (T, L) seconds
    nbytes: FloatArray  # (T, L)
    pipe: IntArray  # (L,) source server x S + destination server, or NONE
    inner: FloatArray  # (L,) bytes/s


@dataclass(frozen=True, eq=False)
class PipedProblem:
    """A problem whose transfers between servers go through pipes, and how their seconds come about.

    `problem.transfer_seconds` holds the seconds at the rates it was made with.
    """

    problem: StepProblem
    table: PipeTable


def piped_problem(
    problem: StepProblem, pipes: FloatArray, fusion: Fusion | None = None
) -> PipedProblem:
    """`problem`, or its fusion, through `pipes` (S, S) bytes/s.

    Without a fusion the simulated times are those of `allocated_problem`, with one those of
    `fused_problem(allocated_problem(...), fusion)`.

    Raises:
        InputError: a link class between servers has no bandwidth, only tabulated times.
    """
    topology = problem.topology
    through, before, pipe, inner = _classes(topology)
    latency, bandwidth = topology.class_latency[before], topology.class_bandwidth[before]
    moving = problem.transfer_seconds[:, before]  # (T, L)
    shared = (pipe != NONE)[None, :] & (moving > latency)
    with np.errstate(invalid="ignore"):
        fixed = np.where(shared, latency, moving)
        nbytes = np.where(shared, (moving - latency) * bandwidth, 0.0)
    op_seconds, graph = problem.op_seconds, problem.graph
    if fusion is not None:
        graph = fusion.graph
        fixed = sum_rows(fixed, fusion.tensor, graph.num_tensors)
        nbytes = sum_rows(nbytes, fusion.tensor, graph.num_tensors)
        op_seconds = sum_rows(op_seconds, fusion.piece, graph.num_operators)
    table = PipeTable(
        np.ascontiguousarray(fixed), np.ascontiguousarray(nbytes), pipe, inner.astype(np.float64)
    )
    seconds = np.empty_like(table.fixed)
    set_pipe_rates(table, np.ascontiguousarray(pipes, dtype=np.float64).ravel(), seconds)
    piped = replace(
        problem, graph=graph, topology=through, op_seconds=op_seconds, transfer_seconds=seconds
    )
    return PipedProblem(piped, table)


@unchecked
def set_pipe_rates(table: PipeTable, rate: FloatArray, seconds: FloatArray) -> None:
    """Write `seconds` (T, L) at pipe rates `rate` (S * S,) bytes/s; a rate of 0 takes for ever."""
    tensors, classes = seconds.shape
    for kind in range(classes):
        if table.pipe[kind] == NONE:
            for t in range(tensors):
                seconds[t, kind] = table.fixed[t, kind]
        else:
            given = min(rate[table.pipe[kind]], table.inner[kind])
            for t in range(tensors):
                seconds[t, kind] = _seconds(table, t, kind, given)


@unchecked
def set_some_pipe_rates(
    table: PipeTable,
    rate: FloatArray,  # (S * S,) bytes/s
    tensor: IntArray,  # (M,)
    kind: IntArray,  # (M,) link class of a pipe
    count: int,
    seconds: FloatArray,  # (T, L)
) -> None:
    """`set_pipe_rates` for the first `count` pairs of tensor and class alone."""
    for m in range(count):
        given = min(rate[table.pipe[kind[m]]], table.inner[kind[m]])
        seconds[tensor[m], kind[m]] = _seconds(table, tensor[m], kind[m], given)


@unchecked_inner
def _seconds(table: PipeTable, t: int, kind: int, given: float) -> float:
    size = table.nbytes[t, kind]
    if size > 0.0:
        return float(table.fixed[t, kind] + size / given)
    return float(table.fixed[t, kind])


def _classes(topology: Topology) -> tuple[Topology, IntArray, IntArray, FloatArray]:
    """The topology with pipes for ports, and (L,) the old class, pipe and inner rate of classes."""
    check_bandwidth(topology)
    _, pipe = pipe_of_pairs(topology)
    inner = topology.network.inner_bandwidth
    keys = np.stack([pipe.ravel(), inner.ravel()], axis=1)
    kinds, mark = np.unique(keys, axis=0, return_inverse=True)
    through, before, marked = pipe_topology(topology, mark.reshape(pipe.shape))
    own = marked < 0
    pipe_of = np.where(own, NONE, kinds[marked, 0].astype(np.int64))
    names = tuple(
        name if p == NONE else f"{name}, {pipe_name(*divmod(int(p), topology.num_servers))}"
        for name, p in zip(through.class_names, pipe_of, strict=True)
    )
    limit = np.where(own, np.inf, kinds[marked, 1])
    return replace(through, class_names=names), before, pipe_of, limit
