"""Nodes to live on, compiled: what `homes.Homes` asks at every move."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from envs.cluster.workload.trace import WHOLE_GPU

IntArray = NDArray[np.int64]
Records = NDArray[np.void]
NO_ROOM, TOO_LARGE = -1, -2  # no node has room; no node could hold the gang if it were empty


@njit(cache=True, inline="always")
def usable(record: Any, place: Any) -> bool:
    """Whether a job may live on a node, which is up."""
    permitted: bool = (record.types >> np.int64(place.type)) & 1 == 1
    return permitted and place.up != 0


@njit(cache=True)
def best_node(
    jobs: Records,
    nodes: Records,
    size: IntArray,
    used: IntArray,
    affinity: IntArray,
    job: int,
    crowded: bool,
) -> int:
    """The least loaded node of the job's affinity, else an empty one, else the least loaded one.

    Args:
        jobs: `cluster_state.JOB` records.
        nodes: (N,) `cluster_state.NODE` records.
        size: (N,) thousandths of GPUs.
        used: (N,) thousandths of GPUs of the inhabitants.
        affinity: (N,) gang of the first inhabitant, 0: there is none.
        job: who looks for a home.
        crowded: whether nodes without room count as well; an empty node is then like any other.

    Returns:
        The number of the node, the lowest of several, or NO_ROOM or TOO_LARGE.
    """
    record = jobs[job]
    gang = np.int64(record.gpus)
    best, best_rank, best_load = TOO_LARGE, 3, np.inf
    for node in range(len(nodes)):
        if not usable(record, nodes[node]) or size[node] < gang * WHOLE_GPU:
            continue
        if not crowded and size[node] - used[node] < gang * record.milli:
            if best == TOO_LARGE:
                best = NO_ROOM
            continue
        rank = 2
        if affinity[node] == gang:
            rank = 0
        elif affinity[node] == 0 and not crowded:
            rank = 1
        load = used[node] / max(size[node], 1)
        if rank < best_rank or (rank == best_rank and load < best_load):
            best, best_rank, best_load = node, rank, load
    return best


@njit(cache=True)
def several_nodes(
    jobs: Records, nodes: Records, left: IntArray, used: IntArray, job: int, home: IntArray
) -> int:
    """Nodes with the most GPUs left first, then the least used, until the gang is whole.

    Args:
        jobs: `cluster_state.JOB` records.
        nodes: (N,) `cluster_state.NODE` records.
        left: (N,) thousandths of GPUs.
        used: (N,) thousandths of GPUs of the inhabitants.
        job: who looks for a home.
        home: (N, 2) node and GPUs there, filled.

    Returns:
        The number of nodes, or NO_ROOM.
    """
    record = jobs[job]
    gpus = np.zeros(len(nodes), np.int64)
    for node in range(len(nodes)):
        if usable(record, nodes[node]):
            gpus[node] = max(left[node], 0) // WHOLE_GPU
    gang, count = np.int64(record.gpus), 0
    if gang == 0:  # needs no GPU, but a node, and none is up
        return NO_ROOM
    while gang > 0:
        best = 0
        for node in range(1, len(nodes)):
            more = gpus[node] > gpus[best]
            if more or (gpus[node] == gpus[best] and used[node] < used[best]):
                best = node
        here = min(gang, gpus[best])
        if here == 0:
            return NO_ROOM
        home[count, 0], home[count, 1] = best, here
        gpus[best] = 0
        gang -= here
        count += 1
    return count


@njit(cache=True)
def fuller_node(
    jobs: Records, nodes: Records, size: IntArray, used: IntArray, job: int, own: int
) -> int:
    """The fullest node with room that more is used of than of `own`, or NO_ROOM."""
    record = jobs[job]
    best, best_load = NO_ROOM, -1.0
    for node in range(len(nodes)):
        room = size[node] - used[node] >= np.int64(record.gpus) * record.milli
        if not room or used[node] <= used[own] or not usable(record, nodes[node]):
            continue
        load = used[node] / max(size[node], 1)
        if load > best_load:
            best, best_load = node, load
    return best
