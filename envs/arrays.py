"""Types of arrays, by what they hold."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


def mean_able(seconds: FloatArray) -> FloatArray:
    """(N,) mean over those of the columns of `seconds` (N, K) that are finite."""
    able = np.isfinite(seconds)
    total = np.where(able, seconds, 0.0).sum(axis=1)
    return np.asarray(total / np.maximum(able.sum(axis=1), 1))


def sums_before(values: NDArray[Any]) -> NDArray[Any]:
    """(N + 1, ...) what the entries (N, ...) before each place add up to."""
    return np.concatenate([np.zeros((1, *values.shape[1:]), values.dtype), values.cumsum(axis=0)])
