"""A compiled heap of events in time: `time[:size]` and what happens, `event[:size]`, a number each.

Of events at the same time, that with the smallest number comes first.
"""

from __future__ import annotations

from envs.arrays import FloatArray, IntArray
from envs.compilation import compiled_inner


@compiled_inner
def push(time: FloatArray, event: IntArray, size: int, at: float, what: int) -> int:
    """The size of the heap with one event more."""
    i = size
    while i > 0:
        up = (i - 1) >> 1
        if time[up] < at or (time[up] == at and event[up] <= what):
            break
        time[i], event[i] = time[up], event[up]
        i = up
    time[i], event[i] = at, what
    return size + 1


@compiled_inner
def pop(time: FloatArray, event: IntArray, size: int) -> int:
    """The size of the heap without its first event."""
    size -= 1
    at, what = time[size], event[size]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        if child + 1 < size and (
            time[child + 1] < time[child]
            or (time[child + 1] == time[child] and event[child + 1] < event[child])
        ):
            child += 1
        if time[child] > at or (time[child] == at and event[child] >= what):
            break
        time[i], event[i] = time[child], event[child]
        i = child
    time[i], event[i] = at, what
    return size
