"""Allocated bandwidth: a step problem whose transfers between servers go through pipes.

The pipe from server s to server d has the rate B[s, d], the sum of the rates allocated to the
channels between the two, and serves its transfers one after another, in the order of the plan. It
is therefore a port like those of `single_port`: an allocation turns a topology into another one, on
which every simulator, bound and planner of the project works as it stands.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from envs.errors import InputError
from envs.hardware.network import Network
from envs.network.pipes import check_bandwidth, pipe_of_pairs, pipe_topology
from envs.step.plans import BandwidthAllocation
from envs.step.problem import StepProblem
from envs.units import GIGA

FloatArray = NDArray[np.float64]


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
