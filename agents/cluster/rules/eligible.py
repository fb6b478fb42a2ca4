"""Which nodes a job may use: those that are up, of a GPU type it permits, with room for its share.

A job's processor and memory are split over its shares in proportion to their GPUs. A node is a NODE
record of `cluster_state`, a job a JOB record.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.arrays import IntArray
from envs.cluster.simulation.cluster_kernel import part
from envs.cluster.simulation.cluster_state import NONE
from envs.compilation import compiled, compiled_inner, pasted

Record = Any  # one of the records of `cluster_state`
Records = NDArray[np.void]


@pasted
def permitted(node: Record, job: Record) -> bool:
    """Whether the job may run on the node's GPU type."""
    allowed: bool = (job.types >> node.type) & 1 != 0
    return allowed


@compiled
def holds(node: Record, job: Record, gpus: int) -> bool:
    """Whether a share of `gpus` GPUs of the job can be on the node now."""
    held: bool = (
        node.free >= gpus
        and node.up != 0
        and permitted(node, job)
        and part(job.cpu, gpus, job.gpus) <= node.cpu
        and part(job.memory, gpus, job.gpus) <= node.memory
    )
    return held


@compiled_inner
def largest_share(node: Record, job: Record, most: int) -> int:
    """The largest share of the job, up to `most` GPUs, that can be on the node now; or 0."""
    gpus = min(most, int(node.free))
    while gpus > 0 and not holds(node, job, gpus):
        gpus -= 1
    return gpus


@compiled
def rooms(nodes: Records, job: Record) -> IntArray:
    """(N,) GPUs of the largest share of the job that each node can hold now; -1: not even none."""
    found = np.empty(len(nodes), np.int64)
    for node in range(len(nodes)):
        found[node] = largest_share(nodes[node], job, int(job.gpus))
        if found[node] == 0 and not holds(nodes[node], job, 0):
            found[node] = -1
    return found


@compiled
def fits_one_node(nodes: Records, job: Record) -> bool:
    """Whether any node, up or down, of a type that the job permits has as many GPUs as it wants."""
    for node in range(len(nodes)):
        if nodes[node].gpus >= job.gpus and permitted(nodes[node], job):
            return True
    return bool(job.gpus == 0)


@compiled_inner
def first_that_holds(nodes: Records, job: Record, gpus: int) -> int:
    """The lowest node that holds a share, or NONE."""
    for node in range(len(nodes)):
        if nodes[node].free >= gpus and holds(nodes[node], job, gpus):
            return node
    return NONE


@compiled_inner
def fullest_that_holds(nodes: Records, job: Record, gpus: int) -> int:
    """The same, but the node with the fewest free GPUs, the lowest of these."""
    best, least = NONE, np.iinfo(np.int32).max
    for node in range(len(nodes)):
        if gpus <= nodes[node].free < least and holds(nodes[node], job, gpus):
            best, least = node, nodes[node].free
            if least == gpus:
                break
    return best


@compiled_inner
def fills(node: Record, job: Record, left: int) -> bool:
    """Whether the node is idle and `left` GPUs of the job fill it."""
    whole = node.gpus
    idle: bool = 0 < whole <= left and node.free == whole and holds(node, job, whole)
    return idle


@compiled_inner
def take_first_idle(
    nodes: Records, job: Record, out_nodes: IntArray, out_gpus: IntArray
) -> tuple[int, int]:
    """Choose idle nodes that the job fills, the lowest first; until `with_rest` they look full.

    Returns:
        How many, and how many GPUs are still wanted.
    """
    left = int(job.gpus)
    count = 0
    for node in range(len(nodes)):
        if fills(nodes[node], job, left):
            out_nodes[count], out_gpus[count] = node, nodes[node].gpus
            nodes[node].free = 0
            left -= out_gpus[count]
            count += 1
    return count, left


@compiled_inner
def take_largest_idle(
    nodes: Records, job: Record, out_nodes: IntArray, out_gpus: IntArray
) -> tuple[int, int]:
    """The same, but the largest first, of equal ones the lowest."""
    left = int(job.gpus)
    count = 0
    below = left + 1
    while below > 1:
        size = 0  # the next smaller size of an idle node
        for node in range(len(nodes)):
            whole = nodes[node].gpus
            if size < whole < below and fills(nodes[node], job, left):
                size = whole
        for node in range(len(nodes)):
            if nodes[node].gpus == size and fills(nodes[node], job, left):
                out_nodes[count], out_gpus[count] = node, size
                nodes[node].free = 0
                left -= size
                count += 1
        below = size
    return count, left


@compiled_inner
def with_rest(
    nodes: Records, count: int, left: int, node: int, out_nodes: IntArray, out_gpus: IntArray
) -> int:
    """Put back `count` idle nodes chosen and add `node`, or NONE, for what is `left`.

    Returns:
        The number of shares; 0 where something is left and no node holds it.
    """
    for i in range(count):
        nodes[out_nodes[i]].free = nodes[out_nodes[i]].gpus
    if left == 0 and count > 0:
        return count
    if node == NONE:
        return 0
    out_nodes[count], out_gpus[count] = node, left
    return count + 1
