"""Sparse vectors to be summed: drawn, of a file, or gradients of a small torch model."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

import numpy as np

from envs.arrays import BoolArray, FloatArray
from envs.errors import InputError, require_one_of
from envs.files import check_file
from envs.synchronisation.sparse_aggregation import Pattern, blocks_of, drawn_blocks
from envs.synchronisation.switch_aggregation import ELEMENT


def sparse_blocks(
    asked: Mapping[str, Any], workers: int, size: float, seed: int
) -> tuple[float, BoolArray]:
    """Bytes of the vector, and which of its blocks each worker has.

    Args:
        asked: `block` in bytes, and `density` and `pattern`, or `gradients`: the file of a numpy
            array (n, E) that says the bytes too.

    Raises:
        InputError: naming the key at fault.
    """
    known = [{"block", "density", "pattern"}, {"block", "gradients"}]
    if set(asked) not in known:
        raise InputError(
            "config key 'sparsity': give block, density and pattern, or block and gradients"
        )
    block = asked["block"]
    if not isinstance(block, int) or block < ELEMENT or block % ELEMENT:
        raise InputError(f"config key 'sparsity.block': {block} is no multiple of {ELEMENT} bytes")
    if "gradients" in asked:
        values = _array(asked["gradients"], workers)
        return float(values.shape[1] * ELEMENT), blocks_of(values, block // ELEMENT)
    density, pattern = asked["density"], asked["pattern"]
    if not isinstance(density, int | float) or not 0.0 <= density <= 1.0:
        raise InputError(f"config key 'sparsity.density': {density} is no share from 0 to 1")
    patterns = [each.value for each in Pattern]
    require_one_of(pattern, patterns, file="config key 'sparsity.pattern'")
    return size, drawn_blocks(Pattern(pattern), workers, ceil(size / block), density, seed)


def _array(path: str, workers: int) -> FloatArray:
    check_file(path)
    try:
        values = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise InputError(f"is no array of numpy ({error})", file=path) from error
    if not isinstance(values, np.ndarray) or values.ndim != 2 or values.dtype.kind not in "fiu":
        raise InputError("is no array of numbers of two dimensions", file=path)
    if len(values) != workers or values.shape[1] < 1:
        raise InputError(f"holds {values.shape}, and {workers} take part", file=path)
    return values.astype(np.float64)


def embedding_gradients(
    workers: int, seed: int, vocabulary: int = 5000, width: int = 64
) -> FloatArray:
    """(W, E) of a table of words, of which few stand in a batch, and of two layers after it."""
    import torch
    from torch import nn

    torch.manual_seed(seed)
    embedding = nn.Embedding(vocabulary, width)
    head = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 10))
    parameters = [*embedding.parameters(), *head.parameters()]
    rows = []
    for _ in range(workers):
        words = (torch.rand(16, 8) ** 4 * vocabulary).long()  # some words are in most batches
        loss = nn.functional.cross_entropy(
            head(embedding(words).mean(dim=1)), torch.randint(10, (16,))
        )
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)]).numpy())
    return np.stack(rows).astype(np.float64)


def largest_entries(values: FloatArray, share: float) -> FloatArray:
    """(W, E) each worker's largest `share` of its entries; zero elsewhere."""
    kept = max(1, round(share * values.shape[1]))
    least = np.sort(np.abs(values), axis=1)[:, -kept]
    return np.where(np.abs(values) >= least[:, None], values, 0.0)
