"""Non-preemptive disciplines that count free GPUs only."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from agents.cluster.loops.gangs import NOTHING, gangs_of
from agents.cluster.loops.heap import pop, push

IntArray = NDArray[np.int64]


@njit(cache=True)
def in_order(
    submit: IntArray,
    duration: IntArray,
    gpus: NDArray[np.int32],
    key: IntArray,
    bits: int,
    total: int,
    start: NDArray[np.float64],
) -> None:
    """Start the job of least `key` whenever it fits; while it does not, nothing starts.

    Args:
        submit: (J,) seconds, ascending.
        duration: (J,) seconds.
        gpus: (J,) at most `total`.
        key: (J,) distinct; its last `bits` bits are the job's number.
        bits: see `key`.
        total: GPUs of the cluster.
        start: (J,) written.
    """
    jobs = len(submit)
    queue = np.empty(jobs, np.int64)
    ends = np.empty(jobs, np.int64)
    waiting = running = arrived = 0
    mask = (1 << bits) - 1
    free = total
    while arrived < jobs or waiting:
        now = submit[arrived] if arrived < jobs else NOTHING
        if running and ends[0] >> bits < now:
            now = ends[0] >> bits
        while running and ends[0] >> bits == now:
            free += gpus[ends[0] & mask]
            pop(ends, 0, running)
            running -= 1
        while arrived < jobs and submit[arrived] == now:
            push(queue, 0, waiting, key[arrived])
            waiting += 1
            arrived += 1
        while waiting:
            job = queue[0] & mask
            if gpus[job] > free:
                break
            pop(queue, 0, waiting)
            waiting -= 1
            start[job] = now
            free -= gpus[job]
            push(ends, 0, running, now + duration[job] << bits | job)
            running += 1


@njit(cache=True)
def backfilled(
    submit: IntArray,
    duration: IntArray,
    gpus: NDArray[np.int32],
    key: IntArray,
    bits: int,
    total: int,
    start: NDArray[np.float64],
) -> None:
    """Start every job that fits, by ascending `key`; arguments as of `in_order`."""
    jobs = len(submit)
    sizes, base, of = gangs_of(gpus, total)
    fitting = np.searchsorted(sizes, np.arange(total + 1), side="right")  # sizes that fit
    queues = np.empty(jobs, np.int64)
    waiting = np.zeros(len(sizes), np.int64)
    head = np.full(len(sizes), NOTHING, np.int64)
    ends = np.empty(jobs, np.int64)
    running = arrived = 0
    mask = (1 << bits) - 1
    free = total
    while True:
        now = submit[arrived] if arrived < jobs else NOTHING
        released = running > 0 and ends[0] >> bits <= now
        if released:
            now = ends[0] >> bits
            while running and ends[0] >> bits == now:
                free += gpus[ends[0] & mask]
                pop(ends, 0, running)
                running -= 1
        elif arrived == jobs:
            break
        elif arrived + 1 == jobs or submit[arrived + 1] != now:
            job = arrived  # alone: it starts at once, or waits like all others
            arrived += 1
            c = of[job]
            if gpus[job] <= free:
                start[job] = now
                free -= gpus[job]
                push(ends, 0, running, now + duration[job] << bits | job)
                running += 1
            else:
                push(queues, base[c], waiting[c], key[job])
                waiting[c] += 1
                head[c] = queues[base[c]]
            continue
        while arrived < jobs and submit[arrived] == now:
            c = of[arrived]
            push(queues, base[c], waiting[c], key[arrived])
            waiting[c] += 1
            head[c] = queues[base[c]]
            arrived += 1
        while True:
            least, c = NOTHING, -1
            for i in range(fitting[free]):
                if head[i] < least:
                    least, c = head[i], i
            if c < 0:
                break
            job = least & mask
            pop(queues, base[c], waiting[c])
            waiting[c] -= 1
            head[c] = queues[base[c]] if waiting[c] else NOTHING
            start[job] = now
            free -= gpus[job]
            push(ends, 0, running, now + duration[job] << bits | job)
            running += 1
