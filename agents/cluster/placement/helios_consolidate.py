"""The consolidated placement of Helios' simulator."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from agents.cluster.placement.codes import HELIOS_CONSOLIDATE
from agents.cluster.placement.eligible import (
    IntArray,
    fills,
    fullest_that_holds,
    holds,
    largest_node,
)
from agents.cluster.placement.rule import KernelRule
from envs.simulation.cluster_state import NONE, ClusterState


@njit(cache=True)
def choose_helios_consolidate(
    state: ClusterState,
    job: int,
    random: NDArray[np.uint64],
    out_nodes: IntArray,
    out_gpus: IntArray,
) -> int:
    """See `HeliosConsolidate`; the number of shares, 0 where the job does not fit."""
    left = int(state.jobs[job].gpus)
    if left <= largest_node(state, job):
        node = fullest_that_holds(state, job, left, np.zeros(0, np.bool_))
        if node == NONE:
            return 0
        out_nodes[0], out_gpus[0] = node, left
        return 1
    count = 0
    for node in np.argsort(-state.nodes["free"], kind="mergesort"):
        if fills(state, job, node, left):
            out_nodes[count], out_gpus[count] = node, state.nodes[node].gpus
            left -= out_gpus[count]
            count += 1
        elif holds(state, job, node, left):
            out_nodes[count], out_gpus[count] = node, left
            return count + 1
        elif holds(state, job, node, 1):
            return 0
        if left == 0:
            return count
    return 0


class HeliosConsolidate(KernelRule):
    """A gang that fits on a node takes the fullest that holds it, the lowest of these.

    A larger one goes through the nodes by free GPUs, the emptiest first: idle nodes, then one for
    the rest, which must be the next in that order.
    """

    name = "helios_consolidate"
    code = HELIOS_CONSOLIDATE
    kernel = staticmethod(choose_helios_consolidate)
