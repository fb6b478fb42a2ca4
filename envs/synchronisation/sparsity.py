"""Which blocks of gradients are not all zero: those of vectors, and drawn ones."""

from __future__ import annotations

from enum import Enum

import numpy as np

from envs.arrays import BoolArray, FloatArray
from envs.errors import InputError


def in_blocks(values: FloatArray, size: int) -> FloatArray:
    """(n, B, size) vectors (n, E), of which zeros fill up the last blocks."""
    workers, length = values.shape
    padded = np.zeros((workers, -(-length // size) * size))
    padded[:, :length] = values
    return padded.reshape(workers, -1, size)


def blocks_of(values: FloatArray, block: int) -> BoolArray:
    """(n, B) the bitmaps of (n, E) vectors: which blocks are not all zero."""
    return np.asarray(in_blocks(values, block).any(axis=2))


class Pattern(Enum):
    """Which blocks the workers have beside each other."""

    RANDOM = "random"  # each its own, drawn without the others
    OVERLAPPING = "overlapping"  # all the same
    DISJOINT = "disjoint"  # none twice


def drawn_blocks(
    pattern: Pattern, workers: int, blocks: int, density: float, seed: int
) -> BoolArray:
    """(n, B) round(B `density`) blocks of each worker; disjoint ones at most B // n.

    Raises:
        InputError: workers cannot have such a share of the blocks to themselves.
    """
    rng = np.random.default_rng(seed)
    each = round(blocks * density)
    if pattern is Pattern.DISJOINT:
        if density * workers > 1.0:
            fault = f"{workers} workers cannot have {density:g} of the blocks each to themselves"
            raise InputError(fault, field="density")
        each = min(each, blocks // workers)
    found = np.zeros((workers, blocks), dtype=np.bool_)
    order = rng.permutation(blocks)
    for worker in range(workers):
        if pattern is Pattern.RANDOM:
            order = rng.permutation(blocks)
        found[worker, order[:each]] = True
        if pattern is Pattern.DISJOINT:
            order = order[each:]
    return found
