"""Leave one model out, and inside the rest another one: errors and intervals on unseen models."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from envs.arrays import BoolArray, FloatArray
from envs.errors import InputError
from models.interference.fit import FitConfig, Fitted, Task, fit
from models.interference.measurements import Fold, Measurements, choose_probes, fold

LEAST_MODELS = 3  # one unseen, one unseen inside, one to learn from
Progress = Callable[[str, int, int], None]  # what is fitted, ensembles done, of how many


@dataclass(frozen=True, eq=False)
class Calibration:
    """How wide intervals must be, in spreads: (T, L) factors for the tables and levels."""

    levels: tuple[float, ...]
    factor: FloatArray

    @classmethod
    def of(cls, scores: Sequence[FloatArray], levels: Sequence[float]) -> Calibration:
        """Split conformal quantiles (Papadopoulos et al., ECML 2002; Lei et al., JASA 2018).

        Infinite where there are too few scores for the level.

        Args:
            scores: of every table, (N,) errors on unseen jobs over the predicted spread.
            levels: shares of the measurements that intervals are to hold.
        """
        factor = []
        for found in scores:
            ascending = [*np.sort(found).tolist(), math.inf]
            ranks = [math.ceil((len(found) + 1) * level) for level in levels]
            factor.append([ascending[min(rank, len(ascending)) - 1] for rank in ranks])
        return cls(tuple(levels), np.array(factor))

    def document(self) -> dict[str, object]:
        """For a file; a factor that is infinite is null."""
        factors = [[f if math.isfinite(f) else None for f in row] for row in self.factor.tolist()]
        return {"levels": list(self.levels), "interval_factors": factors}

    def interval(self, fitted: Fitted, level: int) -> tuple[FloatArray, FloatArray]:
        """(T, P, P) least and largest rate at the level with this number."""
        reach = self.factor[:, level, None, None] * fitted.spread
        return np.maximum(fitted.mean - reach, 0.0), np.minimum(fitted.mean + reach, 1.0)


@dataclass(frozen=True, eq=False)
class Examined:
    """A fold, what was predicted for it, and how far to trust that."""

    name: str
    fold: Fold
    fitted: Fitted
    jitter: float
    calibration: Calibration | None


@dataclass(frozen=True, eq=False)
class CrossValidation:
    """The folds of all models, and the jitter for a network that has seen all of them."""

    folds: tuple[Examined, ...]
    jitter: float


def fold_without(measurements: Measurements, unseen: BoolArray, probes: int) -> Fold:
    """The fold in which `unseen` jobs are known by probes chosen among the others."""
    return fold(measurements, unseen, choose_probes(measurements, ~unseen, probes))


def cross_validate(
    measurements: Measurements,
    config: FitConfig,
    probes: int,
    levels: Sequence[float],
    seed: int,
    progress: Progress,
) -> CrossValidation:
    """Leave every model out once that was measured beyond its fingerprint.

    What a fold needs beside its network, its jitter and its calibration, comes from inner folds:
    without the model altogether, the others are left out one after the other.

    Raises:
        InputError: there are too few models, or fewer seen jobs than probes.
    """
    models = measurements.models
    if len(models) < LEAST_MODELS:
        raise InputError(
            f"has {len(models)} models, fewer than {LEAST_MODELS}", file=measurements.name
        )
    of = {model: measurements.jobs_of(model) for model in models}
    fewest = len(measurements.jobs) - sum(sorted(int(jobs.sum()) for jobs in of.values())[-2:])
    if probes > fewest:
        raise InputError(f"{probes} probes of {fewest} jobs", file=measurements.name)
    without = {model: fold_without(measurements, jobs, probes) for model, jobs in of.items()}
    examined = [model for model in models if without[model].asked.any()]
    inner: dict[str, _InnerFolds] = {}
    for number, model in enumerate(examined, start=1):
        rest = measurements.only(~of[model])
        inner[model] = _inner_folds(rest, config, probes, seed + number)
        progress("inner folds", number, len(examined))
    tasks = [Task(without[m], inner[m].best_jitter, config.members) for m in examined]
    folds: list[Examined] = []
    fits = fit(measurements, tasks, config, seed)
    for model, task, fitted in zip(examined, tasks, fits, strict=True):
        calibration = Calibration.of(inner[model].scores[task.jitter], levels)
        folds.append(Examined(model, task.fold, fitted, task.jitter, calibration))
        progress("unseen models", len(folds), len(examined))
    errors = {j: np.mean([found.error[j] for found in inner.values()]) for j in config.jitter}
    return CrossValidation(tuple(folds), min(errors, key=lambda j: float(errors[j])))


@dataclass(frozen=True, eq=False)
class _InnerFolds:
    """By jitter, the mean absolute error, and by table (N,) errors over predicted spreads."""

    error: dict[float, float]
    scores: dict[float, list[FloatArray]]

    @property
    def best_jitter(self) -> float:
        return min(self.error, key=lambda jitter: self.error[jitter])


def _inner_folds(
    measurements: Measurements, config: FitConfig, probes: int, seed: int
) -> _InnerFolds:
    """Every model left out, at every jitter."""
    folds = [
        fold_without(measurements, measurements.jobs_of(m), probes) for m in measurements.models
    ]
    tasks = [Task(f, j, config.inner_members) for j in config.jitter for f in folds]
    error, scores = {}, {}
    fitted = list(fit(measurements, tasks, config, seed))
    for at, jitter in enumerate(config.jitter):
        own = fitted[at * len(folds) : (at + 1) * len(folds)]
        off = [np.abs(f.mean - measurements.rate) for f in own]
        asked = [f.asked for f in folds]
        error[jitter] = float(
            np.concatenate([o[a] for o, a in zip(off, asked, strict=True)]).mean()
        )
        scores[jitter] = scores_of(measurements, folds, own)
    return _InnerFolds(error, scores)


def scores_of(
    measurements: Measurements, folds: Sequence[Fold], fitted: Sequence[Fitted]
) -> list[FloatArray]:
    """By table, (N,) errors on what folds ask for over the predicted spreads."""
    found = []
    for table in range(len(measurements.tables)):
        parts = [
            (np.abs(f.mean - measurements.rate) / f.spread)[table][fold.asked[table]]
            for fold, f in zip(folds, fitted, strict=True)
        ]
        found.append(np.concatenate(parts))
    return found


def examine(
    measurements: Measurements,
    unseen: Mapping[str, BoolArray],
    jitter: Mapping[str, float],
    config: FitConfig,
    probes: int,
    seed: int,
    progress: Progress,
) -> tuple[Examined, ...]:
    """Other folds with smaller ensembles and without intervals.

    Args:
        measurements: of P jobs.
        unseen: (P,) jobs that each fold leaves out, by its name.
        jitter: of each fold.
        config: how to fit.
        probes: their number.
        seed: of the fits.
        progress: told after each fold.
    """
    tasks = [
        Task(fold_without(measurements, jobs, probes), jitter[name], config.inner_members)
        for name, jobs in unseen.items()
    ]
    found = []
    for (name, task), fitted in zip(
        zip(unseen, tasks, strict=True), fit(measurements, tasks, config, seed), strict=True
    ):
        found.append(Examined(name, task.fold, fitted, task.jitter, None))
        progress(f"{probes} probes, {len(tasks)} folds", len(found), len(tasks))
    return tuple(found)


def calibration_on(
    measurements: Measurements, folds: Sequence[Examined], levels: Sequence[float]
) -> Calibration:
    """The calibration of a network that has seen all models, from the folds' errors."""
    scores = scores_of(measurements, [e.fold for e in folds], [e.fitted for e in folds])
    return Calibration.of(scores, levels)
