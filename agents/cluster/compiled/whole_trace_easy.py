"""EASY backfilling with exact durations, counting free GPUs only.

Reference: Mu'alem and Feitelson, "Utilization, Predictability, Workloads, and User Runtime
Estimates in Scheduling the IBM SP2 with Backfilling", IEEE TPDS 12(6), 2001. The first job that
does not fit is promised the first second at which enough GPUs will be free. Others start now, in
their order, if they end by then or take only GPUs that the promise leaves over. As durations are
exact, neither changes until the promised job starts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from agents.cluster.compiled.whole_trace import NOTHING, gangs_of, pop, push
from envs.arrays import IntArray
from envs.compilation import compiled, compiled_inner

NONE = -1


@compiled_inner
def _set(tree: IntArray, base: int, leaves: int, place: int, value: int) -> None:
    """Write a leaf of a tree of least durations."""
    i = leaves + place
    tree[base + i] = value
    while i > 1:
        i >>= 1
        tree[base + i] = min(tree[base + 2 * i], tree[base + 2 * i + 1])


@compiled_inner
def _first(tree: IntArray, base: int, leaves: int, most: int) -> int:
    """The first leaf of at most `most`, or NONE."""
    if tree[base + 1] > most:
        return NONE
    i = 1
    while i < leaves:
        i *= 2
        if tree[base + i] > most:
            i += 1
    return i - leaves


@compiled_inner
def _promise(
    ends: IntArray, running: int, gpus: NDArray[np.int32], bits: int, free: int, need: int
) -> tuple[int, int]:
    """When `need` GPUs will be free, and how many more will be."""
    rest = ends[:running].copy()
    mask = (1 << bits) - 1
    left, time = running, 0
    while left and (free < need or rest[0] >> bits == time):
        time = rest[0] >> bits
        free += gpus[rest[0] & mask]
        pop(rest, 0, left)
        left -= 1
    return time, free - need


@compiled
def easy(
    submit: IntArray,
    duration: IntArray,
    gpus: NDArray[np.int32],
    bits: int,
    total: int,
    start: NDArray[np.float64],
) -> None:
    """Run jobs by order of submission, with a reservation for the first that has to wait.

    Args:
        submit: (J,) seconds, ascending.
        duration: (J,) seconds.
        gpus: (J,) at most `total`.
        bits: that hold a job's number.
        total: GPUs of the cluster.
        start: (J,) written.
    """
    jobs = len(submit)
    sizes, base, of = gangs_of(gpus, total)
    count = len(sizes)
    leaves = np.ones(count, np.int64)  # trees over the jobs of a size, by their duration
    trees = np.zeros(count + 1, np.int64)
    for c in range(count):
        while leaves[c] < base[c + 1] - base[c]:
            leaves[c] *= 2
        trees[c + 1] = trees[c] + 2 * leaves[c]
    tree = np.full(trees[count], NOTHING, np.int64)
    place = np.empty(jobs, np.int64)  # of a job among those of its size
    member = np.empty(jobs, np.int64)
    seen = np.zeros(count, np.int64)
    head = np.full(count, NOTHING, np.int64)  # first waiting job of a size
    found = np.full(count, NOTHING, np.int64)  # first that may start
    ends = np.empty(jobs, np.int64)
    running = arrived = 0
    mask = (1 << bits) - 1
    free, spare, promised, until = total, 0, NONE, 0
    while True:
        now = submit[arrived] if arrived < jobs else NOTHING
        if running and ends[0] >> bits < now:
            now = ends[0] >> bits
        if now == NOTHING:
            break
        while running and ends[0] >> bits == now:
            free += gpus[ends[0] & mask]
            pop(ends, 0, running)
            running -= 1
        while arrived < jobs and submit[arrived] == now:
            c = of[arrived]
            place[arrived] = seen[c]
            member[base[c] + seen[c]] = arrived
            _set(tree, trees[c], leaves[c], seen[c], duration[arrived])
            seen[c] += 1
            head[c] = min(head[c], arrived)
            arrived += 1
        stale = True
        while True:
            job = head.min()
            if job == NOTHING:
                break
            if gpus[job] > free:
                if promised != job:
                    promised = job
                    until, spare = _promise(ends, running, gpus, bits, free, gpus[job])
                job = NOTHING
                for c in range(count):
                    if sizes[c] > free:
                        break
                    if sizes[c] <= spare:
                        found[c] = head[c]
                    elif stale or found[c] != NOTHING:
                        i = _first(tree, trees[c], leaves[c], until - now)
                        found[c] = NOTHING if i == NONE else member[base[c] + i]
                    job = min(job, found[c])
                stale = False
                if job == NOTHING:
                    break
                if now + duration[job] > until:
                    spare -= gpus[job]
            c = of[job]
            _set(tree, trees[c], leaves[c], place[job], NOTHING)
            if head[c] == job:
                i = _first(tree, trees[c], leaves[c], NOTHING - 1)
                head[c] = NOTHING if i == NONE else member[base[c] + i]
            start[job] = now
            free -= gpus[job]
            push(ends, 0, running, (now + duration[job]) << bits | job)
            running += 1
