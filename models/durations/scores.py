"""How good posteriors of the work left are: on jobs that were seen later, beside two baselines."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from envs.arrays import FloatArray
from models.durations.bins import BINS, upper_edges_s
from models.durations.network import DurationPosterior

AT_ONCE = 8192  # rows given to the network at a time


@dataclass(frozen=True, eq=False)
class Marginal:
    """The durations of jobs that were seen, whatever is known of the job in question but its work.

    Args:
        duration_s: (J,) of jobs.
        gpus: (J,) that they asked for.
        smoothing: jobs, spread evenly over the bins, counted beside them; for the jobs of a gang
            size, spread as those of all gang sizes are.
    """

    duration_s: NDArray[np.int64]
    gpus: NDArray[np.int32]
    smoothing: float

    def given_done(self, done_s: FloatArray) -> FloatArray:
        """(A, 26) chances of the bins, of the jobs that took longer than `done_s`."""
        return _posterior(self.duration_s, done_s, np.full(BINS, 1.0 / BINS), self.smoothing)

    def given_gang(self, done_s: FloatArray, gpus: NDArray[np.int64]) -> FloatArray:
        """(A, 26) the same, of those that asked for as many GPUs."""
        chance = self.given_done(done_s)
        for size in np.unique(gpus):
            rows = gpus == size
            alike = self.duration_s[self.gpus == size]
            chance[rows] = _posterior(alike, done_s[rows], chance[rows], self.smoothing)
        return chance


def _posterior(
    duration_s: NDArray[np.int64], done_s: FloatArray, prior: FloatArray, smoothing: float
) -> FloatArray:
    """(A, 26) of the jobs that took longer than `done_s`; `prior` counts as `smoothing` jobs."""
    limits = np.append(0.0, upper_edges_s())
    within = np.searchsorted(np.sort(duration_s), done_s[:, None] + limits, side="right")
    last = len(duration_s) - within[:, -1:]
    counts = np.concatenate([np.diff(within, axis=1), last], axis=1)
    counted = counts + smoothing * prior
    chance: FloatArray = counted / counted.sum(axis=1, keepdims=True)
    return chance


def predicted(posterior: DurationPosterior, rows: NDArray[np.float32]) -> FloatArray:
    """(A, 26) chances of the bins by the network."""
    with torch.inference_mode():
        parts = map(posterior, torch.from_numpy(rows).split(AT_ONCE))
        found = [part.double().softmax(dim=1).numpy() for part in parts]  # sums to 1 exactly
    return np.concatenate(found)


@dataclass(frozen=True, eq=False)
class Scores:
    """One method on A rows.

    Attributes:
        method: its name.
        loss: (A,) negative logarithm of the chance of the bin that was true, in nats.
        rank: (A,) chance that the work left is at most what it was: evenly spread over 0 to 1 if
            the chances are true (Dawid, J. R. Stat. Soc. A 147, 1984).
    """

    method: str
    loss: FloatArray
    rank: FloatArray

    @classmethod
    def of(cls, method: str, chance: FloatArray, remaining_s: FloatArray) -> Scores:
        """Of (A, 26) chances and (A,) seconds that were left.

        Within a bin chances are evenly spread over time; the last bin, which has no end, is taken
        to be as wide, in the logarithm, as the others.
        """
        upper = upper_edges_s()
        upper = np.append(upper, upper[-1] * upper[-1] / upper[-2])
        lower = np.append(0.0, upper[:-1])
        row, true = np.arange(len(chance)), np.searchsorted(upper_edges_s(), remaining_s)
        part = np.minimum((remaining_s - lower[true]) / (upper - lower)[true], 1.0)
        below = np.cumsum(chance, axis=1)[row, true] - chance[row, true]
        return cls(method, -np.log(chance[row, true]), below + part * chance[row, true])

    def held(self, level: float) -> float:
        """The share of the rows inside the central interval that is to hold `level`."""
        return float((np.abs(self.rank - 0.5) <= level / 2.0).mean())

    def by_part(self, part: NDArray[np.int64]) -> FloatArray:
        """(P,) mean loss of each part that has rows."""
        _, which = np.unique(part, return_inverse=True)
        means: FloatArray = np.bincount(which, self.loss) / np.bincount(which)
        return means
