"""Binary min-heaps of (key, tag) pairs, many in one pair of arrays."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

IntArray = NDArray[np.int64]


@njit(cache=True)
def push_pair(keys: IntArray, tags: IntArray, base: int, size: int, key: int, tag: int) -> None:
    """Add a pair to the heap of `size` pairs that starts at `base`."""
    i = size
    while i > 0:
        parent = (i - 1) >> 1
        k, t = keys[base + parent], tags[base + parent]
        if k < key or (k == key and t < tag):
            break
        keys[base + i], tags[base + i] = k, t
        i = parent
    keys[base + i], tags[base + i] = key, tag


@njit(cache=True)
def pop_pair(keys: IntArray, tags: IntArray, base: int, size: int) -> None:
    """Remove the least of `size` pairs, the one at `base`."""
    last = size - 1
    key, tag = keys[base + last], tags[base + last]
    i, child = 0, 1
    while child < last:
        k, t = keys[base + child], tags[base + child]
        if child + 1 < last:
            k2, t2 = keys[base + child + 1], tags[base + child + 1]
            if k2 < k or (k2 == k and t2 < t):
                child += 1
                k, t = k2, t2
        if k > key or (k == key and t > tag):
            break
        keys[base + i], tags[base + i] = k, t
        i = child
        child = 2 * i + 1
    keys[base + i], tags[base + i] = key, tag
