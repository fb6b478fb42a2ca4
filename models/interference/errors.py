"""What methods get wrong about jobs that they have not seen, and how intervals hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
from typing import Any

import numpy as np

from envs.arrays import FloatArray
from models.interference.crossval import CrossValidation, asked_of
from models.interference.fit import Fitted
from models.interference.measurements import Measurements

NETWORK, ALL = "network", "all"
MODEL, JOB = "model", "job"  # what is unseen


@dataclass(frozen=True, eq=False)
class Errors:
    """Absolute errors of one method on the measurements that folds ask for.

    Attributes:
        method: its name.
        probes: measurements of each unseen job that were given.
        unseen: what was left out: a model or a job.
        by_table: (N,) absolute errors of each table.
        seeds: mean absolute error of each single network; none for other methods.
    """

    method: str
    probes: int
    unseen: str
    by_table: Mapping[str, FloatArray]
    seeds: tuple[float, ...] = ()

    @property
    def mean(self) -> float:
        """Over all measurements of all tables."""
        return float(np.concatenate(list(self.by_table.values())).mean())

    def document(self) -> dict[str, object]:
        return {
            "method": self.method,
            "probes": self.probes,
            "unseen": self.unseen,
            "mae": {ALL: self.mean, **{n: float(e.mean()) for n, e in self.by_table.items()}},
            "measurements": {n: len(e) for n, e in self.by_table.items()},
            "mae_of_seeds": list(self.seeds),
        }


def errors_of(
    method: str,
    unseen: str,
    measurements: Measurements,
    folds: Sequence[Fitted],
    predicted: Sequence[FloatArray],
    seeds: tuple[float, ...] = (),
) -> Errors:
    """The errors of predictions, (T, P, P) for every fold."""
    off = asked_of(folds, [np.abs(rate - measurements.rate) for rate in predicted])
    tables = {n: errors for n, errors in zip(measurements.tables, off, strict=True) if len(errors)}
    return Errors(method, len(folds[0].task.fold.probes), unseen, tables, seeds)


def joined(sources: Sequence[Sequence[Errors]]) -> list[Errors]:
    """The rows of all sources: one for a method, its number of probes and what was unseen.

    Those that were asked for first come first, then those of most sources, then the least errors.
    """
    groups: dict[tuple[str, int], dict[str, list[Errors]]] = {}
    for row in chain(*sources):
        methods = groups.setdefault((row.unseen, row.probes), {})
        methods.setdefault(row.method, []).append(row)
    found = []
    for methods in groups.values():
        rows = [(-len(parts), _together(parts)) for parts in methods.values()]
        found += [row for _, row in sorted(rows, key=lambda pair: (pair[0], pair[1].mean))]
    return found


def _together(parts: Sequence[Errors]) -> Errors:
    """The errors of one method on the tables of several sources."""
    weights = [sum(len(errors) for errors in part.by_table.values()) for part in parts]
    by_seed = zip(*(part.seeds for part in parts), strict=True)
    seeds = tuple(float(np.average(means, weights=weights)) for means in by_seed)
    tables = {name: errors for part in parts for name, errors in part.by_table.items()}
    return replace(parts[0], by_table=tables, seeds=seeds)


def coverages(measurements: Measurements, crossed: CrossValidation) -> list[dict[str, Any]]:
    """For every table and level, how the network's intervals on unseen models hold.

    `held` is the share of the measurements that they hold, `width` their mean width, `worst` the
    share held of the model for which it is least.
    """
    found = []
    levels = next(iter(crossed.calibrations.values())).levels
    for (number, table), (at, level) in product(enumerate(measurements.tables), enumerate(levels)):
        held, width = [], []
        for model, fitted in crossed.folds.items():
            low, high = crossed.calibrations[model].interval(fitted, at)
            asked = fitted.task.fold.asked[number]
            if asked.any():
                rate = measurements.rate[number][asked]
                held.append((low[number][asked] <= rate) & (rate <= high[number][asked]))
                width.append((high - low)[number][asked])
        found.append(
            {
                "table": table,
                "level": level,
                "held": float(np.concatenate(held).mean()),
                "width": float(np.concatenate(width).mean()),
                "worst": float(min(one.mean() for one in held)),
            }
        )
    return found
