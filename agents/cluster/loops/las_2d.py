"""2D-LAS: jobs by attained service, GPUs times executed seconds, in queues.

Reference: Gu et al., "Tiresias: A GPU Cluster Manager for Distributed Deep Learning", NSDI 2019,
section 4.2 (discretised 2D-LAS). A job leaves a queue at the first whole second at which its
service has reached the queue's limit, for the queue that its service belongs to, and the cluster is
scheduled anew at that second.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from agents.cluster.loops.gangs import NOTHING
from agents.cluster.loops.indexed_heap import indexed_heap, insert, remove
from agents.cluster.loops.multilevel import join, leave, queues_of, schedule, wait_last

IntArray = NDArray[np.int64]


@njit(cache=True)
def _next(origin: int, duration: int, size: int, level: int, limits: IntArray) -> int:
    """When a running job completes or leaves its queue."""
    time = origin + duration
    if level < len(limits) and size > 0:
        time = min(time, origin - int(-limits[level] // size))
    return time


@njit(cache=True)
def las_2d(
    submit: IntArray,
    duration: IntArray,
    gpus: NDArray[np.int32],
    limits: IntArray,
    total: int,
    start: NDArray[np.float64],
    finish: NDArray[np.float64],
    preemptions: NDArray[np.int32],
) -> None:
    """Run jobs by attained service; arguments as of `las_2d_tiresias`."""
    jobs, levels = len(submit), len(limits)
    q = queues_of(gpus, total, levels + 1)
    heap = indexed_heap(jobs)
    executed = np.zeros(jobs, np.int64)  # seconds, of waiting jobs
    origin = np.empty(jobs, np.int64)  # of running jobs: now minus executed seconds
    demoted = np.empty(jobs, np.int32)
    free = total
    arrived = running = 0
    while True:
        now = submit[arrived] if arrived < jobs else NOTHING
        if running and heap.time[heap.jobs[0]] < now:
            now = heap.time[heap.jobs[0]]
        if now == NOTHING:
            break
        count = 0
        while running and heap.time[heap.jobs[0]] == now:  # in the order of the trace
            job = heap.jobs[0]
            running = remove(heap, running, job)
            leave(q, 2 * q.level[job], job)
            if origin[job] + duration[job] == now:
                free += gpus[job]
                finish[job] = now
            else:
                service = (now - origin[job]) * gpus[job]
                while q.level[job] < levels and service >= limits[q.level[job]]:
                    q.level[job] += 1
                join(q, 2 * q.level[job] + 1, job)
                demoted[count] = job
                count += 1
        for i in range(count):
            job = demoted[i]
            time = _next(origin[job], duration[job], gpus[job], q.level[job], limits)
            running = insert(heap, running, job, time)
        while arrived < jobs and submit[arrived] == now:
            wait_last(q, arrived)
            arrived += 1
        free, taken, dropped = schedule(q, free)
        for i in range(dropped):
            job = q.dropped[i]
            executed[job] = now - origin[job]
            preemptions[job] += 1
            running = remove(heap, running, job)
        for i in range(taken):
            job = q.taken[i]
            origin[job] = now - executed[job]
            time = _next(origin[job], duration[job], gpus[job], q.level[job], limits)
            running = insert(heap, running, job, time)
            if start[job] < 0:
                start[job] = now
