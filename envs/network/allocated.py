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
from envs.plans import BandwidthAllocation
from envs.simulation.problem import StepProblem
from envs.units import GIGA

IntArray = NDArray[np.int64]
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
    apart = topology.server[:, None] != topology.server[None, :]
    for old in np.unique(topology.link_class[apart]):
        if not np.isfinite(topology.class_bandwidth[old]):
            raise InputError(
                f"link class {topology.class_names[old]!r} has no bandwidth to allocate",
                file=f"topology {topology.name}",
            )
    violations = allocation.violations(topology.network)
    if violations:
        raise InputError("; ".join(violations), file=f"allocation for topology {topology.name}")
    return _through_pipes(problem, allocation.pipes(topology.network))


def _through_pipes(problem: StepProblem, pipes: FloatArray) -> StepProblem:
    topology = problem.topology
    d, servers, server = topology.num_devices, topology.num_servers, topology.server
    inner = topology.network.inner_bandwidth
    link_class = np.zeros((d, d), dtype=np.int64)
    ports = len(topology.port_names)
    send, receive = topology.send_port.copy(), topology.receive_port.copy()
    classes: dict[tuple[int, float], int] = {(0, np.inf): 0}
    for i in range(d):
        for j in range(d):
            if i == j:
                continue
            old, rate = int(topology.link_class[i, j]), np.inf
            if server[i] != server[j]:
                rate = min(float(pipes[server[i], server[j]]), float(inner[i, j]))
                pipe = int(server[i] * servers + server[j])
                send[i, j], receive[i, j] = ports + 2 * pipe, ports + 2 * pipe + 1
            link_class[i, j] = classes.setdefault((old, rate), len(classes))
    before = np.array([key for key, _ in classes], dtype=np.int64)  # (L,)
    given = np.array([rate for _, rate in classes])  # (L,) bytes/s
    own = ~np.isfinite(given)  # classes inside a server keep their bandwidth
    bandwidth = np.where(own, topology.class_bandwidth[before], given)
    latency = topology.class_latency[before]
    moving = problem.transfer_seconds[:, before]
    with np.errstate(divide="ignore", invalid="ignore"):
        slower = latency + (moving - latency) * (topology.class_bandwidth[before] / given)
    kept = own | (moving <= latency)
    seconds = np.where(kept, moving, np.where(given > 0.0, slower, np.inf))
    names = tuple(
        topology.class_names[k] if mine else f"{topology.class_names[k]} at {r / GIGA:.6g} GB/s"
        for k, mine, r in zip(before, own, given, strict=True)
    )
    through = replace(
        topology,
        link_class=link_class,
        class_names=names,
        class_latency=latency,
        class_bandwidth=bandwidth,
        send_port=send,
        receive_port=receive,
        port_names=(
            *topology.port_names,
            *(
                f"server{s} -> server{e} {way}"
                for s in range(servers)
                for e in range(servers)
                for way in ("send", "receive")
            ),
        ),
        fabric=None,
    )
    return replace(problem, topology=through, transfer_seconds=np.ascontiguousarray(seconds))
