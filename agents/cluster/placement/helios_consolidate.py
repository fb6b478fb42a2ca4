"""The consolidated placement of Helios' simulator."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from agents.cluster.placement.codes import HELIOS_CONSOLIDATE
from agents.cluster.placement.eligible import (
    IntArray,
    Record,
    Records,
    fills,
    fits_one_node,
    fullest_that_holds,
    holds,
)
from agents.cluster.placement.rule import KernelRule
from envs.cluster.simulation.cluster_state import NONE


@njit(cache=True)
def choose_helios_consolidate(
    nodes: Records,
    job: Record,
    random: NDArray[np.uint64],
    out_nodes: IntArray,
    out_gpus: IntArray,
) -> int:
    """See `HeliosConsolidate`; the number of shares, 0 where the job does not fit."""
    left = int(job.gpus)
    if fits_one_node(nodes, job):
        node = fullest_that_holds(nodes, job, left)
        if node == NONE:
            return 0
        out_nodes[0], out_gpus[0] = node, left
        return 1
    count = 0
    for node in np.argsort(-nodes["free"], kind="mergesort"):
        if fills(nodes[node], job, left):
            out_nodes[count], out_gpus[count] = node, nodes[node].gpus
            left -= out_gpus[count]
            count += 1
        elif holds(nodes[node], job, left):
            out_nodes[count], out_gpus[count] = node, left
            return count + 1
        elif holds(nodes[node], job, 1):
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
