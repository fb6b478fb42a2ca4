"""The lattice of ideals of a graph of items, and the chain of prefixes of one order of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from agents.partition.ideals.items import Items
from envs.arrays import BoolArray, IntArray
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

    @classmethod
    def of(
        cls,
        items: int,
        sets: Sequence[int],
        grown: Sequence[tuple[int, int]],
        covers: Sequence[Sequence[tuple[int, int]]],
    ) -> Ideals:
        """`sets` of n = `items` as bits, each with its parent and grown, its item and upper."""
        size = items // 8 + 1
        written = b"".join(ideal.to_bytes(size, "little") for ideal in sets)
        bits = np.frombuffer(written, dtype=np.uint8).reshape(-1, size)
        parent, last = np.array(grown, dtype=np.int64).T.copy()
        flat = [cover for row in covers for cover in row]
        item, upper = np.array(flat, dtype=np.int64).reshape(-1, 2).T.copy()
        return cls(bits, parent, last, np.cumsum([0, *map(len, covers)]), item, upper)

    def holds(self, ideal: int, items: int) -> BoolArray:
        """(n,) whether `ideal` has each of the n = `items`."""
        return np.unpackbits(self.bits[ideal], count=items, bitorder="little").astype(np.bool_)

    @property
    def count(self) -> int:
        return len(self.parent)


def all_ideals(items: Items, limit: int) -> Ideals | None:
    """Every ideal of `items`, breadth first; None when there are more than `limit`."""
    after: list[list[int]] = [[] for _ in range(items.count)]
    needs = [0] * items.count  # what must be in an ideal with each item
    for u, v in items.arcs.tolist():
        after[u].append(v)
        needs[v] |= 1 << u
    sets, number, grown = [0], {0: 0}, [(-1, -1)]
    ready = [[v for v in range(items.count) if not needs[v]]]  # what makes each ideal larger
    covers = []
    for i, ideal in enumerate(sets):
        for v in ready[i]:
            larger = ideal | 1 << v
            if larger not in number:
                if len(sets) == limit:
                    return None
                number[larger] = len(sets)
                sets.append(larger)
                grown.append((i, v))
                freed = [w for w in after[v] if not needs[w] & ~larger]
                ready.append([w for w in ready[i] if w != v] + freed)
        covers.append([(v, number[ideal | 1 << v]) for v in ready[i]])
    return Ideals.of(items.count, sets, grown, covers)


def prefixes(order: IntArray) -> Ideals:
    """The n + 1 prefixes of a topological order of the items."""
    steps = order.tolist()
    sets = list(accumulate(steps, lambda ideal, v: ideal | 1 << v, initial=0))
    covers = [*([(v, i + 1)] for i, v in enumerate(steps)), []]
    return Ideals.of(len(steps), sets, [(-1, -1), *enumerate(steps)], covers)


@compiled_inner
def holds(bits: ByteArray, ideal: int, v: int) -> bool:
    """Whether ideal `ideal` has item v."""
    inside: bool = bits[ideal, v >> 3] >> (v & 7) & 1 != 0
    return inside
