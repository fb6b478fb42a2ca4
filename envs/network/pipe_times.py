"""Pipes whose rates change: the transfer times of `allocated_problem`, updated in place.

`envs.network.allocated` makes a new problem of every allocation, whose link classes depend on the
rates. Where a plan is judged under many allocations the classes are better fixed: here there is one
for every pipe, old class and slowest inner link, and a change of rates rewrites seconds only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from envs.errors import InputError
from envs.graphs.contraction import Fusion, sum_rows
from envs.graphs.op_graph import NONE
from envs.hardware.topology import Topology
from envs.simulation.problem import StepProblem

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


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


@numba.njit(cache=True, nogil=True, boundscheck=False, error_model="numpy")
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


@numba.njit(cache=True, nogil=True, boundscheck=False, error_model="numpy")
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


@numba.njit(cache=True, nogil=True, boundscheck=False, error_model="numpy")
def _seconds(table: PipeTable, t: int, kind: int, given: float) -> float:
    size = table.nbytes[t, kind]
    if size > 0.0:
        return float(table.fixed[t, kind] + size / given)
    return float(table.fixed[t, kind])


def _classes(topology: Topology) -> tuple[Topology, IntArray, IntArray, FloatArray]:
    """The topology with pipes for ports, and (L,) the old class, pipe and inner rate of classes."""
    d, servers, server = topology.num_devices, topology.num_servers, topology.server
    inner = topology.network.inner_bandwidth
    ports = topology.num_ports
    link_class = np.zeros((d, d), dtype=np.int64)
    send, receive = topology.send_port.copy(), topology.receive_port.copy()
    known: dict[tuple[int, int, float], int] = {(0, NONE, np.inf): 0}
    for i in range(d):
        for j in range(d):
            if i == j:
                continue
            old, pipe, limit = int(topology.link_class[i, j]), NONE, np.inf
            if server[i] != server[j]:
                pipe, limit = int(server[i] * servers + server[j]), float(inner[i, j])
                send[i, j], receive[i, j] = ports + 2 * pipe, ports + 2 * pipe + 1
                if not np.isfinite(topology.class_bandwidth[old]):
                    raise InputError(
                        f"link class {topology.class_names[old]!r} has no bandwidth to allocate",
                        file=f"topology {topology.name}",
                    )
            link_class[i, j] = known.setdefault((old, pipe, limit), len(known))
    before = np.array([old for old, _, _ in known], dtype=np.int64)
    pipe_of = np.array([pipe for _, pipe, _ in known], dtype=np.int64)
    names = [f"server{p // servers} -> server{p % servers}" for p in range(servers * servers)]
    through = replace(
        topology,
        link_class=link_class,
        class_names=tuple(
            topology.class_names[k] + ("" if p == NONE else f", {names[p]}")
            for k, p in zip(before, pipe_of, strict=True)
        ),
        class_latency=topology.class_latency[before],
        class_bandwidth=topology.class_bandwidth[before],
        send_port=send,
        receive_port=receive,
        port_names=(
            *topology.port_names,
            *(f"{name} {way}" for name in names for way in ("send", "receive")),
        ),
        fabric=None,
    )
    return through, before, pipe_of, np.array([limit for _, _, limit in known])
