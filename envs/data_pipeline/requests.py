"""Neighbourhoods sampled for batches, and which of their features a cache holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from envs.arrays import BoolArray, IntArray
from envs.compilation import unchecked
from envs.data_pipeline.graph import Graph, NodeArray

Policy = Literal["none", "static", "fifo", "lru", "lfu"]
POLICIES: tuple[Policy, ...] = get_args(Policy)


@dataclass(frozen=True, eq=False)
class Requests:
    """Every node that a batch needs, once, in the order in which it was found."""

    node: NodeArray  # (R,)
    parent: NodeArray  # (R,) of whose neighbours it was; of seeds themselves
    hop: NDArray[np.int8]  # (R,) 0 for seeds
    sampled: NodeArray  # (R,) edges sampled from it
    offset: IntArray  # (batches + 1,) where each batch begins


def sample(
    graph: Graph, order: NodeArray, batch: int, fanouts: Sequence[int], seed: int
) -> Requests:
    """Batches of `batch` seeds in a row; of each node found at hop h, fanouts[h] neighbours."""
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
    return Requests(node, parents, hops, sampled, np.cumsum([0, *(len(x[0]) for x in found)]))


@unchecked
def _expand(
    start: IntArray, neighbour: NodeArray, fanouts: IntArray, batch: int, seen: NodeArray,
    nodes: NodeArray, parent: NodeArray, ends: IntArray, state: np.uint64,
) -> None:  # fmt: skip
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


def hits(policy: Policy, graph: Graph, requested: NodeArray, capacity: int) -> BoolArray:
    """(R,) whether each request is a hit, in a cache of `capacity` rows that begins empty.

    `static` holds the nodes of highest degree from the start, of equals the first. The others take
    up every row that is missed; when full they drop the row that came first (`fifo`), was not used
    for longest (`lru`), or was used least often since it came, of equals the one not used for
    longest (`lfu`).
    """
    if policy == "static":
        cached = np.zeros(graph.nodes, dtype=np.bool_)
        cached[np.argsort(-graph.degree, kind="stable")[:capacity]] = True
        return cached[requested]
    if policy == "none" or capacity == 0:
        return np.zeros(len(requested), dtype=np.bool_)
    moves, counts = policy != "fifo", policy == "lfu"
    last = np.full(
        np.bincount(requested, minlength=1).max() + 1 if counts else 1, -1, dtype=np.int64
    )
    found: BoolArray = _replay(requested, graph.nodes, capacity, moves, counts, last)
    return found


@unchecked
def _replay(
    requested: NodeArray, nodes: int, capacity: int, moves: bool, counts: bool, last: IntArray
) -> BoolArray:
    """One list of cached rows by uses, then by age; the first goes. last[k]: the last of k uses.

    A hit that `moves` goes to the end of the rows of its uses, which are one more if it `counts`.
    """
    found = np.zeros(len(requested), dtype=np.bool_)
    uses = np.full(nodes, -1, dtype=np.int32)  # -1: not cached
    before, after = np.full(nodes, -1, dtype=np.int32), np.full(nodes, -1, dtype=np.int32)
    head, held = -1, 0
    for at in range(len(requested)):
        v = requested[at]
        found[at] = uses[v] >= 0
        if found[at] and not moves:
            continue
        k, gone = 0, v
        if found[at]:
            k = uses[v] + counts
        else:
            gone = head if held == capacity else -1
            held += gone < 0
        place = last[k]  # behind which v goes
        if place < 0 and found[at]:  # none has k uses: behind those of one use less
            place = last[k - 1]
        if gone >= 0:
            left, right = before[gone], after[gone]
            if place == gone:
                place = left
            if last[uses[gone]] == gone:
                last[uses[gone]] = left if left >= 0 and uses[left] == uses[gone] else -1
            if left >= 0:
                after[left] = right
            else:
                head = right
            if right >= 0:
                before[right] = left
            uses[gone] = -1
        following = head if place < 0 else after[place]
        before[v], after[v], uses[v], last[k] = place, following, k, v
        if place < 0:
            head = v
        else:
            after[place] = v
        if following >= 0:
            before[following] = v
    return found
