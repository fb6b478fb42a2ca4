"""Over as many nodes as can be."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from agents.cluster.placement.codes import SPREAD
from agents.cluster.placement.count import choose_count
from agents.cluster.placement.eligible import IntArray, Record, Records, room
from agents.cluster.placement.rule import KernelRule
from envs.cluster.simulation.cluster_state import NONE


@njit(cache=True)
def choose_spread(
    nodes: Records,
    job: Record,
    random: NDArray[np.uint64],
    out_nodes: IntArray,
    out_gpus: IntArray,
) -> int:
    """See `Spread`; the number of shares, 0 where the job does not fit."""
    left = int(job.gpus)
    if left == 0:
        alone: int = choose_count(nodes, job, random, out_nodes, out_gpus)
        return alone
    most = np.empty(len(nodes), np.int64)
    for node in range(len(nodes)):
        most[node] = room(nodes[node], job, left)
    if most.sum() < left:
        return 0
    given = np.zeros(len(nodes), np.int64)
    for _ in range(left):
        best, free = NONE, -1
        for node in range(len(nodes)):
            if given[node] < most[node] and nodes[node].free - given[node] > free:
                best, free = node, int(nodes[node].free - given[node])
        given[best] += 1
    count = 0
    for node in range(len(given)):
        if given[node] > 0:
            out_nodes[count], out_gpus[count] = node, given[node]
            count += 1
    return count


class Spread(KernelRule):
    """GPU by GPU from the node with the most free ones, the lowest of these."""

    name = "spread"
    code = SPREAD
    kernel = staticmethod(choose_spread)
