"""The consolidated placement of Tiresias' simulator, which it calls YARN's."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from agents.cluster.placement.codes import YARN
from agents.cluster.placement.eligible import (
    IntArray,
    fills,
    first_that_holds,
    largest_node,
)
from agents.cluster.placement.rule import KernelRule
from envs.simulation.cluster_state import NONE, ClusterState


@njit(cache=True)
def choose_yarn(
    state: ClusterState,
    job: int,
    random: NDArray[np.uint64],
    out_nodes: IntArray,
    out_gpus: IntArray,
) -> int:
    """See `Yarn`; the number of shares, 0 where the job does not fit."""
    left = int(state.jobs[job].gpus)
    count = 0
    taken = np.zeros(0, np.bool_)
    if left > largest_node(state, job):
        taken = np.zeros(len(state.nodes), np.bool_)
        for node in range(len(state.nodes)):
            if fills(state, job, node, left):
                out_nodes[count], out_gpus[count] = node, state.nodes[node].gpus
                taken[node] = True
                left -= out_gpus[count]
                count += 1
    if left == 0 and count > 0:
        return count
    node = first_that_holds(state, job, left, taken)
    if node == NONE:
        return 0
    out_nodes[count], out_gpus[count] = node, left
    return count + 1


class Yarn(KernelRule):
    """A gang that fits on a node takes the lowest with enough free GPUs.

    A larger one takes idle nodes, the lowest first, and for the rest the lowest other node with
    enough free GPUs. Nodes may differ in size: an idle one larger than what is still wanted is
    passed over.
    """

    name = "yarn"
    code = YARN
    kernel = staticmethod(choose_yarn)
