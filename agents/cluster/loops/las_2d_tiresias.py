"""2D-LAS with the arithmetic of Tiresias' published simulator.

A running job is looked at again `(limit - executed seconds) // GPUs` seconds from now: the limit is
one of GPU-seconds, so for gangs this is not the time at which the limit is reached, and a demotion
happens at the first event after it. At an event a job goes down one queue at most. Jobs demoted at
once come in the order of the trace. The published program does not come to an end where that number
of seconds is 0, which takes a gang of more than half the limit; here it wakes nobody.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from agents.cluster.loops.gangs import NOTHING
from agents.cluster.loops.indexed_heap import indexed_heap, insert, remove
from agents.cluster.loops.multilevel import NONE, join, leave, queues_of, schedule, wait_last

IntArray = NDArray[np.int64]


@njit(cache=True)
def las_2d_tiresias(
    submit: IntArray,
    duration: IntArray,
    gpus: NDArray[np.int32],
    limits: IntArray,
    total: int,
    start: NDArray[np.float64],
    finish: NDArray[np.float64],
    preemptions: NDArray[np.int32],
) -> None:
    """Run jobs by attained service.

    Args:
        submit: (J,) seconds, ascending.
        duration: (J,) seconds.
        gpus: (J,) at most `total`.
        limits: (Q - 1,) GPU-seconds at which a job leaves a queue, ascending.
        total: GPUs of the cluster.
        start: (J,) of -1, written: seconds.
        finish: (J,) seconds, written.
        preemptions: (J,) zeros, counted up.
    """
    jobs, levels = len(submit), len(limits)
    q = queues_of(gpus, total, levels + 1)
    heap = indexed_heap(jobs)
    executed = np.zeros(jobs, np.int64)  # seconds, of waiting jobs
    origin = np.empty(jobs, np.int64)  # of running jobs: now minus executed seconds
    demoted = np.empty(jobs, np.int64)
    oldest = np.empty(len(q.sizes), np.int64)
    longest = np.empty(len(q.sizes), np.int64)
    free = total
    arrived = running = 0
    wake = due = NOTHING
    while True:
        now = submit[arrived] if arrived < jobs else NOTHING
        if running and heap.time[heap.jobs[0]] < now:
            now = heap.time[heap.jobs[0]]
        if now == NOTHING:
            break
        now = min(now, wake)
        changed = False
        while running and heap.time[heap.jobs[0]] == now:
            job = heap.jobs[0]
            running = remove(heap, running, job)
            leave(q, 2 * q.level[job], job)
            free += gpus[job]
            finish[job] = now
            changed = True
        while arrived < jobs and submit[arrived] == now:
            wait_last(q, arrived)
            arrived += 1
            changed = True
        if now >= due:
            count = 0
            for k in range(levels):
                job = q.first[2 * k]
                while job != NONE:
                    after = q.after[job]
                    if (now - origin[job]) * gpus[job] >= limits[k]:
                        leave(q, 2 * k, job)
                        q.level[job] = k + 1
                        demoted[count] = job
                        count += 1
                    job = after
            changed = True
            for job in np.sort(demoted[:count]):
                join(q, 2 * q.level[job] + 1, job)
        if changed:
            free, taken, dropped = schedule(q, free)
            for i in range(dropped):
                job = q.dropped[i]
                executed[job] = now - origin[job]
                preemptions[job] += 1
                running = remove(heap, running, job)
            for i in range(taken):
                job = q.taken[i]
                origin[job] = now - executed[job]
                running = insert(heap, running, job, origin[job] + duration[job])
                if start[job] < 0:
                    start[job] = now
        wake = due = NOTHING
        for k in range(levels):
            oldest[:] = longest[:] = -1
            job = q.first[2 * k]
            while job != NONE:
                c = q.of[job]
                seconds = now - origin[job]
                oldest[c] = max(oldest[c], seconds)
                if seconds + q.sizes[c] <= limits[k]:
                    longest[c] = max(longest[c], seconds)
                job = q.after[job]
            for c in range(len(q.sizes)):
                size = q.sizes[c]
                if oldest[c] >= 0 and size > 0:
                    due = min(due, now - oldest[c] - (-limits[k] // size))
                    if longest[c] >= 0:
                        wake = min(wake, now + (limits[k] - longest[c]) // size)
