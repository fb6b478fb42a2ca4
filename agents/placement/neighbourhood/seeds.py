"""Where a search begins: placements that cost next to nothing, and orders that spare memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from agents.placement.neighbourhood.moves import FloatArray, IntArray
from agents.step.grouping import GroupedProblem
from envs.graphs.contraction import sum_rows
from envs.graphs.op_graph import NONE, OpGraph
from envs.step.problem import StepProblem


def splits(problem: StepProblem, groups: int, chunks: int) -> Iterator[IntArray]:
    """Placements (N,) of contiguous segments of the forward pass in at most `groups` groups.

    Segments hold equal work, work in proportion to their devices' speed, or equal bytes. The line
    of devices is taken once; with more `chunks` also that often, always from the front (a loop) or
    there and back (a V).
    """
    grouped = GroupedProblem.of(problem, groups)
    devices = problem.topology.num_devices
    able = np.isfinite(grouped.seconds)
    work = np.where(able, grouped.seconds, 0.0).sum(axis=1) / np.maximum(able.sum(axis=1), 1)
    speed = 1.0 / np.maximum(np.where(able, grouped.seconds, 0.0).sum(axis=0), 1e-300)
    made = sum_rows(problem.graph.tensor_bytes, grouped.fusion.group[problem.graph.producer],
                    grouped.num_groups)  # fmt: skip
    equal, fastest = np.arange(devices), grouped.device_order()
    for load, share, line in (
        (work, np.ones(devices), equal),
        (work, speed, fastest),
        (grouped.state + made, problem.capacity, fastest),
    ):
        paths = [line]
        if chunks > 1:
            back = line[::-1]
            paths += [
                np.tile(line, chunks),
                np.concatenate([line, back] * chunks)[: chunks * devices],
            ]
        for path in paths:
            device = path[_cut(load, share[path])]
            if able[np.arange(len(device)), device].all():
                yield grouped.fusion.expand(device)


def _cut(load: FloatArray, share: FloatArray) -> IntArray:
    """(G,) segment of each of the groups in a line, by the middle of their loads (G,)."""
    middle = (np.cumsum(load) - load / 2) / max(float(load.sum()), 1e-300)
    ends = np.cumsum(share) / share.sum()
    return np.minimum(np.searchsorted(ends, middle, side="right"), len(share) - 1)


def waves(graph: OpGraph, order: IntArray) -> Iterator[IntArray]:
    """`order` (N,) with fewer and fewer micro-batches under way at the same time."""
    size = graph.num_micro_batches - 1
    while size > 0:
        yield wave_order(graph, order, size)
        size //= 2


def wave_order(graph: OpGraph, order: IntArray, micro_batches: int) -> IntArray:
    """(N,) `order` in waves of `micro_batches` micro-batches: no device has more under way.

    The first so many micro-batches run from beginning to end, then the next ones; the optimizer
    runs last. An operator that needs a later wave belongs to that one; within a wave `order` stays.
    """
    last = graph.num_micro_batches - 1
    wave = np.where(graph.micro_batch == NONE, last, graph.micro_batch) // micro_batches
    edges = graph.edges
    for u, v, _ in edges[np.argsort(edges[:, 0], kind="stable")].tolist():
        wave[v] = max(wave[v], wave[u])
    return order[np.argsort(wave[order], kind="stable")]
