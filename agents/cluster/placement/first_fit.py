"""Consolidated first fit."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from agents.cluster.placement.codes import FIRST_FIT
from agents.cluster.placement.eligible import (
    IntArray,
    first_that_holds,
    largest_node,
    take_largest_idle,
)
from agents.cluster.placement.rule import KernelRule
from envs.simulation.cluster_state import NONE, ClusterState


@njit(cache=True)
def choose_first_fit(
    state: ClusterState,
    job: int,
    random: NDArray[np.uint64],
    out_nodes: IntArray,
    out_gpus: IntArray,
) -> int:
    """See `FirstFit`; the number of shares, 0 where the job does not fit."""
    left = int(state.jobs[job].gpus)
    count = 0
    taken = np.zeros(0, np.bool_)
    if left > largest_node(state, job):
        taken = np.zeros(len(state.nodes), np.bool_)
        count, left = take_largest_idle(state, job, taken, out_nodes, out_gpus)
    if left == 0 and count > 0:
        return count
    node = first_that_holds(state, job, left, taken)
    if node == NONE:
        return 0
    out_nodes[count], out_gpus[count] = node, left
    return count + 1


class FirstFit(KernelRule):
    """A gang that fits on a node takes the lowest that holds it.

    A larger one takes idle nodes, the largest first, so that it is on few nodes, and for the rest
    the lowest other node that holds it.
    """

    name = "first_fit"
    code = FIRST_FIT
    kernel = staticmethod(choose_first_fit)
