"""The consolidated placement of Tiresias' simulator, which it calls YARN's."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from agents.cluster.placement.codes import YARN
from agents.cluster.placement.eligible import (
    IntArray,
    Record,
    Records,
    first_that_holds,
    fits_one_node,
    take_first_idle,
    with_rest,
)
from agents.cluster.placement.rule import KernelRule


@njit(cache=True)
def choose_yarn(
    nodes: Records,
    job: Record,
    random: NDArray[np.uint64],
    out_nodes: IntArray,
    out_gpus: IntArray,
) -> int:
    """See `Yarn`; the number of shares, 0 where the job does not fit."""
    count, left = 0, int(job.gpus)
    if not fits_one_node(nodes, job):
        count, left = take_first_idle(nodes, job, out_nodes, out_gpus)
    node = first_that_holds(nodes, job, left)
    shares: int = with_rest(nodes, count, left, node, out_nodes, out_gpus)
    return shares


class Yarn(KernelRule):
    """A gang that fits on a node takes the lowest with enough free GPUs.

    A larger one takes idle nodes, the lowest first, and for the rest the lowest other node with
    enough free GPUs. Nodes may differ in size: an idle one larger than what is still wanted is
    passed over.
    """

    name = "yarn"
    code = YARN
    kernel = staticmethod(choose_yarn)
