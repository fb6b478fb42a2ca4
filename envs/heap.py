"""Compiled heaps: of events in time, and of numbers.

Events are `time[:size]` and what happens, `event[:size]`, a number each. Of events at the same
time, that with the smallest number comes first.
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


@compiled_inner
def push_number(heap: IntArray, base: int, size: int, key: int) -> None:
    """Add `key` to the min-heap `heap[base : base + size]`; one array holds many heaps."""
    i = size
    while i > 0:
        parent = (i - 1) >> 1
        above = heap[base + parent]
        if above <= key:
            break
        heap[base + i] = above
        i = parent
    heap[base + i] = key


@compiled_inner
def pop_number(heap: IntArray, base: int, size: int) -> None:
    """Remove the least of `size` keys, `heap[base]`."""
    last = size - 1
    key = heap[base + last]
    i = 0
    child = 1
    while child < last:
        if child + 1 < last and heap[base + child + 1] < heap[base + child]:
            child += 1
        if heap[base + child] >= key:
            break
        heap[base + i] = heap[base + child]
        i = child
        child = 2 * i + 1
    heap[base + i] = key
