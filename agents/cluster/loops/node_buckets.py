"""Equal nodes by the number of their free GPUs, as sets of bits: the lowest node of a set and the
fullest node that fits are found without looking at every node."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

NONE = -1
_ONE = np.uint64(1)
_DE_BRUIJN = np.uint64(0x03F79D71B4CB0A89)
_BIT = np.empty(64, np.int64)  # place of the only bit of x, at x times the De Bruijn number >> 58
for _place in range(64):
    _BIT[((0x03F79D71B4CB0A89 << _place) & (2**64 - 1)) >> 58] = _place


class NodeBuckets(NamedTuple):
    """N nodes of `size` GPUs; level f: those with f free GPUs."""

    size: int
    free: NDArray[np.int64]  # (N,)
    bits: NDArray[np.uint64]  # (size + 1, words) of each level, a bit per node
    words: NDArray[np.uint64]  # (size + 1, words of words) words that are not 0
    level: NDArray[np.int64]  # (size + 1,) nodes of each level
    after: NDArray[np.int32]  # (N,) the next node that the same job has whole


@njit(cache=True)
def lowest_bit(word: np.uint64) -> int:
    """Place of the lowest bit of a word that is not 0."""
    alone = word & (~word + _ONE)
    return int(_BIT[(alone * _DE_BRUIJN) >> np.uint64(58)])


@njit(cache=True)
def _flip(buckets: NodeBuckets, level: int, node: int) -> None:
    word = node >> 6
    buckets.bits[level, word] ^= _ONE << np.uint64(node & 63)
    bit = _ONE << np.uint64(word & 63)
    if buckets.bits[level, word]:
        buckets.words[level, word >> 6] |= bit
    else:
        buckets.words[level, word >> 6] &= ~bit


@njit(cache=True)
def node_buckets(nodes: int, size: int) -> NodeBuckets:
    """All nodes idle."""
    words = (nodes + 63) >> 6
    buckets = NodeBuckets(
        size,
        np.full(nodes, size, np.int64),
        np.zeros((size + 1, words), np.uint64),
        np.zeros((size + 1, (words + 63) >> 6), np.uint64),
        np.zeros(size + 1, np.int64),
        np.full(nodes, NONE, np.int32),
    )
    for node in range(nodes):
        _flip(buckets, size, node)
    buckets.level[size] = nodes
    return buckets


@njit(cache=True)
def lowest(buckets: NodeBuckets, level: int) -> int:
    """The lowest node of a level that has one."""
    i = 0
    while not buckets.words[level, i]:
        i += 1
    word = (i << 6) + lowest_bit(buckets.words[level, i])
    node: int = (word << 6) + lowest_bit(buckets.bits[level, word])
    return node


@njit(cache=True)
def change(buckets: NodeBuckets, node: int, gpus: int) -> None:
    """Give `gpus` GPUs back to a node, or take them where negative."""
    level = buckets.free[node]
    _flip(buckets, level, node)
    buckets.level[level] -= 1
    level += gpus
    _flip(buckets, level, node)
    buckets.level[level] += 1
    buckets.free[node] = level


@njit(cache=True)
def first_with(buckets: NodeBuckets, need: int) -> int:
    """The lowest node with at least `need` free GPUs, or NONE."""
    node = NONE
    for level in range(need, buckets.size + 1):
        if buckets.level[level]:
            other = lowest(buckets, level)
            if node == NONE or other < node:
                node = other
    return node


@njit(cache=True)
def fullest_with(buckets: NodeBuckets, need: int) -> int:
    """The lowest node among those with the fewest, but at least `need`, free GPUs, or NONE."""
    for level in range(need, buckets.size + 1):
        if buckets.level[level]:
            node: int = lowest(buckets, level)
            return node
    return NONE


@njit(cache=True)
def emptiest_with(buckets: NodeBuckets, need: int) -> int:
    """The lowest node among those with the most free GPUs, if at least `need`, or NONE."""
    for level in range(buckets.size, need - 1, -1):
        if buckets.level[level]:
            node: int = lowest(buckets, level)
            return node
    return NONE


@njit(cache=True)
def _any(buckets: NodeBuckets, need: int) -> bool:
    """Whether a node that is not idle has `need` free GPUs."""
    found = False
    for level in range(need, buckets.size):
        found |= buckets.level[level] > 0
    return found


@njit(cache=True)
def fits(buckets: NodeBuckets, need: int) -> bool:
    """Whether `need` GPUs are free on one node, or on whole nodes and one more for the rest."""
    whole, rest = 0, need
    if need > buckets.size:
        whole, rest = need // buckets.size, need % buckets.size
    idle = buckets.level[buckets.size]
    if idle <= whole:
        return idle == whole and (rest == 0 or _any(buckets, rest))
    return True
