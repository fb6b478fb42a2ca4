"""The running jobs, the next one to finish first: a binary heap in which jobs can be found."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from envs.cluster.simulation.cluster_state import NONE

IntArray = NDArray[np.int32]
Records = NDArray[np.void]


@njit(cache=True, inline="always")
def earlier(jobs: Records, a: int, b: int) -> bool:
    """Whether job `a` ends before job `b`; of equal ends the lower number."""
    return jobs[a].end < jobs[b].end or (jobs[a].end == jobs[b].end and a < b)


@njit(cache=True)
def rise(jobs: Records, heap: IntArray, place: int) -> None:
    """Move the job at `place` up to where it belongs."""
    job = heap[place]
    while place > 0:
        parent = (place - 1) >> 1
        if not earlier(jobs, job, heap[parent]):
            break
        heap[place] = heap[parent]
        jobs[heap[place]].place = place
        place = parent
    heap[place] = job
    jobs[job].place = place


@njit(cache=True)
def sink(jobs: Records, heap: IntArray, size: int, place: int) -> None:
    """Move the job at `place` down to where it belongs among the first `size`."""
    job = heap[place]
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and earlier(jobs, heap[child + 1], heap[child]):
            child += 1
        if not earlier(jobs, heap[child], job):
            break
        heap[place] = heap[child]
        jobs[heap[place]].place = place
        place = child
    heap[place] = job
    jobs[job].place = place


@njit(cache=True)
def push(jobs: Records, heap: IntArray, size: int, job: int) -> None:
    """Add `job` to a heap of `size` jobs."""
    heap[size] = job
    rise(jobs, heap, size)


@njit(cache=True)
def remove(jobs: Records, heap: IntArray, size: int, job: int) -> None:
    """Take `job` out of a heap of `size` jobs."""
    place = jobs[job].place
    jobs[job].place = NONE
    last = heap[size - 1]
    if last != job:
        heap[place] = last
        jobs[last].place = place
        rise(jobs, heap, place)
        sink(jobs, heap, size - 1, jobs[last].place)


@njit(cache=True)
def reorder(jobs: Records, heap: IntArray, size: int, job: int) -> None:
    """Put `job` in its place after its end has changed."""
    rise(jobs, heap, jobs[job].place)
    sink(jobs, heap, size, jobs[job].place)
