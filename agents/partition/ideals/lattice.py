"""The lattice of ideals of a graph of items, and the chain of prefixes of one order of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agents.partition.ideals.items import Items, Rows
from agents.step.grouping import numbered
from envs.arrays import BoolArray, IntArray, sums_before
from envs.compilation import compiled_inner

BitArray = NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class Ideals:
    """P ideals by rising size, the empty one first and that of all items last.

    An ideal holds every item that precedes one of its own. Ideal i becomes ideal `upper[c]` by
    `item[c]`, for c in `ptr[i] : ptr[i + 1]`. Bit v % 64 of word v // 64 of an ideal is item v.
    """

    bits: BitArray  # (P, words)
    size: IntArray  # (P,)
    parent: IntArray  # (P,) an ideal without `grown`, -1 for the empty ideal
    grown: IntArray  # (P,) the item that `parent` lacks
    ptr: IntArray  # (P + 1,)
    item: IntArray  # (covers,)
    upper: IntArray  # (covers,)

    def holds(self, ideal: int, items: int) -> BoolArray:
        """(n,) whether `ideal` has each of the n = `items`."""
        words = self.bits[ideal].astype("<u8").view(np.uint8)
        return np.unpackbits(words, count=items, bitorder="little").astype(np.bool_)

    @property
    def count(self) -> int:
        return len(self.size)


def all_ideals(items: Items, limit: int) -> Ideals | None:
    """Every ideal of `items`, breadth first; None when there are more than `limit`."""
    n, arcs = items.count, items.arcs
    after = Rows.of(arcs[:, 0], arcs[:, 1], n)
    alone = _singles(np.arange(n))
    needs = np.zeros_like(alone)  # (n, words) what must be in an ideal with each item
    np.bitwise_or.at(needs, arcs[:, 1], alone[arcs[:, 0]])
    bits = [np.zeros((1, alone.shape[1]), dtype=np.uint64)]  # here and below, by size
    parent, grown = [np.full(1, -1)], [np.full(1, -1)]
    widths, added, upper = [], [], []
    first = 0  # of the ideals of the size at hand
    smaller, item = np.zeros(n, np.int64), np.arange(n)  # what makes which of them larger
    ready = (needs == 0).all(axis=1)
    smaller, item = smaller[ready], item[ready]
    while True:
        level = bits[-1]
        width = np.bincount(smaller, minlength=len(level))
        widths.append(width)
        if not len(item):
            break
        larger = level[smaller] | alone[item]
        codes = np.ascontiguousarray(larger).view(np.dtype((np.void, larger[0].nbytes))).ravel()
        number = numbered(codes)
        new = np.unique(number, return_index=True)[1]  # by first appearance
        above = first + len(level)
        if above + len(new) > limit:
            return None
        added.append(item)
        upper.append(above + number)
        bits.append(larger[new])
        parent.append(first + smaller[new])
        grown.append(item[new])
        rows = Rows(sums_before(width), item)
        of, kept = rows.take(smaller[new])
        of_next, freed = after.take(item[new])
        others = kept != item[new][of]
        complete = ((needs[freed] & ~larger[new][of_next]) == 0).all(axis=1)
        smaller = np.concatenate([of[others], of_next[complete]])
        order = np.argsort(smaller, kind="stable")
        smaller, item = smaller[order], np.concatenate([kept[others], freed[complete]])[order]
        first = above
    size = np.repeat(np.arange(len(bits)), [len(level) for level in bits])
    none = [np.zeros(0, np.int64)]
    return Ideals(
        bits=np.concatenate(bits),
        size=size,
        parent=np.concatenate(parent),
        grown=np.concatenate(grown),
        ptr=np.concatenate([[0], *(widths)]).cumsum(),
        item=np.concatenate([*added, *none]),
        upper=np.concatenate([*upper, *none]),
    )


def _singles(items: IntArray) -> BitArray:
    """(n, words) the set of each of the n `items` alone."""
    n = len(items)
    bits = np.zeros((n, n // 64 + 1), dtype=np.uint64)
    bits[np.arange(n), items // 64] = np.uint64(1) << (items % 64).astype(np.uint64)
    return bits


def prefixes(order: IntArray) -> Ideals:
    """The n + 1 prefixes of a topological order of the items."""
    n = len(order)
    return Ideals(
        bits=np.bitwise_or.accumulate(np.pad(_singles(order), ((1, 0), (0, 0))), axis=0),
        size=np.arange(n + 1),
        parent=np.arange(-1, n),
        grown=np.concatenate([[-1], order]).astype(np.int64),
        ptr=np.minimum(np.arange(n + 2), n),
        item=np.ascontiguousarray(order, dtype=np.int64),
        upper=np.arange(1, n + 1),
    )


@compiled_inner
def holds(bits: BitArray, ideal: int, v: int) -> bool:
    """Whether ideal `ideal` has item v."""
    inside: bool = (bits[ideal, v >> 6] >> np.uint64(v & 63)) & np.uint64(1) != 0
    return inside
