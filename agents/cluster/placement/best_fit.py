"""Consolidated best fit."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from agents.cluster.placement.codes import BEST_FIT
from agents.cluster.placement.eligible import (
    IntArray,
    Record,
    Records,
    fits_one_node,
    fullest_that_holds,
    take_largest_idle,
    with_rest,
)
from agents.cluster.placement.rule import KernelRule


@njit(cache=True)
def choose_best_fit(
    nodes: Records,
    job: Record,
    random: NDArray[np.uint64],
    out_nodes: IntArray,
    out_gpus: IntArray,
) -> int:
    """See `BestFit`; the number of shares, 0 where the job does not fit."""
    count, left = 0, int(job.gpus)
    if not fits_one_node(nodes, job):
        count, left = take_largest_idle(nodes, job, out_nodes, out_gpus)
    node = fullest_that_holds(nodes, job, left)
    shares: int = with_rest(nodes, count, left, node, out_nodes, out_gpus)
    return shares


class BestFit(KernelRule):
    """A gang that fits on a node takes the fullest that holds it, the lowest of these.

    A larger one takes idle nodes, the largest first, so that it is on few nodes, and for the rest
    the fullest other node that holds it.
    """

    name = "best_fit"
    code = BEST_FIT
    kernel = staticmethod(choose_best_fit)
