"""Non-preemptive disciplines on equal nodes, where gangs are placed on as few nodes as can be."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from agents.cluster.loops.gangs import NOTHING, gangs_of
from agents.cluster.loops.heap import pop, push
from agents.cluster.loops.node_buckets import (
    NONE,
    NodeBuckets,
    change,
    emptiest_with,
    first_with,
    fits,
    fullest_with,
    lowest,
    node_buckets,
)
from agents.cluster.placement.codes import BEST_FIT, HELIOS_CONSOLIDATE

IntArray = NDArray[np.int64]
JobArray = NDArray[np.int32]


@njit(cache=True)
def _take(
    buckets: NodeBuckets, rule: int, need: int, job: int, whole: JobArray, rest: JobArray
) -> None:
    """Place a job that fits: `whole` is its first whole node, `rest` the node of what remains."""
    size = buckets.size
    left = need
    whole[job] = rest[job] = NONE
    if need > size:
        while left >= size:
            node = lowest(buckets, size)
            change(buckets, node, -size)
            buckets.after[node] = whole[job]
            whole[job] = node
            left -= size
        if left == 0:
            return
    if rule == BEST_FIT or (rule == HELIOS_CONSOLIDATE and need <= size):
        node = fullest_with(buckets, left)
    elif rule == HELIOS_CONSOLIDATE:
        node = emptiest_with(buckets, left)
    else:
        node = first_with(buckets, left)
    change(buckets, node, -left)
    rest[job] = node


@njit(cache=True)
def _release(buckets: NodeBuckets, need: int, job: int, whole: JobArray, rest: JobArray) -> None:
    """Give back what a job has."""
    node = whole[job]
    while node != NONE:
        change(buckets, node, buckets.size)
        node = buckets.after[node]
    if rest[job] != NONE:
        change(buckets, rest[job], need if need <= buckets.size else need % buckets.size)


@njit(cache=True)
def consolidated(
    submit: IntArray,
    duration: IntArray,
    gpus: JobArray,
    key: IntArray,
    bits: int,
    strict: bool,
    rule: int,
    nodes: int,
    size: int,
    start: NDArray[np.float64],
) -> None:
    """Start jobs by ascending `key`.

    Args:
        submit: (J,) seconds, ascending.
        duration: (J,) seconds.
        gpus: (J,) at most those of the cluster.
        key: (J,) distinct; its last `bits` bits are the job's number.
        bits: see `key`.
        strict: nothing starts while the job of least `key` does not fit.
        rule: of `placement.codes`: YARN, FIRST_FIT, BEST_FIT or HELIOS_CONSOLIDATE.
        nodes: of the cluster.
        size: GPUs of a node.
        start: (J,) written.
    """
    jobs = len(submit)
    _, base, of = gangs_of(gpus, nodes * size)
    if strict:  # one queue for all
        base, of = np.array([0, jobs]), np.zeros(jobs, np.int32)
    count = len(base) - 1
    queues = np.empty(jobs, np.int64)
    waiting = np.zeros(count, np.int64)
    head = np.full(count, NOTHING, np.int64)
    ends = np.empty(jobs, np.int64)
    whole, rest = np.empty(jobs, np.int32), np.empty(jobs, np.int32)
    buckets = node_buckets(nodes, size)
    running = arrived = queued = 0
    mask = (1 << bits) - 1
    while arrived < jobs or queued:
        now = submit[arrived] if arrived < jobs else NOTHING
        released = running > 0 and ends[0] >> bits <= now
        if released:
            now = ends[0] >> bits
            while running and ends[0] >> bits == now:
                job = ends[0] & mask
                _release(buckets, gpus[job], job, whole, rest)
                pop(ends, 0, running)
                running -= 1
        first = arrived
        while arrived < jobs and submit[arrived] == now:
            c = of[arrived]
            push(queues, base[c], waiting[c], key[arrived])
            waiting[c] += 1
            head[c] = queues[base[c]]
            arrived += 1
            queued += 1
        if not released and arrived == first + 1 and head[of[first]] != key[first]:
            continue
        while queued:
            least, chosen = NOTHING, NONE
            for c in range(count):
                if head[c] < least and fits(buckets, gpus[head[c] & mask]):
                    least, chosen = head[c], c
            if chosen == NONE:
                break
            job = least & mask
            pop(queues, base[chosen], waiting[chosen])
            waiting[chosen] -= 1
            queued -= 1
            head[chosen] = queues[base[chosen]] if waiting[chosen] else NOTHING
            start[job] = now
            _take(buckets, rule, gpus[job], job, whole, rest)
            push(ends, 0, running, (now + duration[job]) << bits | job)
            running += 1
