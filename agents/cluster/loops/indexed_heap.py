"""Binary min-heap of jobs by their next event, from which any job can be removed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray


class IndexedHeap(NamedTuple):
    """The first jobs of `jobs` are a heap by (time, job)."""

    jobs: NDArray[np.int32]  # (J,)
    time: NDArray[np.int64]  # (J,) of each job, seconds
    place: NDArray[np.int32]  # (J,) of each job in `jobs`


@njit(cache=True)
def indexed_heap(jobs: int) -> IndexedHeap:
    """Room for `jobs` jobs, empty."""
    return IndexedHeap(np.empty(jobs, np.int32), np.empty(jobs, np.int64), np.empty(jobs, np.int32))


@njit(cache=True)
def _up(heap: IndexedHeap, i: int, job: int) -> None:
    time = heap.time[job]
    while i > 0:
        parent = (i - 1) >> 1
        other = heap.jobs[parent]
        if heap.time[other] < time or (heap.time[other] == time and other < job):
            break
        heap.jobs[i] = other
        heap.place[other] = i
        i = parent
    heap.jobs[i] = job
    heap.place[job] = i


@njit(cache=True)
def insert(heap: IndexedHeap, size: int, job: int, time: int) -> int:
    """Add `job`, whose next event is at `time`; the new size."""
    heap.time[job] = time
    _up(heap, size, job)
    return size + 1


@njit(cache=True)
def remove(heap: IndexedHeap, size: int, job: int) -> int:
    """Take `job` out; the new size."""
    i = int(heap.place[job])
    size -= 1
    if i == size:
        return size
    moved = heap.jobs[size]
    time = heap.time[moved]
    child = 2 * i + 1
    while child < size:
        other = heap.jobs[child]
        if child + 1 < size:
            second = heap.jobs[child + 1]
            if heap.time[second] < heap.time[other] or (
                heap.time[second] == heap.time[other] and second < other
            ):
                other = second
                child += 1
        if heap.time[other] > time or (heap.time[other] == time and other > moved):
            break
        heap.jobs[i] = other
        heap.place[other] = i
        i = child
        child = 2 * i + 1
    _up(heap, i, moved)
    return size
