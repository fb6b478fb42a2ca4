"""How well methods predict the slow-downs of unseen jobs: errors, intervals, the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from envs.cluster.interference.rates import FloatArray
from models.interference.crossval import Examined
from models.interference.measurements import Measurements

NETWORK = "network"
ALL = "all"
MODEL, JOB = "model", "job"  # what is unseen
COVERAGE_COLUMNS = ("table", "level", "held", "least of a model", "mean width")


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
        """As numbers."""
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
    folds: Sequence[Examined],
    predicted: Sequence[FloatArray],
) -> Errors:
    """The errors of predictions, (T, P, P) for every fold."""
    found = {
        table: np.concatenate(
            [
                np.abs(rate - measurements.rate)[number][examined.fold.asked[number]]
                for examined, rate in zip(folds, predicted, strict=True)
            ]
        )
        for number, table in enumerate(measurements.tables)
    }
    probes = len(folds[0].fold.probes)
    return Errors(method, probes, unseen, {n: e for n, e in found.items() if len(e)})


def network_errors(unseen: str, measurements: Measurements, folds: Sequence[Examined]) -> Errors:
    """The errors of the ensembles, and of each of their networks by itself."""
    own = errors_of(NETWORK, unseen, measurements, folds, [e.fitted.mean for e in folds])
    seeds = tuple(
        errors_of(NETWORK, unseen, measurements, folds, [e.fitted.rate[m] for e in folds]).mean
        for m in range(len(folds[0].fitted.rate))
    )
    return Errors(own.method, own.probes, own.unseen, own.by_table, seeds)


def joined(sources: Sequence[Sequence[Errors]]) -> list[Errors]:
    """The rows of all sources: one for a method, its number of probes and what was unseen.

    Those that were asked for first come first, and among them the least errors.
    """
    groups: dict[tuple[str, int], dict[str, list[Errors]]] = {}
    for rows in sources:
        for row in rows:
            group = groups.setdefault((row.unseen, row.probes), {})
            group.setdefault(row.method, []).append(row)
    most = max(len(rows) for rows in (r for g in groups.values() for r in g.values()))
    found = []
    for group in groups.values():
        parts = [_together(rows) for rows in group.values()]
        size = {row.method: len(group[row.method]) for row in parts}
        found += sorted(parts, key=lambda row: (most - size[row.method], row.mean))
    return found


def _together(parts: Sequence[Errors]) -> Errors:
    """The errors of one method on the tables of several sources."""
    first = parts[0]
    weights = [sum(len(errors) for errors in part.by_table.values()) for part in parts]
    by_seed = zip(*(part.seeds for part in parts), strict=True)
    seeds = tuple(float(np.average(means, weights=weights)) for means in by_seed)
    tables = {name: errors for part in parts for name, errors in part.by_table.items()}
    return Errors(first.method, first.probes, first.unseen, tables, seeds)


def error_cells(
    rows: Sequence[Errors], sources: Mapping[str, Sequence[str]]
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Columns and cells of a table of errors.

    Args:
        rows: methods.
        sources: the tables of each source; a source of several has a column for all of them.
    """
    tables = [name for names in sources.values() for name in names]
    columns: dict[str, Sequence[str]] = {ALL: tables} if len(sources) > 1 else {}
    for source, names in sources.items():
        columns |= {source: names} if len(names) > 1 else {}
        columns |= {name: (name,) for name in names}
    heads = ("method", "unseen", "probes", *columns)
    cells = []
    for row in rows:
        texts = []
        for names in columns.values():
            found = [row.by_table[name] for name in names if name in row.by_table]
            texts.append(f"{np.concatenate(found).mean():.4f}" if len(found) == len(names) else "")
        cells.append((row.method, row.unseen, str(row.probes), *texts))
    return heads, cells


@dataclass(frozen=True)
class Coverage:
    """Intervals of the network on unseen models, in one table.

    Attributes:
        table: its name.
        level: the share of the measurements that they are to hold.
        held: the share that they hold.
        width: their mean width.
        worst: the share held of the model for which it is least.
    """

    table: str
    level: float
    held: float
    width: float
    worst: float

    def cells(self) -> tuple[str, ...]:
        """The row of a table."""
        held, worst = f"{self.held:.1%}", f"{self.worst:.1%}"
        return self.table, f"{self.level:.0%}", held, worst, f"{self.width:.3f}"

    def document(self) -> dict[str, object]:
        """As numbers."""
        return dict(vars(self))


def coverages(measurements: Measurements, folds: Sequence[Examined]) -> list[Coverage]:
    """For every table and level."""
    found = []
    levels = folds[0].calibration.levels if folds[0].calibration else ()
    for number, table in enumerate(measurements.tables):
        for at, level in enumerate(levels):
            held, width = [], []
            for examined in folds:
                assert examined.calibration is not None
                low, high = examined.calibration.interval(examined.fitted, at)
                asked = examined.fold.asked[number]
                if not asked.any():
                    continue
                rate = measurements.rate[number][asked]
                held.append((low[number][asked] <= rate) & (rate <= high[number][asked]))
                width.append((high - low)[number][asked])
            found.append(
                Coverage(
                    table,
                    level,
                    float(np.concatenate(held).mean()),
                    float(np.concatenate(width).mean()),
                    float(min(one.mean() for one in held)),
                )
            )
    return found
