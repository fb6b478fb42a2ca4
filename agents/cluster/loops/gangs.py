"""Jobs by gang size: as free GPUs only shrink within a pass, one job of a size that does not fit
settles it for all jobs of that size."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

NOTHING = np.iinfo(np.int64).max  # head of an empty queue


class Gangs(NamedTuple):
    """C distinct gang sizes of J jobs."""

    sizes: NDArray[np.int64]  # (C,) GPUs, ascending
    base: NDArray[np.int64]  # (C + 1,) jobs of smaller sizes
    of: NDArray[np.int32]  # (J,) index of the job's size


@njit(cache=True)
def gangs_of(gpus: NDArray[np.int32], largest: int) -> Gangs:
    """The gang sizes of jobs that ask for at most `largest` GPUs."""
    jobs = np.zeros(largest + 1, np.int64)
    for j in range(len(gpus)):
        jobs[gpus[j]] += 1
    sizes = np.flatnonzero(jobs)
    base = np.zeros(len(sizes) + 1, np.int64)
    index = np.zeros(largest + 1, np.int32)
    for c in range(len(sizes)):
        index[sizes[c]] = c
        base[c + 1] = base[c] + jobs[sizes[c]]
    of = np.empty(len(gpus), np.int32)
    for j in range(len(gpus)):
        of[j] = index[gpus[j]]
    return Gangs(sizes, base, of)
