"""The lattice of ideals of a graph of items, and the chain of prefixes of one order of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agents.partition.ideals.items import Items, Rows
from agents.step.grouping import numbered
from envs.arrays import BoolArray, IntArray, sums_before
from envs.compilation import compiled_inner

ByteArray = NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Ideals:
    """P ideals by rising size, the empty one first and that of all items last.

    An ideal holds every item that precedes one of its own. Ideal i becomes ideal `upper[c]` by
    `item[c]`, for c in `ptr[i] : ptr[i + 1]`. Bit v % 8 of byte v // 8 of an ideal is item v.
    """

    bits: ByteArray  # (P, bytes)
    parent: IntArray  # (P,) an ideal without `grown`, -1 for the empty ideal
    grown: IntArray  # (P,) the item that `parent` lacks
    ptr: IntArray  # (P + 1,)
    item: IntArray  # (covers,)
    upper: IntArray  # (covers,)

    def holds(self, ideal: int, items: int) -> BoolArray:
        """(n,) whether `ideal` has each of the n = `items`."""
        return np.unpackbits(self.bits[ideal], count=items, bitorder="little").astype(np.bool_)

    @property
    def count(self) -> int:
        return len(self.parent)


def all_ideals(items: Items, limit: int) -> Ideals | None:
    """Every ideal of `items`, breadth first; None when there are more than `limit`."""
    n, arcs = items.count, items.arcs
    after = Rows.of(arcs[:, 0], arcs[:, 1], n)
    alone = _singles(np.arange(n))
    needs = np.zeros_like(alone)  # (n, bytes) what must be in an ideal with each item
    np.bitwise_or.at(needs, arcs[:, 1], alone[arcs[:, 0]])
    bits = [np.zeros((1, alone.shape[1]), dtype=np.uint8)]  # here and below, by size
    parent, grown = [np.full(1, -1)], [np.full(1, -1)]
    widths, added, upper = [], [], []
    first = 0  # of the ideals of the size at hand
    item = np.flatnonzero((needs == 0).all(axis=1))
    smaller = np.zeros_like(item)  # which of them each `item` makes larger
    while True:
        level = bits[-1]
        width = np.bincount(smaller, minlength=len(level))
        above = first + len(level)
        larger = level[smaller] | alone[item]
        number = numbered(larger.view(np.dtype((np.void, level.shape[1]))).ravel())
        new = np.unique(number, return_index=True)[1]  # by first appearance
        if above + len(new) > limit:
            return None
        widths.append(width)
        added.append(item)
        upper.append(above + number)
        if not len(new):
            break
        bits.append(larger[new])
        parent.append(first + smaller[new])
        grown.append(item[new])
        of, kept = Rows(sums_before(width), item).take(smaller[new])
        of_next, freed = after.take(item[new])
        others = kept != item[new][of]
        complete = ((needs[freed] & ~larger[new][of_next]) == 0).all(axis=1)
        smaller = np.concatenate([of[others], of_next[complete]])
        order = np.argsort(smaller, kind="stable")
        smaller, item = smaller[order], np.concatenate([kept[others], freed[complete]])[order]
        first = above
    return Ideals(
        bits=np.concatenate(bits),
        parent=np.concatenate(parent),
        grown=np.concatenate(grown),
        ptr=sums_before(np.concatenate(widths)),
        item=np.concatenate(added),
        upper=np.concatenate(upper),
    )


def _singles(items: IntArray) -> ByteArray:
    """(n, bytes) the set of each of the n `items` alone."""
    n = len(items)
    member = np.eye(n, 8 * (n // 8 + 1), dtype=np.bool_)[items]
    return np.packbits(member, axis=1, bitorder="little")


def prefixes(order: IntArray) -> Ideals:
    """The n + 1 prefixes of a topological order of the items."""
    n = len(order)
    return Ideals(
        bits=np.bitwise_or.accumulate(np.pad(_singles(order), ((1, 0), (0, 0))), axis=0),
        parent=np.arange(-1, n),
        grown=np.concatenate([[-1], order]),
        ptr=np.minimum(np.arange(n + 2), n),
        item=order,
        upper=np.arange(1, n + 1),
    )


@compiled_inner
def holds(bits: ByteArray, ideal: int, v: int) -> bool:
    """Whether ideal `ideal` has item v."""
    inside: bool = bits[ideal, v >> 3] >> (v & 7) & 1 != 0
    return inside
