"""What the network is compared with: each is given the same folds, fingerprints included."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from envs.arrays import FloatArray
from envs.cluster.interference.rates import SPANNING
from models.interference.measurements import Fold, Measurements

GRID = np.linspace(0.0, 1.0, 41)  # of demands
SWEEPS = 6  # over the jobs, each given its best demand in turn


class Baseline(Protocol):
    """A method of predicting the rates of pairs."""

    @property
    def name(self) -> str:
        """Of the method, in tables."""

    def predict(self, measurements: Measurements, fold: Fold) -> FloatArray:
        """(T, P, P) rates, from the fold's known pairs and its inputs alone."""


class Mean:
    """The median of the known rates of the table, which has the least absolute error."""

    name = "median"

    def predict(self, measurements: Measurements, fold: Fold) -> FloatArray:
        found = [np.median(r[k]) for r, k in zip(measurements.rate, fold.known, strict=True)]
        return np.broadcast_to(np.array(found)[:, None, None], fold.known.shape)


@dataclass(frozen=True)
class NearestNeighbour:
    """The mean rate of the known pairs whose jobs are nearest.

    The squared distance of two pairs is that of their first jobs plus that of their second jobs,
    in standardised profiles and fingerprints.
    """

    name: str
    count: int

    def predict(self, measurements: Measurements, fold: Fold) -> FloatArray:
        found = np.empty(fold.known.shape)
        jobs = len(fold.unseen)
        for table, inputs in enumerate(fold.inputs):
            distance = ((inputs[:, None] - inputs) ** 2).sum(axis=-1)  # (P, P)
            own, other = np.nonzero(fold.known[table])
            rates = measurements.rate[table][own, other]
            for i in range(jobs):
                to_pairs = distance[i, own] + distance[:, other]  # (P, K)
                count = min(self.count, len(rates))
                nearest = np.argsort(to_pairs, axis=1, kind="stable")[:, :count]
                found[table, i] = rates[nearest].mean(axis=1)
        return found


class SharedResource:
    """Jobs share a resource in proportion: `envs.cluster.interference.analytic.SharedBottleneck`.

    Beside each other jobs with demands d run at min(1, 1 / (d[i] + d[j])). The demand of a job is
    fitted to its known rates; one without any has the median demand of the others.
    """

    name = "analytic"

    def predict(self, measurements: Measurements, fold: Fold) -> FloatArray:
        found = np.empty(fold.known.shape)
        for table, known in enumerate(fold.known):
            rate = np.nan_to_num(measurements.rate[table])
            jobs = np.flatnonzero(known.any(axis=1) | known.any(axis=0))
            demand = np.full(len(known), 0.75)
            for _ in range(SWEEPS):
                for job in jobs:
                    shared = _shared(GRID[:, None], demand)  # (G, P), the job at each demand
                    error = np.abs(shared - rate[job]) @ known[job]
                    error += np.abs(shared - rate[:, job]) @ known[:, job]
                    demand[job] = GRID[np.argmin(error)]
            rest = np.setdiff1d(np.arange(len(known)), jobs)
            demand[rest] = np.median(demand[jobs])
            found[table] = _shared(demand[:, None], demand)
        return found


def _shared(own: FloatArray, other: FloatArray) -> FloatArray:
    shared: FloatArray = 1.0 / np.maximum(1.0, own + other)
    return shared


@dataclass(frozen=True)
class Contention:
    """All-reduces contend: `envs.cluster.interference.analytic.AllReduceContention`, k = 2.

    A job that communicates for a share c of its time runs at 1 / (1 - c + c (2 beta + eta) / beta)
    beside any other. c is fitted to its known rates; a job without any has the median share.

    Args:
        eta_over_beta: what the second all-reduce adds beyond equal sharing.
    """

    eta_over_beta: float
    name = "contention"

    def predict(self, measurements: Measurements, fold: Fold) -> FloatArray:
        found = np.empty(fold.known.shape)
        rates = 1.0 / (1.0 + GRID * (1.0 + self.eta_over_beta))
        for table, known in enumerate(fold.known):
            rate = np.nan_to_num(measurements.rate[table])
            error = (np.abs(rates[:, None, None] - rate) * known).sum(axis=-1)  # (G, P)
            share = GRID[np.argmin(error, axis=0)]
            without = ~known.any(axis=1)
            share[without] = np.median(share[~without])
            found[table] = (1.0 / (1.0 + share * (1.0 + self.eta_over_beta)))[:, None]
        return found


@dataclass(frozen=True)
class MatrixCompletion:
    """Biases and a low-rank product, by alternating ridge regressions over the known rates.

    Collaborative filtering as in Paragon (Delimitrou and Kozyrakis, ASPLOS 2013) and Gavel's
    throughput estimator; it knows no profiles.

    Args:
        rank: of the product.
        ridge: penalty on the factors.
        sweeps: over rows and columns.
    """

    rank: int
    ridge: float
    sweeps: int
    name = "matrix completion"

    def predict(self, measurements: Measurements, fold: Fold) -> FloatArray:
        found = np.empty(fold.known.shape)
        for table, known in enumerate(fold.known):
            mean = measurements.rate[table][known].mean()
            centred = np.where(known, measurements.rate[table] - mean, 0.0)
            found[table] = np.clip(mean + self._complete(centred, known), 0.02, 1.0)
        return found

    def _complete(self, rate: FloatArray, known: np.ndarray) -> FloatArray:
        """Rows [1, bias, factors] times columns [bias, 1, factors]."""
        rng, jobs = np.random.default_rng(0), len(rate)
        row = rng.normal(0.0, 0.3, (jobs, self.rank + 2))
        column = rng.normal(0.0, 0.3, (jobs, self.rank + 2))
        row[:, 0], column[:, 1] = 1.0, 1.0
        of_row = [1, *range(2, self.rank + 2)]
        of_column = [0, *range(2, self.rank + 2)]
        for _ in range(self.sweeps):
            for job in range(jobs):
                at = known[job]
                row[job, of_row] = self._solve(column[at][:, of_row], rate[job, at] - column[at, 0])
            for job in range(jobs):
                at = known[:, job]
                target = rate[at, job] - row[at, 1]
                column[job, of_column] = self._solve(row[at][:, of_column], target)
        complete: FloatArray = row @ column.T
        return complete

    def _solve(self, inputs: FloatArray, target: FloatArray) -> FloatArray:
        gram = inputs.T @ inputs + self.ridge * np.eye(inputs.shape[1])
        return np.asarray(np.linalg.solve(gram, inputs.T @ target), np.float64)


def baselines(measurements: Measurements, eta_over_beta: float) -> tuple[Baseline, ...]:
    """The methods beside the network, for measurements of this kind."""
    analytic: tuple[Baseline, ...] = (SharedResource(),)
    if measurements.scope == SPANNING:
        analytic = (SharedResource(), Contention(eta_over_beta))
    nearest = NearestNeighbour("nearest neighbour", 1), NearestNeighbour("5 nearest", 5)
    return (Mean(), *analytic, *nearest, MatrixCompletion(rank=2, ridge=0.3, sweeps=20))
