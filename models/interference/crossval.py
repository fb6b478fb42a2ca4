"""Leave one model out, and inside the rest another one: errors and intervals on unseen models."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from envs.arrays import FloatArray
from envs.errors import InputError
from models.interference.fit import FitConfig, Fitted, Task, fit
from models.interference.measurements import Fold, Measurements, fold_without

LEAST_MODELS = 3  # one unseen, one unseen inside, one to learn from
Progress = Callable[[str, int], None]  # what has been fitted, how many ensembles


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
        factor = [
            np.quantile([*found, math.inf], levels, method="inverted_cdf") for found in scores
        ]
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
class CrossValidation:
    """The folds by the model left out, and the jitter for a network that has seen all models."""

    folds: dict[str, Fitted]
    calibrations: dict[str, Calibration]
    jitter: float


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
    of = {model: measurements.jobs_of(model) for model in measurements.models}
    if len(of) < LEAST_MODELS:
        raise InputError(f"has {len(of)} models, fewer than {LEAST_MODELS}", file=measurements.name)
    fewest = len(measurements.jobs) - sum(sorted(int(jobs.sum()) for jobs in of.values())[-2:])
    if probes > fewest:
        raise InputError(f"{probes} probes of {fewest} jobs", file=measurements.name)
    folds = {model: fold_without(measurements, jobs, probes) for model, jobs in of.items()}
    folds = {model: fold for model, fold in folds.items() if fold.asked.any()}
    inner = {
        model: _inner_folds(measurements.only(~of[model]), config, probes, seed + number)
        for number, model in enumerate(folds, start=1)
    }
    progress("inner folds", len(folds))
    jitter = {model: min(found, key=lambda j: found[j][0]) for model, found in inner.items()}
    fitted = evaluate(measurements, folds, jitter, config, config.members, seed)
    progress("unseen models", len(folds))
    calibrations = {m: Calibration.of(inner[m][jitter[m]][1], levels) for m in folds}
    errors = {j: float(np.mean([of[j][0] for of in inner.values()])) for j in config.jitter}
    return CrossValidation(fitted, calibrations, min(errors, key=lambda j: errors[j]))


def _inner_folds(
    measurements: Measurements, config: FitConfig, probes: int, seed: int
) -> dict[float, tuple[float, list[FloatArray]]]:
    """By jitter, with every model left out once: the mean absolute error, and `scores_of` it."""
    unseen = map(measurements.jobs_of, measurements.models)
    folds = [fold_without(measurements, jobs, probes) for jobs in unseen]
    tasks = [Task(f, j, config.inner_members) for j in config.jitter for f in folds]
    fitted, found = fit(measurements, tasks, config, seed), {}
    for jitter in config.jitter:
        own = [f for f in fitted if f.task.jitter == jitter]
        off = [np.abs(f.mean - measurements.rate)[f.task.fold.asked] for f in own]
        found[jitter] = float(np.concatenate(off).mean()), scores_of(measurements, own)
    return found


def evaluate(
    measurements: Measurements,
    folds: Mapping[str, Fold],
    jitter: Mapping[str, float],
    config: FitConfig,
    members: int,
    seed: int,
) -> dict[str, Fitted]:
    """An ensemble of `members` networks for each fold, by its name, with its jitter."""
    tasks = [Task(fold, jitter[name], members) for name, fold in folds.items()]
    return dict(zip(folds, fit(measurements, tasks, config, seed), strict=True))


def scores_of(measurements: Measurements, fitted: Sequence[Fitted]) -> list[FloatArray]:
    """By table, (N,) errors on what folds ask for over the predicted spreads."""
    return asked_of(fitted, [np.abs(f.mean - measurements.rate) / f.spread for f in fitted])


def asked_of(fitted: Sequence[Fitted], values: Sequence[FloatArray]) -> list[FloatArray]:
    """By table, (N,) what the folds ask for of (T, P, P) values for each."""
    asked = [f.task.fold.asked for f in fitted]
    return [
        np.concatenate([of[table][at[table]] for of, at in zip(values, asked, strict=True)])
        for table in range(len(asked[0]))
    ]
