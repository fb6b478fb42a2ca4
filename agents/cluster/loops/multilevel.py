"""Multilevel feedback queues of gangs, counting free GPUs only.

Each of Q queues holds its running jobs, then its waiting jobs, then running jobs demoted into it at
the present instant. A pass walks through all queues in this order and gives GPUs of an empty
cluster to what fits. Afterwards running jobs stand before waiting ones again, in the same order.

As in `shortest_remaining`, a pass need not walk through all: what runs goes on unless a job taken
before it takes its GPUs, and only the first waiting job of each gang size can be taken next.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from agents.cluster.loops.gangs import NOTHING, gangs_of

NONE = -1  # end of a chain
IntArray = NDArray[np.int64]
JobArray = NDArray[np.int32]


class Queues(NamedTuple):
    """J jobs of C gang sizes in Q queues; chain 2k: running in queue k, 2k + 1: demoted into k."""

    gpus: JobArray  # (J,)
    sizes: IntArray  # (C,) ascending
    of: JobArray  # (J,) index of the job's size
    level: JobArray  # (J,) queue of the job
    before: JobArray  # (J,) in its chain
    after: JobArray  # (J,)
    first: JobArray  # (2Q,)
    last: JobArray  # (2Q,)
    held: IntArray  # (2Q,) GPUs of a chain
    waiting_first: JobArray  # (Q, C)
    waiting_last: JobArray  # (Q, C)
    head: IntArray  # (Q, C) place of the first waiting job, or NOTHING
    place: IntArray  # (J,) orders the waiting jobs of a queue
    ends: IntArray  # (2,) least and greatest place so far
    taken: JobArray  # (J,) by the last pass
    dropped: JobArray  # (J,) by the last pass


@njit(cache=True)
def queues_of(gpus: JobArray, total: int, count: int) -> Queues:
    """`count` empty queues."""
    jobs = len(gpus)
    sizes, _, of = gangs_of(gpus, total)
    shape = (count, len(sizes))
    return Queues(
        gpus, sizes, of,
        np.zeros(jobs, np.int32), np.empty(jobs, np.int32), np.empty(jobs, np.int32),
        np.full(2 * count, NONE, np.int32), np.full(2 * count, NONE, np.int32),
        np.zeros(2 * count, np.int64),
        np.full(shape, NONE, np.int32), np.full(shape, NONE, np.int32),
        np.full(shape, NOTHING, np.int64), np.empty(jobs, np.int64), np.zeros(2, np.int64),
        np.empty(jobs, np.int32), np.empty(jobs, np.int32),
    )  # fmt: skip


@njit(cache=True)
def join(q: Queues, chain: int, job: int) -> None:
    """Put `job` at the end of a chain of running jobs."""
    last = q.last[chain]
    q.before[job], q.after[job] = last, NONE
    if last == NONE:
        q.first[chain] = job
    else:
        q.after[last] = job
    q.last[chain] = job
    q.held[chain] += q.gpus[job]


@njit(cache=True)
def leave(q: Queues, chain: int, job: int) -> None:
    """Take `job` out of a chain of running jobs."""
    before, after = q.before[job], q.after[job]
    if before == NONE:
        q.first[chain] = after
    else:
        q.after[before] = after
    if after == NONE:
        q.last[chain] = before
    else:
        q.before[after] = before
    q.held[chain] -= q.gpus[job]


@njit(cache=True)
def wait_last(q: Queues, job: int) -> None:
    """`job` waits behind all of its queue."""
    k, c = q.level[job], q.of[job]
    q.ends[1] += 1
    q.place[job] = q.ends[1]
    q.after[job] = NONE
    if q.waiting_first[k, c] == NONE:
        q.waiting_first[k, c] = job
        q.head[k, c] = q.place[job]
    else:
        q.after[q.waiting_last[k, c]] = job
    q.waiting_last[k, c] = job


@njit(cache=True)
def wait_first(q: Queues, job: int) -> None:
    """`job` waits before all of its queue."""
    k, c = q.level[job], q.of[job]
    q.ends[0] -= 1
    q.place[job] = q.ends[0]
    q.after[job] = q.waiting_first[k, c]
    if q.waiting_first[k, c] == NONE:
        q.waiting_last[k, c] = job
    q.waiting_first[k, c] = job
    q.head[k, c] = q.place[job]


@njit(cache=True)
def _take(q: Queues, k: int, free: int, taken: int) -> int:
    """Take the first waiting job of queue k that fits into `free`; NONE: no job does."""
    chosen, place = NONE, NOTHING
    for c in range(len(q.sizes)):
        if q.sizes[c] > free:
            break
        if q.head[k, c] < place:
            chosen, place = c, q.head[k, c]
    if chosen == NONE:
        return NONE
    job = q.waiting_first[k, chosen]
    after = q.after[job]
    q.waiting_first[k, chosen] = after
    q.head[k, chosen] = NOTHING if after == NONE else q.place[after]
    q.taken[taken] = job
    return int(job)


@njit(cache=True)
def schedule(q: Queues, free: int) -> tuple[int, int, int]:
    """One pass with `free` GPUs that nothing runs on: free GPUs, jobs taken, jobs dropped."""
    count = q.head.shape[0]
    taken = dropped = 0
    k = 0
    behind = q.held.sum() - q.held[0]
    while k < count:  # jobs that fit without anything giving way before them
        job = _take(q, k, free + behind, taken)
        if job == NONE:
            behind -= q.held[2 * k + 1]
            k += 1
            if k < count:
                behind -= q.held[2 * k]
        else:
            free -= q.gpus[job]
            taken += 1
    if free < 0:
        chain = 2 * count - 1
        while free + q.held[chain] < 0:
            free += q.held[chain]
            chain -= 1
        job = q.last[chain]
        free += q.gpus[job]
        while free < 0:
            job = q.before[job]
            free += q.gpus[job]
        dropped_first = np.zeros(count + 1, np.int64)
        while True:  # from the first running job that may have to give way
            while job != NONE:
                after = q.after[job]
                if q.gpus[job] <= free:
                    free -= q.gpus[job]
                else:
                    leave(q, chain, job)
                    q.dropped[dropped] = job
                    dropped += 1
                    if chain & 1 == 0:
                        dropped_first[q.level[job]] += 1
                job = after
            if chain & 1 == 0:
                job = _take(q, chain >> 1, free, taken)
                while job != NONE:
                    free -= q.gpus[job]
                    taken += 1
                    job = _take(q, chain >> 1, free, taken)
            chain += 1
            if chain == 2 * count:
                break
            job = q.first[chain]
        after_last = 0
        i = 0
        while i < dropped:  # per queue: those that ran in it, then those demoted into it
            k = q.level[q.dropped[i]]
            after_last = i + dropped_first[k]
            for m in range(after_last - 1, i - 1, -1):
                wait_first(q, q.dropped[m])
            i = after_last
            while i < dropped and q.level[q.dropped[i]] == k:
                wait_last(q, q.dropped[i])
                i += 1
    for i in range(taken):
        join(q, 2 * q.level[q.taken[i]], q.taken[i])
    for k in range(count):
        job = q.first[2 * k + 1]
        while job != NONE:
            after = q.after[job]
            leave(q, 2 * k + 1, job)
            join(q, 2 * k, job)
            job = after
    return free, taken, dropped
