"""Order rules: from a placement to one topological permutation of the operators."""

from __future__ import annotations

from typing import Protocol

import numba
import numpy as np
from numpy.typing import NDArray

from envs.graphs.op_graph import OpGraph, Phase

IntArray = NDArray[np.int64]

_FORWARD = int(Phase.FORWARD)


class OrderRule(Protocol):
    """Gives agents that only place their order."""

    def __call__(self, graph: OpGraph, device: IntArray) -> IntArray:
        """(N,) operators, first to last, for the placement `device` (N,)."""


class TopologicalOrder:
    """The graph's own numbering, whatever the placement."""

    def __call__(self, graph: OpGraph, device: IntArray) -> IntArray:
        """(N,) 0..N-1."""
        return np.arange(graph.num_operators)


class OneFOneB:
    """The one-forward-one-backward priority of pipeline schedules, for any placement.

    The stage s of a forward operator is the largest number of device changes on a path of forward
    operators that ends in it; S is the number of stages. The depth r of a backward or optimizer
    operator is the same count over backward and optimizer operators. Micro-batch m runs at

        forward: 2 m + s         backward: 2 m + S + r         optimizer: as the last micro-batch

    and operators of equal key run by stage (depth), then in the graph's order. On a chain of S
    stages, r = S - 1 - s on the way back, so forward keys of a stage have the parity of s, backward
    keys the other one: after S - s warm-up forwards a stage alternates, which is 1F1B
    (PipeDream-Flush, Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", 2021,
    section 3.2).

    The result is topological for every graph in which no backward operator feeds a forward one
    of the same or an earlier micro-batch: along an edge within a phase neither m nor s (or r)
    falls, and 2 m + s <= 2 m + S - 1 < 2 m + S + r across. Where a graph breaks the premise, (key,
    depth) is raised along its edges, which changes nothing elsewhere.
    """

    def __call__(self, graph: OpGraph, device: IntArray) -> IntArray:
        """(N,) operators, first to last."""
        use_ptr, use_op = graph.use_ptr, graph.use_op
        key, depth, by_depth, order = np.empty((4, graph.num_operators), dtype=np.int64)
        one_f_one_b(
            np.ascontiguousarray(device, dtype=np.int64), graph.phase, graph.micro_batch,
            graph.num_micro_batches, use_ptr, use_op, key, depth, by_depth, order,
        )  # fmt: skip
        return order


@numba.njit(cache=True, nogil=True)
def one_f_one_b(
    device: IntArray,  # (N,)
    phase: IntArray,  # (N,)
    micro_batch: IntArray,  # (N,)
    num_micro_batches: int,
    use_ptr: IntArray,  # (N + 1,)
    use_op: IntArray,  # (C,)
    key: IntArray,  # (N,) scratch
    depth: IntArray,  # (N,) scratch
    by_depth: IntArray,  # (N,) scratch
    order: IntArray,  # (N,) out
) -> None:
    """`OneFOneB` as a kernel: two passes over the uses and two counting sorts."""
    n = len(device)
    depth[:] = 0
    stages = 1
    for i in range(n):
        forward = phase[i] == _FORWARD
        if forward:
            stages = max(stages, depth[i] + 1)
        for k in range(use_ptr[i], use_ptr[i + 1]):
            c = use_op[k]
            if (phase[c] == _FORWARD) == forward:
                hop = 1 if device[c] != device[i] else 0
                depth[c] = max(depth[c], depth[i] + hop)
    for i in range(n):
        m = micro_batch[i] if micro_batch[i] >= 0 else num_micro_batches - 1
        key[i] = 2 * m + depth[i] + (0 if phase[i] == _FORWARD else stages)
    for i in range(n):  # where the premise is broken, raise (key, depth) along the edges
        for k in range(use_ptr[i], use_ptr[i + 1]):
            c = use_op[k]
            if key[c] < key[i]:
                key[c], depth[c] = key[i], depth[i]
            elif key[c] == key[i] and depth[c] < depth[i]:
                depth[c] = depth[i]
    _counting_sort(depth, np.arange(n), by_depth)
    _counting_sort(key, by_depth, order)


@numba.njit(cache=True, nogil=True)
def _counting_sort(key: IntArray, items: IntArray, result: IntArray) -> None:
    """`result` = `items` stably sorted by their non-negative `key`."""
    top = 0
    for i in range(len(key)):
        top = max(top, key[i])
    count = np.zeros(top + 2, dtype=np.int64)
    for i in range(len(key)):
        count[key[i] + 1] += 1
    for j in range(top + 1):
        count[j + 1] += count[j]
    for item in items:
        result[count[key[item]]] = item
        count[key[item]] += 1
