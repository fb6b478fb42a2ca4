"""Binary min-heaps of integers: `heap[base : base + size]`, so that one array holds many heaps."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True)
def push(heap: NDArray[np.int64], base: int, size: int, key: int) -> None:
    """Add `key` to a heap of `size` keys."""
    i = size
    while i > 0:
        parent = (i - 1) >> 1
        above = heap[base + parent]
        if above <= key:
            break
        heap[base + i] = above
        i = parent
    heap[base + i] = key


@njit(cache=True)
def pop(heap: NDArray[np.int64], base: int, size: int) -> None:
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
