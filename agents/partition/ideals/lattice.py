"""The lattice of ideals of a graph of items, and the chain of prefixes of one order of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agents.partition.ideals.items import Items, Rows
from envs.arrays import IntArray
from envs.compilation import compiled, compiled_inner

BitArray = NDArray[np.uint64]

_FIRST_ROOM = 1024  # ideals the tables have room for at the start


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

    def holds(self, ideal: int, items: int) -> NDArray[np.bool_]:
        """(n,) whether `ideal` has each of the n = `items`."""
        words = self.bits[ideal].astype("<u8").view(np.uint8)
        return np.unpackbits(words, count=items, bitorder="little").astype(np.bool_)

    @property
    def count(self) -> int:
        return len(self.size)


def all_ideals(items: Items, limit: int) -> Ideals | None:
    """Every ideal of `items`; None when there are more than `limit`."""
    n = items.count
    after = Rows.of(items.arcs[:, 0], items.arcs[:, 1], n)
    before = Rows.of(items.arcs[:, 1], items.arcs[:, 0], n)
    key = np.random.default_rng(0).integers(1, 2**64, size=n, dtype=np.uint64)
    found, ptr, item, upper, bits, size, parent, grown = _enumerate(
        n, after.ptr, after.value, before.ptr, before.value, key, limit
    )
    if not found:
        return None
    return Ideals(bits, size, parent, grown, ptr, item, upper)


def prefixes(order: IntArray) -> Ideals:
    """The n + 1 prefixes of a topological order of the items."""
    n = len(order)
    bits = np.zeros((n + 1, n // 64 + 1), dtype=np.uint64)
    rows, words = np.arange(1, n + 1), order // 64
    bits[rows, words] = np.uint64(1) << (order % 64).astype(np.uint64)
    return Ideals(
        bits=np.bitwise_or.accumulate(bits, axis=0),
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


@compiled
def _enumerate(
    n: int,
    after_ptr: IntArray,
    after: IntArray,
    before_ptr: IntArray,
    before: IntArray,
    key: BitArray,  # (n,) random words: an ideal is hashed to the exclusive or of its items' words
    limit: int,
) -> tuple[bool, IntArray, IntArray, IntArray, BitArray, IntArray, IntArray, IntArray]:
    """The columns of `Ideals`, breadth first from the empty ideal; False when over `limit`."""
    words = n // 64 + 1
    room = _FIRST_ROOM
    bits = np.zeros((room, words), dtype=np.uint64)
    hashed = np.zeros(room, dtype=np.uint64)
    size = np.zeros(room, dtype=np.int64)
    parent = np.full(room, -1, dtype=np.int64)
    grown = np.full(room, -1, dtype=np.int64)
    table = np.full(4 * room, -1, dtype=np.int64)
    ptr = np.zeros(room + 1, dtype=np.int64)
    item = np.zeros(4 * room, dtype=np.int64)
    upper = np.zeros(4 * room, dtype=np.int64)
    ready = np.zeros(n, dtype=np.int64)
    count, covers = 1, 0
    i = 0
    while i < count:
        ptr[i] = covers
        width = _ready(i, bits, parent, grown, ptr, item, after_ptr, after, before_ptr, before,
                       ready)  # fmt: skip
        if covers + width > len(item):
            item = np.concatenate((item, np.zeros(len(item) + n, dtype=np.int64)))
            upper = np.concatenate((upper, np.zeros(len(upper) + n, dtype=np.int64)))
        for r in range(width):
            v = ready[r]
            code = hashed[i] ^ key[v]
            slot = _slot(bits, hashed, table, i, v, code)
            j = table[slot]
            if j < 0:
                if count == limit:
                    return False, ptr, item, upper, bits, size, parent, grown
                if count == room:
                    bits = np.concatenate((bits, np.zeros((room, words), dtype=np.uint64)))
                    hashed = np.concatenate((hashed, np.zeros(room, dtype=np.uint64)))
                    size = np.concatenate((size, np.zeros(room, dtype=np.int64)))
                    parent = np.concatenate((parent, np.full(room, -1, dtype=np.int64)))
                    grown = np.concatenate((grown, np.full(room, -1, dtype=np.int64)))
                    ptr = np.concatenate((ptr, np.zeros(room, dtype=np.int64)))
                    room *= 2
                    table = np.full(4 * room, -1, dtype=np.int64)
                    for old in range(count):
                        table[_free_slot(table, hashed[old])] = old
                    slot = _free_slot(table, code)
                j = count
                count += 1
                bits[j] = bits[i]
                bits[j, v >> 6] |= np.uint64(1) << np.uint64(v & 63)
                hashed[j], size[j], parent[j], grown[j] = code, size[i] + 1, i, v
                table[slot] = j
            item[covers], upper[covers] = v, j
            covers += 1
        i += 1
    ptr[count] = covers
    return (
        True, ptr[: count + 1].copy(), item[:covers].copy(), upper[:covers].copy(),
        bits[:count].copy(), size[:count].copy(), parent[:count].copy(), grown[:count].copy(),
    )  # fmt: skip


@compiled_inner
def _ready(
    i: int,
    bits: BitArray,
    parent: IntArray,
    grown: IntArray,
    ptr: IntArray,
    item: IntArray,
    after_ptr: IntArray,
    after: IntArray,
    before_ptr: IntArray,
    before: IntArray,
    ready: IntArray,  # out
) -> int:
    """How many items, put in `ready`, make ideal `i` a larger ideal."""
    width = 0
    if i == 0:
        for v in range(len(ready)):
            if before_ptr[v] == before_ptr[v + 1]:
                ready[width] = v
                width += 1
        return width
    last = grown[i]
    for c in range(ptr[parent[i]], ptr[parent[i] + 1]):
        if item[c] != last:
            ready[width] = item[c]
            width += 1
    for k in range(after_ptr[last], after_ptr[last + 1]):
        w = after[k]
        complete = True
        for b in range(before_ptr[w], before_ptr[w + 1]):
            if not holds(bits, i, before[b]):
                complete = False
                break
        if complete:
            ready[width] = w
            width += 1
    return width


@compiled_inner
def _slot(
    bits: BitArray, hashed: BitArray, table: IntArray, i: int, v: int, code: np.uint64
) -> np.uint64:
    """Where ideal `i` with item `v` stands in the table, or would."""
    mask = np.uint64(len(table) - 1)
    slot = code & mask
    while table[slot] >= 0:
        j = table[slot]
        if hashed[j] == code and holds(bits, j, v):
            same = True
            for w in range(bits.shape[1]):
                extra = np.uint64(0)
                if w == v >> 6:
                    extra = np.uint64(1) << np.uint64(v & 63)
                if bits[j, w] != bits[i, w] | extra:
                    same = False
                    break
            if same:
                return slot
        slot = (slot + np.uint64(1)) & mask
    return slot


@compiled_inner
def _free_slot(table: IntArray, code: np.uint64) -> np.uint64:
    """The first free slot for an ideal hashed to `code`."""
    mask = np.uint64(len(table) - 1)
    slot = code & mask
    while table[slot] >= 0:
        slot = (slot + np.uint64(1)) & mask
    return slot
