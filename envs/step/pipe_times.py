"""Pipes whose rates change: the transfer times of `allocated_problem`, updated in place.

`allocated_problem` makes a new problem of every allocation, whose link classes depend on the
rates. Where a plan is judged under many allocations the classes are better fixed: here there is one
for every pipe, old class and slowest inner link, and a change of rates rewrites seconds only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from envs.arrays import FloatArray, IntArray
from envs.compilation import unchecked, unchecked_inner
from envs.graphs.contraction import Fusion, sum_rows
from envs.graphs.op_graph import NONE
from envs.hardware.topology import Topology
from envs.network.pipes import check_bandwidth, pipe_name, pipe_of_pairs, pipe_topology
from envs.step.problem import StepProblem


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
