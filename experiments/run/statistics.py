"""Intervals of means: by the bootstrap over windows and seeds, and Student's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from envs.arrays import FloatArray

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean over windows and seeds, and its percentile bootstrap interval."""

    mean: float
    low: float
    high: float

    def text(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def bootstrap(ratios: FloatArray, samples: int, seed: int) -> Interval:
    """The mean of `ratios` (windows, seeds), windows and seeds drawn again with replacement.

    Both are drawn in every sample, the windows independently of the seeds (Efron and Tibshirani, An
    Introduction to the Bootstrap, 1993, chapter 13, for the percentile interval).
    `scipy.stats.bootstrap` draws along one axis only, or both with one and the same index.
    """
    rng = np.random.default_rng(seed)
    windows, seeds = ratios.shape
    means = np.empty(samples)
    for sample in range(samples):
        rows = rng.integers(windows, size=windows)
        columns = rng.integers(seeds, size=seeds)
        means[sample] = ratios[np.ix_(rows, columns)].mean()
    tail = 100.0 * (1.0 - CONFIDENCE) / 2.0
    low, high = np.percentile(means, (tail, 100.0 - tail)).tolist()
    return Interval(float(ratios.mean()), low, high)


def bootstrap_median(values: FloatArray, samples: int, seed: int) -> Interval:
    """The median of `values` (n,), some of them inf, and its percentile bootstrap interval."""
    rng = np.random.default_rng(seed)
    medians = np.median(values[rng.integers(len(values), size=(samples, len(values)))], axis=1)
    tail = 100.0 * (1.0 - CONFIDENCE) / 2.0
    low, high = np.percentile(medians, (tail, 100.0 - tail), method="nearest").tolist()
    return Interval(float(np.median(values)), low, high)


def half_width(values: Sequence[float] | FloatArray) -> float:
    """Half of the interval of the mean (Student's t); NaN of fewer than two values."""
    if len(values) < 2:
        return float("nan")
    quantile = stats.t.ppf(0.5 + CONFIDENCE / 2.0, len(values) - 1)
    return float(quantile * stats.sem(values))
