"""Which nodes a job may use: those that are up, of a GPU type it permits, with room for its share.

A job's processor and memory are split over its shares in proportion to their GPUs. A node is a NODE
record of `cluster_state`, a job a JOB record.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from agents.cluster.policy import Share
from envs.arrays import IntArray
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_kernel import part
from envs.cluster.simulation.cluster_state import NONE
from envs.cluster.workload.trace import WHOLE_GPU
from envs.compilation import compiled, compiled_inner, pasted
from envs.errors import InputError

Record = Any  # one of the records of `cluster_state`
Records = NDArray[np.void]


def refuse_fraction(simulator: ClusterSimulator, job: int) -> None:
    """Raise where a job asks for a fraction of a GPU.

    Raises:
        InputError: naming the job.
    """
    milli = int(simulator.state.jobs["milli"][job])
    if milli != WHOLE_GPU:
        problem = f"{milli} thousandths of a GPU need a placement rule for fractions"
        raise InputError(problem, file=simulator.trace.name, record=job, field="gpu_milli")


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


@compiled
def rooms(nodes: Records, job: Record) -> IntArray:
    """(N,) GPUs of the largest share of the job that each node can hold now; -1: not even none."""
    found = np.empty(len(nodes), np.int64)
    for node in range(len(nodes)):
        gpus = min(int(job.gpus), int(nodes[node].free))
        while gpus >= 0 and not holds(nodes[node], job, gpus):
            gpus -= 1
        found[node] = gpus
    return found


def emptiest_first(room: IntArray, score: NDArray[Any], gpus: int) -> list[Share]:
    """`gpus` GPUs of the nodes with the most `room` (N,), of equals of those with the least score.

    Their rooms hold as many.
    """
    order = np.lexsort((score, -room))
    taken = np.diff(room[order].clip(0).cumsum().clip(max=gpus), prepend=0)
    shares = zip(order.tolist(), taken.tolist(), strict=True)
    return [(node, here) for node, here in shares if here > 0]


@compiled
def fits_one_node(nodes: Records, job: Record) -> bool:
    """Whether any node, up or down, of a type that the job permits has as many GPUs as it wants."""
    for node in range(len(nodes)):
        if nodes[node].gpus >= job.gpus and permitted(nodes[node], job):
            return True
    return bool(job.gpus == 0)


@compiled_inner
def best_node(nodes: Records, job: Record, gpus: int, fullest: bool) -> int:
    """The lowest node that holds a share, or of those with the fewest free GPUs; or NONE."""
    best, least = NONE, np.iinfo(np.int32).max
    for node in range(len(nodes)):
        if nodes[node].free >= gpus and nodes[node].free < least and holds(nodes[node], job, gpus):
            if not fullest:
                return node
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
