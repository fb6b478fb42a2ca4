"""Preemption by remaining time (SRTF) or remaining GPU time (SRSF), counting free GPUs only.

At every event all jobs are sorted by remaining time (times GPUs), equal ones in the order of the
sort before, and take their GPUs from an empty cluster; what does not fit is passed over. Three
facts make a literal sort needless. A selection stays as it is until a job arrives or completes.
Within one gang size the selected come before the rejected, so only the head of each size can be
taken next. And a job that is taken can displace only jobs behind it, which are found from the tail.

Equal keys: a waiting job is before a running one that has just come down to its key, a new arrival
is behind all; of two running jobs the one that comes down more slowly is before; jobs of one kind
keep their order.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from agents.cluster.loops.gangs import NOTHING, gangs_of
from agents.cluster.loops.ranked_heap import pop_pair, push_pair

IntArray = NDArray[np.int64]


@njit(cache=True)
def _last(
    tail: IntArray, low: IntArray, sizes: IntArray, rate: IntArray, end: IntArray,
    job: NDArray[np.int32], order: IntArray, now: int,
) -> int:  # fmt: skip
    """The gang size whose running job just before `tail` is last of all; -1: none is left."""
    last, key = -1, -1
    for c in range(len(sizes)):
        if tail[c] == low[c] or sizes[c] == 0:
            continue
        i = tail[c] - 1
        own = (end[i] - now) * rate[c]
        if own > key:
            last, key = c, own
        elif own == key and (
            rate[c] > rate[last]
            or (rate[c] == rate[last] and order[job[i]] > order[job[tail[last] - 1]])
        ):
            last = c
    return last


@njit(cache=True)
def _behind(
    key: int, need: int, low: IntArray, high: IntArray, sizes: IntArray, rate: IntArray,
    end: IntArray, now: int,
) -> bool:  # fmt: skip
    """Whether running jobs of at least `key` hold at least `need` GPUs."""
    for c in range(len(sizes)):
        first, after = low[c], high[c]
        if sizes[c] == 0 or first == after or (end[after - 1] - now) * rate[c] < key:
            continue
        while first < after:
            middle = (first + after) >> 1
            if (end[middle] - now) * rate[c] < key:
                first = middle + 1
            else:
                after = middle
        need -= (high[c] - first) * sizes[c]
        if need <= 0:
            return True
    return need <= 0


@njit(cache=True)
def _insert(
    c: int, first_of_equals: bool, ending: int, number: int, low: IntArray, high: IntArray,
    room: IntArray, end: IntArray, job: NDArray[np.int32],
) -> None:  # fmt: skip
    """Put a running job among those of its size, before or behind those that end with it."""
    first, after = low[c], high[c]
    while first < after:
        middle = (first + after) >> 1
        if end[middle] < ending or (end[middle] == ending and not first_of_equals):
            first = middle + 1
        else:
            after = middle
    if low[c] > room[c] and (first - low[c] < high[c] - first or high[c] == room[c + 1]):
        low[c] -= 1
        first -= 1
        for i in range(low[c], first):
            end[i] = end[i + 1]
            job[i] = job[i + 1]
    else:
        for i in range(high[c], first, -1):
            end[i] = end[i - 1]
            job[i] = job[i - 1]
        high[c] += 1
    end[first] = ending
    job[first] = number


@njit(cache=True)
def shortest_remaining(
    submit: IntArray,
    duration: IntArray,
    gpus: NDArray[np.int32],
    by_service: bool,
    bits: int,
    total: int,
    start: NDArray[np.float64],
    finish: NDArray[np.float64],
    preemptions: NDArray[np.int32],
) -> None:
    """Run jobs by shortest remaining time, or remaining time times GPUs.

    Args:
        submit: (J,) seconds, ascending.
        duration: (J,) seconds.
        gpus: (J,) at most `total`.
        by_service: SRSF, not SRTF.
        bits: that hold a job's number.
        total: GPUs of the cluster.
        start: (J,) seconds, written.
        finish: (J,) seconds, written.
        preemptions: (J,) zeros, counted up.
    """
    jobs = len(submit)
    sizes, base, of = gangs_of(gpus, total)
    count = len(sizes)
    rate = sizes.copy() if by_service else np.ones(count, np.int64)
    mask = (1 << bits) - 1

    remaining = np.empty(jobs, np.int64)  # of waiting jobs
    keys = np.empty(jobs, np.int64)  # heaps of waiting jobs, by size
    tags = np.empty(jobs, np.int64)  # order among equals, then the job's number
    waiting = np.zeros(count, np.int64)
    head_key = np.full(count, NOTHING, np.int64)
    head_tag = np.full(count, NOTHING, np.int64)

    room = np.zeros(count + 1, np.int64)  # running jobs by size, by their end
    for c in range(count):
        most = base[c + 1] - base[c]
        if sizes[c] > 0:
            most = min(most, total // sizes[c] + 1)
        room[c + 1] = room[c] + 2 * most
    low = room[:-1].copy()
    high = low.copy()
    end = np.empty(room[count], np.int64)
    job = np.empty(room[count], np.int32)
    order = np.zeros(jobs, np.int64)  # among running jobs that end together
    front = back = 0

    tail = np.empty(count, np.int64)
    walked = np.empty(room[count] + 1, np.int64)
    started = np.empty(jobs, np.int64)
    stopped = np.empty(room[count] + 1, np.int64)

    free = total
    arrived = running = tagged = 0
    while True:
        now = submit[arrived] if arrived < jobs else NOTHING
        for c in range(count):
            if low[c] < high[c] and end[low[c]] < now:
                now = end[low[c]]
        if now == NOTHING:
            break
        released = False
        for c in range(count):
            while low[c] < high[c] and end[low[c]] == now:
                finish[job[low[c]]] = now
                low[c] += 1
                free += sizes[c]
                running -= 1
                released = True
            if low[c] == high[c]:
                low[c] = high[c] = (room[c] + room[c + 1]) >> 1
        newest = tagged + running << bits  # tags of jobs that arrive now are not below it
        last_tag = tagged + running
        while arrived < jobs and submit[arrived] == now:
            c = of[arrived]
            remaining[arrived] = duration[arrived]
            tag = last_tag << bits | arrived
            push_pair(keys, tags, base[c], waiting[c], duration[arrived] * rate[c], tag)
            waiting[c] += 1
            head_key[c], head_tag[c] = keys[base[c]], tags[base[c]]
            last_tag += 1
            arrived += 1

        taken = dropped = 0
        while True:  # the first head that fits, as long as nothing has to give way before it
            best, key, tag = -1, NOTHING, NOTHING
            for c in range(count):
                k, t = head_key[c], head_tag[c]
                if k > key or (k == key and t >= tag) or not (released or t >= newest):
                    continue
                if sizes[c] > free and not _behind(
                    k + (t >= newest), sizes[c] - free, low, high, sizes, rate, end, now
                ):
                    continue
                best, key, tag = c, k, t
            if best < 0:
                break
            started[taken] = tag
            taken += 1
            free -= sizes[best]
            pop_pair(keys, tags, base[best], waiting[best])
            waiting[best] -= 1
            head_key[best] = keys[base[best]] if waiting[best] else NOTHING
            head_tag[best] = tags[base[best]] if waiting[best] else NOTHING

        if free < 0:
            steps = 0
            for c in range(count):
                tail[c] = high[c]
            while free < 0:
                c = _last(tail, low, sizes, rate, end, job, order, now)
                tail[c] -= 1
                free += sizes[c]
                walked[steps] = c
                steps += 1
            best, stale = -1, True
            while True:  # from the first running job that may have to give way
                if stale:
                    best, key, tag = -1, NOTHING, NOTHING
                    for c in range(count):
                        k, t = head_key[c], head_tag[c]
                        if sizes[c] <= free and (k < key or (k == key and t < tag)):
                            best, key, tag = c, k, t
                    stale = False
                if steps:
                    c = walked[steps - 1]
                    own = (end[tail[c]] - now) * rate[c]
                    if best < 0 or key > own or (key == own and tag >= newest):
                        steps -= 1
                        if sizes[c] <= free:
                            free -= sizes[c]
                            stale = best >= 0 and sizes[best] > free
                        else:
                            stopped[dropped] = job[tail[c]]
                            remaining[job[tail[c]]] = end[tail[c]] - now
                            dropped += 1
                            high[c] -= 1
                        tail[c] += 1
                        continue
                elif best < 0:
                    break
                started[taken] = tag
                taken += 1
                free -= sizes[best]
                pop_pair(keys, tags, base[best], waiting[best])
                waiting[best] -= 1
                head_key[best] = keys[base[best]] if waiting[best] else NOTHING
                head_tag[best] = tags[base[best]] if waiting[best] else NOTHING
                stale = True

        for i in range(dropped):
            number = stopped[i]
            c = of[number]
            preemptions[number] += 1
            tag = tagged + i << bits | number
            push_pair(keys, tags, base[c], waiting[c], remaining[number] * rate[c], tag)
            waiting[c] += 1
            head_key[c], head_tag[c] = keys[base[c]], tags[base[c]]
        for i in range(taken - 1, -1, -1):
            number = started[i] & mask
            if started[i] < newest:
                front -= 1
                order[number] = front
                _insert(
                    of[number], True, now + remaining[number], number, low, high, room, end, job
                )
        for i in range(taken):
            number = started[i] & mask
            if started[i] >= newest:
                back += 1
                order[number] = back
                _insert(
                    of[number], False, now + remaining[number], number, low, high, room, end, job
                )
            if remaining[number] == duration[number] and start[number] < 0:
                start[number] = now
        running += taken - dropped
        tagged = last_tag
