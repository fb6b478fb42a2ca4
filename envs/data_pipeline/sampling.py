"""Neighbourhoods sampled for batches of training nodes: whose features each batch asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numba
import numpy as np
from numpy.typing import NDArray

from envs.data_pipeline.graph import Graph, IntArray, NodeArray


@dataclass(frozen=True, eq=False)
class Requests:
    """Every node that a batch needs, once, in the order in which it was found.

    A node has the neighbours sampled that its hop allows, once in a batch.
    """

    node: NodeArray  # (R,)
    parent: NodeArray  # (R,) of whose neighbours it was; of seeds themselves
    hop: NDArray[np.int8]  # (R,) 0 for seeds
    sampled: NodeArray  # (R,) edges sampled from it
    offset: IntArray  # (batches + 1,) where each batch begins

    @property
    def batches(self) -> int:
        return len(self.offset) - 1


def sample(
    graph: Graph, order: NodeArray, batch: int, fanouts: Sequence[int], seed: int
) -> Requests:
    """Batches of `batch` seeds in a row, and hop by hop at most `fanouts` distinct neighbours."""
    rng, fan = np.random.default_rng(seed), np.asarray(fanouts, dtype=np.int64)
    seen = np.full(graph.nodes, -1, dtype=np.int32)
    nodes, parent = np.empty((2, graph.nodes), dtype=np.int32)
    ends = np.empty(len(fan) + 1, dtype=np.int64)
    found: list[tuple[NodeArray, NodeArray, NDArray[np.int8]]] = []
    for number, first in enumerate(range(0, len(order), batch)):
        seeds = order[first : first + batch]
        nodes[: len(seeds)] = parent[: len(seeds)] = seeds
        ends[0] = len(seeds)
        state = rng.integers(0, 2**63, dtype=np.uint64)
        _expand(graph.start, graph.neighbour, fan, number, seen, nodes, parent, ends, state)
        hop = np.repeat(np.arange(len(ends), dtype=np.int8), np.diff(ends, prepend=0))
        found.append((nodes[: ends[-1]].copy(), parent[: ends[-1]].copy(), hop))
    node, parents, hops = map(np.concatenate, zip(*found, strict=True))
    sampled = np.minimum(graph.degree[node], np.append(fan, 0)[hops]).astype(np.int32)
    offset = np.cumsum([0, *(len(own) for own, _, _ in found)])
    return Requests(node, parents, hops, sampled, offset)


@numba.njit(cache=True, nogil=True, boundscheck=False, error_model="numpy")
def _expand(
    start: IntArray,
    neighbour: NodeArray,
    fanouts: IntArray,
    batch: int,
    seen: NodeArray,
    nodes: NodeArray,
    parent: NodeArray,
    ends: IntArray,
    state: np.uint64,
) -> None:
    """Add to `nodes`, of which ends[0] are there, and set where each hop ends.

    Distinct neighbours by Floyd's method, from a linear congruential generator of 64 bits.
    """
    for v in nodes[: ends[0]]:
        seen[v] = batch
    chosen = np.empty(fanouts.max(), dtype=np.int64)
    begin, count = 0, ends[0]
    for hop in range(len(fanouts)):
        end = count
        for at in range(begin, end):
            v = nodes[at]
            degree = start[v + 1] - start[v]
            take = min(degree, fanouts[hop])
            for j in range(take):
                pick = np.int64(j)
                if take < degree:
                    top = degree - take + j
                    state = state * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
                    pick = np.int64((state >> np.uint64(33)) % np.uint64(top + 1))
                    for earlier in chosen[:j]:
                        if earlier == pick:
                            pick = top
                            break
                    chosen[j] = pick
                u = neighbour[start[v] + pick]
                if seen[u] != batch:
                    seen[u] = batch
                    nodes[count], parent[count] = u, v
                    count += 1
        begin = end
        ends[hop + 1] = count
