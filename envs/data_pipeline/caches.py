"""Caches of feature rows: which requests find their row, for every policy and any requests."""

from __future__ import annotations

from typing import Literal, get_args

import numba
import numpy as np
from numpy.typing import NDArray

from envs.data_pipeline.graph import Graph, IntArray, NodeArray

Policy = Literal["none", "static", "fifo", "lru", "lfu"]
POLICIES: tuple[Policy, ...] = get_args(Policy)
BoolArray = NDArray[np.bool_]


def hits(policy: Policy, graph: Graph, requested: NodeArray, capacity: int) -> BoolArray:
    """(R,) whether each request is a hit, in a cache of `capacity` rows that begins empty.

    `static` holds the nodes of highest degree from the start, of equals the first. The others take
    up every row that is missed; when full they drop the row that came first (`fifo`), was not used
    for longest (`lru`), or was used least often since it came, of equals the one not used for
    longest (`lfu`).
    """
    if policy == "none" or capacity == 0:
        return np.zeros(len(requested), dtype=np.bool_)
    if policy == "static":
        cached = np.zeros(graph.nodes, dtype=np.bool_)
        cached[np.argsort(-graph.degree, kind="stable")[:capacity]] = True
        return cached[requested]
    most = np.bincount(requested, minlength=1).max() if policy == "lfu" else 0
    moves, counts = policy != "fifo", policy == "lfu"
    last = np.full(most + 1, -1, dtype=np.int64)
    found: BoolArray = _replay(requested, graph.nodes, capacity, moves, counts, last)
    return found


@numba.njit(cache=True, nogil=True, boundscheck=False, error_model="numpy")
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
        gone = v
        if uses[v] >= 0:
            found[at] = True
            if not moves:
                continue
            k = uses[v] + counts
        else:
            k = 0
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
