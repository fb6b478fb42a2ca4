"""Which nodes a job may use: those that are up, of a GPU type it permits, with room for its share.

A job's processor and memory are split over its shares in proportion to their GPUs.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from envs.errors import InputError
from envs.simulation.cluster import ClusterSimulator
from envs.simulation.cluster_kernel import part
from envs.simulation.cluster_state import NONE, ClusterState
from envs.workload.trace import WHOLE_GPU

IntArray = NDArray[np.int64]


@njit(cache=True, inline="always")
def permitted(state: ClusterState, job: int, node: int) -> bool:
    """Whether the job may run on the node's GPU type."""
    types = state.jobs[job].types
    allowed: bool = types == 0 or (types >> state.nodes[node].type) & 1 != 0
    return allowed


@njit(cache=True)
def holds(state: ClusterState, job: int, node: int, gpus: int) -> bool:
    """Whether a share of `gpus` GPUs of the job can be on the node now."""
    record, place = state.jobs[job], state.nodes[node]
    held: bool = (
        place.free >= gpus
        and place.up != 0
        and permitted(state, job, node)
        and part(record.cpu, gpus, record.gpus) <= place.cpu
        and part(record.memory, gpus, record.gpus) <= place.memory
    )
    return held


@njit(cache=True)
def room(state: ClusterState, job: int, node: int, most: int) -> int:
    """The largest share of the job, up to `most` GPUs, that can be on the node now; or 0."""
    gpus = min(most, int(state.nodes[node].free))
    while gpus > 0 and not holds(state, job, node, gpus):
        gpus -= 1
    return gpus


@njit(cache=True)
def largest_node(state: ClusterState, job: int) -> int:
    """GPUs of the largest node, up or down, of a type that the job permits."""
    largest = 0
    for node in range(len(state.nodes)):
        if permitted(state, job, node):
            largest = max(largest, int(state.nodes[node].gpus))
    return largest


@njit(cache=True)
def first_that_holds(state: ClusterState, job: int, gpus: int, taken: NDArray[np.bool_]) -> int:
    """The lowest node that holds a share and is not `taken`, or NONE.

    `taken` is (N,), or (0,) where no node is.
    """
    for node in range(len(state.nodes)):
        if not (len(taken) and taken[node]) and holds(state, job, node, gpus):
            return node
    return NONE


@njit(cache=True)
def fullest_that_holds(state: ClusterState, job: int, gpus: int, taken: NDArray[np.bool_]) -> int:
    """The same, but the node with the fewest free GPUs, the lowest of these."""
    best = NONE
    for node in range(len(state.nodes)):
        if (len(taken) and taken[node]) or (
            best != NONE and state.nodes[node].free >= state.nodes[best].free
        ):
            continue
        if holds(state, job, node, gpus):
            best = node
    return best


@njit(cache=True)
def fills(state: ClusterState, job: int, node: int, left: int) -> bool:
    """Whether the node is idle and `left` GPUs of the job fill it."""
    whole = state.nodes[node].gpus
    idle: bool = (
        0 < whole <= left and state.nodes[node].free == whole and holds(state, job, node, whole)
    )
    return idle


@njit(cache=True)
def take_largest_idle(
    state: ClusterState,
    job: int,
    taken: NDArray[np.bool_],
    out_nodes: IntArray,
    out_gpus: IntArray,
) -> tuple[int, int]:
    """Choose idle nodes that the job fills, the largest first, of equal ones the lowest.

    Returns:
        How many, and how many GPUs are still wanted.
    """
    left = int(state.jobs[job].gpus)
    count = 0
    below = left + 1
    while below > 1:
        size = 0  # the next smaller size of an idle node
        for node in range(len(state.nodes)):
            whole = state.nodes[node].gpus
            if size < whole < below and fills(state, job, node, left):
                size = whole
        for node in range(len(state.nodes)):
            if state.nodes[node].gpus == size and fills(state, job, node, left):
                out_nodes[count], out_gpus[count] = node, size
                taken[node] = True
                left -= size
                count += 1
        below = size
    return count, left


def whole_gpus(simulator: ClusterSimulator, job: int) -> None:
    """See that `job` asks for whole GPUs.

    Raises:
        InputError: it asks for a fraction of one.
    """
    milli = int(simulator.state.jobs[job]["milli"])
    if milli != WHOLE_GPU:
        trace = simulator.trace
        problem = f"{milli} thousandths of a GPU need a placement rule for fractions"
        raise InputError(problem, file=trace.name, record=job, field="gpu_milli")
