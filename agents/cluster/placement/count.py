"""Free GPUs are counted, wherever they are."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from agents.cluster.placement.codes import COUNT
from agents.cluster.placement.eligible import IntArray, Record, Records, holds, room
from agents.cluster.placement.rule import KernelRule


@njit(cache=True)
def choose_count(
    nodes: Records,
    job: Record,
    random: NDArray[np.uint64],
    out_nodes: IntArray,
    out_gpus: IntArray,
) -> int:
    """Take what is free, node by node; the number of shares, 0 where the job does not fit."""
    left = int(job.gpus)
    count = 0
    for node in range(len(nodes)):
        gpus = room(nodes[node], job, left)
        if gpus > 0 or (left == 0 and holds(nodes[node], job, 0)):
            out_nodes[count], out_gpus[count] = node, gpus
            left -= gpus
            count += 1
        if left == 0 and count > 0:
            return count
    return 0


class Count(KernelRule):
    """A gang fits as soon as as many GPUs are free; it takes those of the lowest nodes."""

    name = "count"
    code = COUNT
    kernel = staticmethod(choose_count)
