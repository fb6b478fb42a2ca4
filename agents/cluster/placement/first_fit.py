"""Consolidated first fit."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from agents.cluster.placement.codes import FIRST_FIT
from agents.cluster.placement.eligible import (
    IntArray,
    Record,
    Records,
    first_that_holds,
    fits_one_node,
    take_largest_idle,
    with_rest,
)
from agents.cluster.placement.rule import KernelRule


@njit(cache=True)
def choose_first_fit(
    nodes: Records,
    job: Record,
    random: NDArray[np.uint64],
    out_nodes: IntArray,
    out_gpus: IntArray,
) -> int:
    """See `FirstFit`; the number of shares, 0 where the job does not fit."""
    count, left = 0, int(job.gpus)
    if not fits_one_node(nodes, job):
        count, left = take_largest_idle(nodes, job, out_nodes, out_gpus)
    node = first_that_holds(nodes, job, left)
    shares: int = with_rest(nodes, count, left, node, out_nodes, out_gpus)
    return shares


class FirstFit(KernelRule):
    """A gang that fits on a node takes the lowest that holds it.

    A larger one takes idle nodes, the largest first, so that it is on few nodes, and for the rest
    the lowest other node that holds it.
    """

    name = "first_fit"
    code = FIRST_FIT
    kernel = staticmethod(choose_first_fit)
