"""GPUs drawn at random."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from agents.cluster.placement.codes import RANDOM
from agents.cluster.placement.count import choose_count
from agents.cluster.placement.eligible import IntArray, Record, Records, room
from agents.cluster.placement.rule import KernelRule


@njit(cache=True)
def uniform(random: NDArray[np.uint64]) -> float:
    """A number from [0, 1).

    Reference: Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA
    2014, figure 13 (SplitMix64).
    """
    random[0] += np.uint64(0x9E3779B97F4A7C15)
    word = random[0]
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    word ^= word >> np.uint64(31)
    return float(word >> np.uint64(11)) * 2.0**-53


@njit(cache=True)
def candidates(node: Record, job: Record) -> int:
    """GPUs of the node that may be drawn: the free ones, or the largest share it has room for."""
    most = min(int(job.gpus), int(node.free))
    held: int = room(node, job, most)
    return int(node.free) if held == most else held


@njit(cache=True)
def choose_random(
    nodes: Records,
    job: Record,
    random: NDArray[np.uint64],
    out_nodes: IntArray,
    out_gpus: IntArray,
) -> int:
    """See `Random`; the number of shares, 0 where the job does not fit."""
    left = int(job.gpus)
    if left == 0:
        alone: int = choose_count(nodes, job, random, out_nodes, out_gpus)
        return alone
    available = 0
    for node in range(len(nodes)):
        available += candidates(nodes[node], job)
    if available < left:
        return 0
    count = 0
    for node in range(len(nodes)):
        gpus = 0
        for _ in range(candidates(nodes[node], job)):
            if uniform(random) * available < left:  # Knuth's selection sampling
                gpus += 1
                left -= 1
            available -= 1
        if gpus > 0:
            out_nodes[count], out_gpus[count] = node, gpus
            count += 1
        if left == 0:
            break
    return count


class Random(KernelRule):
    """Every set of as many GPUs as the gang asks for, of those it could have, is equally likely."""

    name = "random"
    code = RANDOM
    kernel = staticmethod(choose_random)
    draws = True
