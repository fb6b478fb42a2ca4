"""Paired comparison over windows: ratios to a baseline, and their bootstrap intervals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean over windows and seeds, and its percentile bootstrap interval."""

    mean: float
    low: float
    high: float

    @property
    def below_one(self) -> bool:
        """Whether the whole interval is."""
        return self.high < 1.0

    def text(self) -> str:
        """For a table."""
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def bootstrap(ratios: FloatArray, samples: int, seed: int) -> Interval:
    """The mean of `ratios` (windows, seeds), windows and seeds drawn again with replacement.

    Both are drawn in every sample, the windows independently of the seeds (Efron and Tibshirani, An
    Introduction to the Bootstrap, 1993, chapter 13, for the percentile interval).
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


def best_overall(means: FloatArray) -> int:
    """The row of (policies, windows) mean JCTs with the least mean ratio to each window's best."""
    return int((means / means.min(axis=0)).mean(axis=1).argmin())
