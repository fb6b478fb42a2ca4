"""Numbering of the multisets of up to three rows, for tables with one entry per multiset."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations_with_replacement
from math import comb

from numba import njit

LARGEST = 3
NOBODY = -1


def count(rows: int, largest: int) -> int:
    """Multisets of at most `largest` of `rows` rows."""
    return comb(rows + largest, largest)


@njit(cache=True)
def rank(a: int, b: int, c: int, largest: int) -> int:
    """The number of the multiset {a, b, c}, in any order; NOBODY fills the places of absent ones.

    The combinatorial number system: with NOBODY as symbol 0 and x <= y <= z the symbols, it is
    C(x, 1) + C(y + 1, 2) + C(z + 2, 3) (Knuth, The Art of Computer Programming 4A, section
    7.2.1.3). Below `largest` = 3, the first places must be NOBODY and are not counted.
    """
    x, y, z = a + 1, b + 1, c + 1
    if x > y:
        x, y = y, x
    if y > z:
        y, z = z, y
    if x > y:
        x, y = y, x
    if largest == 1:
        return z
    if largest == 2:
        return y + z * (z + 1) // 2
    return x + y * (y + 1) // 2 + z * (z + 1) * (z + 2) // 6


def multisets(rows: int, largest: int) -> Iterator[tuple[int, ...]]:
    """All multisets of at most `largest` rows, each ascending."""
    for size in range(largest + 1):
        yield from combinations_with_replacement(range(rows), size)
