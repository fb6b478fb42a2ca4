"""A distribution as a small table of quantiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from envs.errors import InputError

FloatArray = NDArray[np.float64]

_STEPS = np.arange(0, 1.001, 0.02)
_TAIL = np.array([0.99, 0.995, 0.998, 0.999])
GRID = np.unique(np.concatenate([_STEPS, _TAIL, 1 - _TAIL]).round(4))  # probabilities of a table
LEAST_JOBS = 4  # values between two entries of a table
HALVINGS = 4  # of the space between two entries, until straight lines are near enough


@dataclass(frozen=True, eq=False)
class QuantileTable:
    """Quantiles at given probabilities; between them the logarithm rises evenly.

    Where the lower quantile is 0 the quantile itself does.

    Raises:
        InputError: fewer than two entries, probabilities that do not rise from 0 to 1, quantiles
            that fall or are negative.
    """

    probability: FloatArray  # (Q,) from 0 to 1
    quantile: FloatArray  # (Q,)

    def __post_init__(self) -> None:
        p, q = self.probability, self.quantile
        if p.shape != q.shape or len(p) < 2:
            raise InputError(f"{p.shape} and {q.shape}: two or more of both", field="quantile")
        if p[0] != 0 or p[-1] != 1 or not (np.diff(p) > 0).all():
            raise InputError("rises from 0 to 1", field="probability")
        if not np.isfinite(q).all() or q[0] < 0 or (np.diff(q) < 0).any():
            raise InputError("is finite, not negative, and never falls", field="quantile")

    @classmethod
    def fit(cls, values: NDArray[np.floating | np.integer], decimals: int = 0) -> QuantileTable:
        """The table of `values`, at least one, rounded.

        Entries of `GRID` nearer to each other than `LEAST_JOBS` values are left out.
        """
        kept = [0.0]
        for p in GRID[1:-1]:
            room = min(p - kept[-1], 1 - p) * len(values)
            if room >= LEAST_JOBS:
                kept.append(float(p))
        probability = np.array([*kept, 1.0])
        return cls(probability, np.quantile(values, probability).round(decimals))

    @classmethod
    def of(cls, document: Mapping[str, list[float]]) -> QuantileTable:
        """From `document()`."""
        columns = [np.asarray(document[key], np.float64) for key in ("probability", "quantile")]
        return cls(columns[0], columns[1])

    def document(self) -> dict[str, list[float]]:
        """As plain lists."""
        return {"probability": self.probability.tolist(), "quantile": self.quantile.tolist()}

    def sample(self, count: int, rng: np.random.Generator) -> FloatArray:
        """(count,) ascending values, one in each of `count` equal parts of the distribution.

        Systematic sampling: any number of them has the table's distribution, not only many. Plain
        arithmetic, so that every machine finds the same values.
        """
        points, values = self.probability, self.quantile
        for _ in range(HALVINGS):
            points, values = _halved(points, values)
        p = (np.arange(count) + rng.random()) / max(count, 1)
        at = np.minimum(np.searchsorted(points, p, side="right") - 1, len(points) - 2)
        low, high = points[at], points[at + 1]
        start, end = values[at], values[at + 1]
        return np.asarray(start + (end - start) * ((p - low) / (high - low)))


def _halved(points: FloatArray, values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """With an entry in the middle of every two: square roots are exact to the last bit."""
    low, high = values[:-1], values[1:]
    middle = np.where(low > 0, np.sqrt(low * high), (low + high) / 2)
    halves = np.empty((2, 2 * len(points) - 1))
    halves[:, ::2] = points, values
    halves[:, 1::2] = (points[:-1] + points[1:]) / 2, middle
    return halves[0], halves[1]
