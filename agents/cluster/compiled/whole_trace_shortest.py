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

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agents.cluster.compiled.whole_trace import NOTHING
from envs.arrays import FloatArray, IntArray
from envs.cluster.simulation.borrowed import borrowed
from envs.cluster.simulation.cluster_state import NONE
from envs.compilation import compiled, compiled_inner, pasted

JobArray = NDArray[np.int32]


class Waiting(NamedTuple):
    """One heap for each of C gang sizes, of jobs by key and, where equal, by turn."""

    kind: JobArray  # (J,) index of its size
    size: IntArray  # (C,) GPUs
    base: IntArray  # (C + 1,) where its heap begins
    heap: JobArray  # (J,)
    number: IntArray  # (C,) of jobs that wait
    key: FloatArray  # (J,) priority, the least first; constant while the job waits
    turn: IntArray  # (J,) which of equal keys comes first; distinct


def none_waiting(gpus: JobArray) -> Waiting:
    """Empty heaps for J jobs that ask for `gpus` (J,)."""
    size, kind, jobs = np.unique(gpus, return_inverse=True, return_counts=True)
    return Waiting(
        kind=kind.astype(np.int32),
        size=size.astype(np.int64),
        base=np.concatenate([[0], np.cumsum(jobs)]).astype(np.int64),
        heap=np.zeros(len(gpus), np.int32),
        number=np.zeros(len(jobs), np.int64),
        key=np.zeros(len(gpus)),
        turn=np.zeros(len(gpus), np.int64),
    )


class Running(NamedTuple):
    """Running jobs of C gang sizes, each size's by their end: places low[c] to high[c]."""

    size: IntArray  # (C,) GPUs of a gang
    rate: IntArray  # (C,) by how much a second of work brings down the key: GPUs, or 1
    base: IntArray  # (C + 1,) the first place that size c may use
    low: IntArray  # (C,)
    high: IntArray  # (C,)
    end: IntArray  # (R,) seconds
    job: JobArray  # (R,)
    order: IntArray  # (J,) among running jobs that end together
    tail: IntArray  # (C,) places from here on are undecided: see `give_way`
    walked: IntArray  # (R + 1,) gang sizes in the order in which their tails went back
    stopped: IntArray  # (R + 1,) jobs that gave way
    taken: IntArray  # (J,) waiting jobs that were taken


def none_running(waiting: Waiting, total: int, times_gpus: bool) -> Running:
    """Places for the jobs of `waiting` on `total` GPUs."""
    jobs, size = np.diff(waiting.base), waiting.size
    most = np.where(size > 0, np.minimum(jobs, total // np.maximum(size, 1) + 1), jobs)
    base = np.concatenate([[0], np.cumsum(2 * most)]).astype(np.int64)
    places = int(base[-1])
    return Running(
        size=size,
        rate=size.copy() if times_gpus else np.ones_like(size),
        base=base,
        low=base[:-1].copy(),
        high=base[:-1].copy(),
        end=np.zeros(places, np.int64),
        job=np.zeros(places, np.int32),
        order=np.zeros(len(waiting.key), np.int64),
        tail=np.zeros(len(size), np.int64),
        walked=np.zeros(places + 1, np.int64),
        stopped=np.zeros(places + 1, np.int64),
        taken=np.zeros(len(waiting.key), np.int64),
    )


@compiled
def shortest_remaining(
    submit: IntArray,
    duration: IntArray,
    waiting: Waiting,
    running: Running,
    total: int,
    start: NDArray[np.float64],
    finish: NDArray[np.float64],
    preemptions: JobArray,
) -> None:
    """Run J jobs by shortest remaining time, or remaining time times GPUs.

    Args:
        submit: (J,) seconds, ascending.
        duration: (J,) seconds.
        waiting: empty.
        running: empty.
        total: GPUs of the cluster, at least those of every gang.
        start: (J,) seconds, written.
        finish: (J,) seconds, written.
        preemptions: (J,) zeros, counted up.
    """
    waiting, running = borrowed(waiting), borrowed(running)
    kind, rate, size = waiting.kind, running.rate, running.size
    remaining = duration.copy()  # of waiting jobs
    free = total
    arrived = count = turn = front = back = 0
    while True:
        now = submit[arrived] if arrived < len(submit) else NOTHING
        for c in range(len(size)):
            if running.low[c] < running.high[c]:
                now = min(now, running.end[running.low[c]])
        if now == NOTHING:
            return
        done, released = complete(running, now, finish)
        free += released
        count -= done
        newest = last = turn + count  # turns of jobs that arrive now are not below `newest`
        while arrived < len(submit) and submit[arrived] == now:
            join(waiting, arrived, float(duration[arrived] * rate[kind[arrived]]), last)
            last += 1
            arrived += 1

        taken = dropped = 0
        job = first_to_take(waiting, running, free, now, newest, done > 0)
        while job != NONE:
            leave(waiting, kind[job])
            running.taken[taken] = job
            taken += 1
            free -= size[kind[job]]
            job = first_to_take(waiting, running, free, now, newest, done > 0)
        if free < 0:
            taken, dropped, free = give_way(waiting, running, remaining, taken, free, now, newest)

        for i in range(dropped):
            job = running.stopped[i]
            preemptions[job] += 1
            join(waiting, job, float(remaining[job] * rate[kind[job]]), turn + i)
        for i in range(taken - 1, -1, -1):
            job = running.taken[i]
            if waiting.turn[job] < newest:
                front -= 1
                running.order[job] = front
                insert(running, kind[job], True, now + remaining[job], job)
        for i in range(taken):
            job = running.taken[i]
            if waiting.turn[job] >= newest:
                back += 1
                running.order[job] = back
                insert(running, kind[job], False, now + remaining[job], job)
            if start[job] < 0:
                start[job] = now
        count += taken - dropped
        turn = last


@compiled_inner
def complete(running: Running, now: int, finish: NDArray[np.float64]) -> tuple[int, int]:
    """Take out the jobs that end now: how many, and their GPUs."""
    low, high, base = running.low, running.high, running.base
    done = released = 0
    for c in range(len(low)):
        while low[c] < high[c] and running.end[low[c]] == now:
            finish[running.job[low[c]]] = now
            low[c] += 1
            done += 1
            released += running.size[c]
        if low[c] == high[c]:
            low[c] = high[c] = (base[c] + base[c + 1]) >> 1
    return done, released


@compiled_inner
def first_to_take(
    waiting: Waiting, running: Running, free: int, now: int, newest: int, released: bool
) -> int:
    """The first waiting job for which there are GPUs, free ones or those of running jobs behind it.

    Where nothing was released only the newest can be taken. NONE: there is none.
    """
    best = np.int64(NONE)  # of the type of the others
    for c in range(len(running.size)):
        job = np.int64(first(waiting, c))
        if job == NONE or (best != NONE and not ahead(waiting, job, best)):
            continue
        new = waiting.turn[job] >= newest
        if not (released or new):
            continue
        missing = running.size[c] - free
        if missing <= 0 or are_behind(running, waiting.key[job] + new, missing, now):
            best = job
    return int(best)


@compiled_inner
def are_behind(running: Running, key: float, need: int, now: int) -> bool:
    """Whether running jobs of at least `key` hold at least `need` GPUs."""
    end = running.end
    for c in range(len(running.size)):
        first, after, rate = running.low[c], running.high[c], running.rate[c]
        if running.size[c] == 0 or first == after or (end[after - 1] - now) * rate < key:
            continue
        while first < after:
            middle = (first + after) >> 1
            if (end[middle] - now) * rate < key:
                first = middle + 1
            else:
                after = middle
        need -= (running.high[c] - first) * running.size[c]
        if need <= 0:
            return True
    return need <= 0


@compiled_inner
def give_way(
    waiting: Waiting,
    running: Running,
    remaining: IntArray,
    taken: int,
    free: int,
    now: int,
    newest: int,
) -> tuple[int, int, int]:
    """Decide anew about running jobs from the tail, until the jobs taken fit, and about the rest.

    Returns:
        How many are `running.taken` and how many `running.stopped`; the GPUs that are free.
    """
    tail, end, size = running.tail, running.end, running.size
    tail[:] = running.high
    steps = dropped = 0
    while free < 0:
        c = last_of_all(running, now)
        tail[c] -= 1
        free += size[c]
        running.walked[steps] = c
        steps += 1
    best, stale = np.int64(NONE), True
    while True:
        if stale:
            best, stale = first_that_fits(waiting, free), False
        if steps:
            c = running.walked[steps - 1]
            own = (end[tail[c]] - now) * running.rate[c]
            if (
                best == NONE
                or waiting.key[best] > own
                or (waiting.key[best] == own and waiting.turn[best] >= newest)
            ):
                steps -= 1
                if size[c] <= free:
                    free -= size[c]
                    stale = best != NONE and size[waiting.kind[best]] > free
                else:
                    job = running.job[tail[c]]
                    running.stopped[dropped] = job
                    remaining[job] = end[tail[c]] - now
                    dropped += 1
                    running.high[c] -= 1
                tail[c] += 1
                continue
        elif best == NONE:
            return taken, dropped, free
        leave(waiting, waiting.kind[best])
        running.taken[taken] = best
        taken += 1
        free -= size[waiting.kind[best]]
        stale = True


@compiled_inner
def last_of_all(running: Running, now: int) -> int:
    """The gang size whose running job just before its tail comes last of all; NONE: no job runs."""
    tail, rate, order = running.tail, running.rate, running.order
    last, key = NONE, -1
    for c in range(len(tail)):
        if tail[c] == running.low[c] or running.size[c] == 0:
            continue
        i = tail[c] - 1
        own = (running.end[i] - now) * rate[c]
        if own > key:
            last, key = c, own
        elif own == key and (
            rate[c] > rate[last]
            or (
                rate[c] == rate[last] and order[running.job[i]] > order[running.job[tail[last] - 1]]
            )
        ):
            last = c
    return last


@compiled_inner
def first_that_fits(waiting: Waiting, free: int) -> int:
    """The first waiting job whose gang is at most `free`, or NONE."""
    best = np.int64(NONE)
    for c in range(len(waiting.size)):
        if waiting.size[c] <= free:
            job = np.int64(first(waiting, c))
            if job != NONE and (best == NONE or ahead(waiting, job, best)):
                best = job
    return int(best)


@compiled_inner
def insert(running: Running, c: int, first_of_equals: bool, ending: int, number: int) -> None:
    """Put a running job among those of its size, before or behind those that end with it."""
    low, high, base, end, job = running.low, running.high, running.base, running.end, running.job
    first, after = low[c], high[c]
    while first < after:
        middle = (first + after) >> 1
        if end[middle] < ending or (end[middle] == ending and not first_of_equals):
            first = middle + 1
        else:
            after = middle
    if low[c] > base[c] and (first - low[c] < high[c] - first or high[c] == base[c + 1]):
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


@pasted
def first(waiting: Waiting, kind: int) -> int:
    """The first waiting job of a size, or NONE."""
    job: int = waiting.heap[waiting.base[kind]] if waiting.number[kind] else NONE
    return job


@pasted
def ahead(waiting: Waiting, a: int, b: int) -> bool:
    """Whether waiting job `a` comes before waiting job `b`."""
    first_key, second_key = waiting.key[a], waiting.key[b]
    earlier: bool = waiting.turn[a] < waiting.turn[b]
    return bool(first_key < second_key or (first_key == second_key and earlier))


@compiled_inner
def join(waiting: Waiting, job: int, key: float, turn: int) -> None:
    """A job waits, with priority `key` and, among equals, `turn`."""
    kind = waiting.kind[job]
    heap = waiting.heap[waiting.base[kind] : waiting.base[kind + 1]]
    waiting.key[job] = key
    waiting.turn[job] = turn
    place = waiting.number[kind]
    waiting.number[kind] += 1
    while place > 0:
        parent = (place - 1) >> 1
        if not ahead(waiting, job, heap[parent]):
            break
        heap[place] = heap[parent]
        place = parent
    heap[place] = job


@compiled_inner
def leave(waiting: Waiting, kind: int) -> None:
    """The first waiting job of a size waits no longer."""
    heap = waiting.heap[waiting.base[kind] : waiting.base[kind + 1]]
    waiting.number[kind] -= 1
    size = waiting.number[kind]
    job = heap[size]
    place = 0
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and ahead(waiting, heap[child + 1], heap[child]):
            child += 1
        if not ahead(waiting, heap[child], job):
            break
        heap[place] = heap[child]
        place = child
    heap[place] = job
