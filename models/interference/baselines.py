"""What the network is compared with: each is given the same folds, fingerprints included."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from envs.arrays import BoolArray, FloatArray
from envs.cluster.interference.rates import SPANNING
from models.interference.measurements import Fold, Measurements

GRID = np.linspace(0.0, 1.0, 41)  # of demands
SWEEPS = 6  # over the jobs, each given its best demand in turn


class Baseline(ABC):
    """A method of predicting the rates of pairs; its name is that in tables."""

    name: str

    def predict(self, measurements: Measurements, fold: Fold) -> FloatArray:
        """(T, P, P) rates, from the fold's known pairs and its inputs alone."""
        tables = zip(measurements.rate, fold.known, fold.inputs, strict=True)
        return np.stack([self.of_table(*table) for table in tables])

    @abstractmethod
    def of_table(self, rate: FloatArray, known: BoolArray, inputs: FloatArray) -> FloatArray:
        """(P, P) rates of one table."""


class Mean(Baseline):
    """The median of the known rates of the table, which has the least absolute error."""

    name = "median"

    def of_table(self, rate: FloatArray, known: BoolArray, inputs: FloatArray) -> FloatArray:
        return np.full(known.shape, np.median(rate[known]))


@dataclass(frozen=True)
class NearestNeighbour(Baseline):
    """The mean rate of the known pairs whose jobs are nearest.

    The squared distance of two pairs is that of their first jobs plus that of their second jobs,
    in standardised profiles and fingerprints.
    """

    name: str
    count: int

    def of_table(self, rate: FloatArray, known: BoolArray, inputs: FloatArray) -> FloatArray:
        distance = ((inputs[:, None] - inputs) ** 2).sum(axis=-1)  # (P, P)
        own, other = np.nonzero(known)
        rates = rate[own, other]
        to_pairs = distance[:, None, own] + distance[:, other]  # (P, P, K)
        nearest = np.argsort(to_pairs, axis=-1, kind="stable")[..., : self.count]
        found: FloatArray = rates[nearest].mean(axis=-1)
        return found


class SharedResource(Baseline):
    """Jobs share a resource in proportion: `envs.cluster.interference.analytic.SharedBottleneck`.

    Beside each other jobs with demands d run at min(1, 1 / (d[i] + d[j])). The demand of a job is
    fitted to its known rates; one without any has the median demand of the others.
    """

    name = "analytic"

    def of_table(self, rate: FloatArray, known: BoolArray, inputs: FloatArray) -> FloatArray:
        rate = np.nan_to_num(rate)
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
        return _shared(demand[:, None], demand)


def _shared(own: FloatArray, other: FloatArray) -> FloatArray:
    shared: FloatArray = 1.0 / np.maximum(1.0, own + other)
    return shared


@dataclass(frozen=True)
class Contention(Baseline):
    """All-reduces contend: `envs.cluster.interference.analytic.AllReduceContention`, k = 2.

    A job that communicates for a share c of its time runs at 1 / (1 - c + c (2 beta + eta) / beta)
    beside any other. c is fitted to its known rates; a job without any has the median share.

    Args:
        eta_over_beta: what the second all-reduce adds beyond equal sharing.
    """

    eta_over_beta: float
    name = "contention"

    def of_table(self, rate: FloatArray, known: BoolArray, inputs: FloatArray) -> FloatArray:
        rates = 1.0 / (1.0 + GRID * (1.0 + self.eta_over_beta))
        off = np.abs(rates[:, None, None] - np.nan_to_num(rate))
        share = GRID[np.argmin((off * known).sum(axis=-1), axis=0)]  # of (G, P)
        without = ~known.any(axis=1)
        share[without] = np.median(share[~without])
        left = 1.0 / (1.0 + share * (1.0 + self.eta_over_beta))
        return np.repeat(left[:, None], len(known), axis=1)


@dataclass(frozen=True)
class MatrixCompletion(Baseline):
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

    def of_table(self, rate: FloatArray, known: BoolArray, inputs: FloatArray) -> FloatArray:
        mean = float(rate[known].mean())
        off = np.where(known, rate - mean, 0.0)
        rng, factors = np.random.default_rng(0), range(2, self.rank + 2)
        # Rows [1, bias, factors] times columns [bias, 1, factors].
        row, column = (rng.normal(0.0, 0.3, (len(rate), self.rank + 2)) for _ in range(2))
        row[:, 0], column[:, 1] = 1.0, 1.0
        sides = (row, column, off, known, 0), (column, row, off.T, known.T, 1)
        ridge = self.ridge * np.eye(self.rank + 1)
        for own, others, rates, there, fixed in sides * self.sweeps:
            free = [1 - fixed, *factors]
            for job, at in enumerate(there):  # fitted to its known rates beside the others
                inputs, target = others[at][:, free], rates[job, at] - others[at, fixed]
                own[job, free] = np.linalg.solve(inputs.T @ inputs + ridge, inputs.T @ target)
        return np.clip(mean + row @ column.T, 0.02, 1.0)


def baselines(measurements: Measurements, eta_over_beta: float) -> tuple[Baseline, ...]:
    """The methods beside the network, for measurements of this kind."""
    analytic: tuple[Baseline, ...] = (SharedResource(),)
    if measurements.scope == SPANNING:
        analytic = (SharedResource(), Contention(eta_over_beta))
    nearest = NearestNeighbour("nearest neighbour", 1), NearestNeighbour("5 nearest", 5)
    return (Mean(), *analytic, *nearest, MatrixCompletion(rank=2, ridge=0.3, sweeps=20))
