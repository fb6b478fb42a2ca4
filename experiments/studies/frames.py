"""The three tables of a study, read from what its cells left: `cells`, `values` and `curves`."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import yaml

from envs.errors import InputError
from envs.files import check_file, write_atomically
from experiments.config.command_words import config_folders
from experiments.studies.cells import FAILED
from experiments.studies.study import Cell

CELLS = {
    "cell": pl.String, "study": pl.String, "problem": pl.String, "factors": pl.String,
    "solver": pl.String, "variant": pl.String, "budget": pl.Float64, "seed": pl.Int64,
    "status": pl.String, "reason": pl.String, "seconds": pl.Float64, "bound": pl.Float64,
    "artefact": pl.String, "provenance": pl.String,
}  # fmt: skip
VALUES = {"cell": pl.String, "instance": pl.String, "metric": pl.String, "value": pl.Float64}
CURVES = {
    "cell": pl.String, "seconds": pl.Float64, "value": pl.Float64, "bound": pl.Float64,
}  # fmt: skip
INSTANCES, TRAJECTORY, BOUNDS = "instances", "trajectory", ("lower_bound", "lower_bound_s")
OBJECTIVES, OBJECTIVE = "objectives.yaml", "objective"  # of conf: what each job is judged by
_ABOUT = frozenset({"schema_version", "seconds", "unit_s"})  # no figures that are compared
FAILED_STATUS, INFEASIBLE = "failed", "infeasible"


class Frames(NamedTuple):
    """Times are in seconds, values and bounds in the unit of the metric.

    Attributes:
        cells: a row for each run: its hash, its levels, how it ended, the bound that it proved, the
            folder it left and where that comes from.
        values: its figures; `instance` names one of several that the problem consists of, as a
            window of a trace, and is empty for the problem as a whole.
        curves: the best value found by each second of a search.
    """

    cells: pl.DataFrame
    values: pl.DataFrame
    curves: pl.DataFrame

    @classmethod
    def of(cls, study: str, records: Iterable[tuple[Cell, Mapping[str, Any], Path]]) -> Frames:
        """Of cells, what each came to and the folder that it left."""
        rows: tuple[list[Any], list[Any], list[Any]] = ([], [], [])
        for cell, document, folder in records:
            rows[0].append(_row(study, cell, document, folder))
            judged = objectives().get(cell.job.config)
            rows[1].extend((cell.key, *figure) for figure in _figures(document, judged))
            rows[2].extend((cell.key, *point) for point in _curve(document))
        schemas = (CELLS, VALUES, CURVES)
        return cls(*(pl.DataFrame(x, y, orient="row") for x, y in zip(rows, schemas, strict=True)))

    @classmethod
    def read(cls, folder: Path) -> Frames:
        """Those that `write` has written.

        Raises:
            InputError: a file is not one of them.
        """
        found = []
        for name, schema in zip(cls._fields, (CELLS, VALUES, CURVES), strict=True):
            path = folder / f"{name}.parquet"
            check_file(path)
            try:
                frame = pl.read_parquet(path)
            except (pl.exceptions.PolarsError, OSError) as error:
                raise InputError(f"is no table of a study ({error})", file=path) from error
            if frame.schema != pl.Schema(schema):
                raise InputError("has other columns than a study's table", file=path)
            found.append(frame)
        return cls(*found)

    def write(self, folder: Path) -> None:
        """Write a parquet file for each table."""
        for name, frame in self._asdict().items():
            buffer = io.BytesIO()
            frame.write_parquet(buffer)
            write_atomically(folder / f"{name}.parquet", buffer.getvalue())

    def figures(self, metric: str) -> pl.DataFrame:
        """A row for each value of a metric, with the columns of its cell; finite values alone."""
        chosen = self.values.filter(pl.col("metric") == metric, pl.col("value").is_finite())
        return self.cells.join(chosen, "cell", maintain_order="left")


def _row(study: str, cell: Cell, document: Mapping[str, Any], folder: Path) -> tuple[Any, ...]:
    failed = document.get(FAILED)
    wrong = document.get("violations") or []
    status = FAILED_STATUS if failed is not None else str(document.get("status") or "done")
    if document.get("feasible") is False and failed is None:
        status = INFEASIBLE
    reason = failed or "; ".join(wrong) or document.get("reason") or ""
    return (
        cell.key, study, cell.problem, json.dumps(dict(cell.factors)), cell.solver, cell.variant,
        cell.budget, cell.seed, status, str(reason), _number(document.get("seconds")),
        _bound(document), str(folder),
        json.dumps(document.get("provenance")),
    )  # fmt: skip


def _figures(document: Mapping[str, Any], judged: str | None) -> Iterator[tuple[str, str, float]]:
    """(instance, metric, value) of every number in a result; none of a plan that breaks a rule.

    The one that its job is judged by, `judged`, is called `objective` as well.
    """
    if document.get("feasible") is False or FAILED in document:
        return
    for instance, figures in {"": document, **document.get(INSTANCES, {})}.items():
        for metric, value in _flat(figures):
            yield instance, metric, value
        if judged is not None and OBJECTIVE not in figures:
            with suppress(KeyError):
                if (number := _number(figure_at(figures, judged))) is not None:
                    yield instance, OBJECTIVE, number


@cache
def objectives() -> Mapping[str, str]:
    """What each job is judged by if nothing is given: a key of its result, by its config."""
    text = (config_folders()[0] / OBJECTIVES).read_text(encoding="utf-8")
    found: Mapping[str, str] = yaml.safe_load(text)
    return found


def figure_at(document: object, key: str) -> object:
    """What stands under a dotted key, in which the place in a list is a number.

    Raises:
        KeyError: nothing does.
    """
    for part in key.split("."):
        if isinstance(document, list) and part.isdigit() and int(part) < len(document):
            document = document[int(part)]
        elif isinstance(document, Mapping):
            document = document[part]
        else:
            raise KeyError(part)
    return document


def _flat(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for key, value in node.items():
        if isinstance(value, Mapping) and key not in (INSTANCES, "provenance", "units"):
            yield from _flat(value, f"{prefix}{key}.")
        elif (number := _number(value)) is not None and key not in _ABOUT:
            yield f"{prefix}{key}", number


def _curve(document: Mapping[str, Any]) -> Iterator[tuple[float, float, float | None]]:
    if document.get("feasible") is not False:
        for at, value in document.get(TRAJECTORY) or ():
            yield float(at), float(value), _bound(document)


def _bound(document: Mapping[str, Any]) -> float | None:
    return next(
        (found for key in BOUNDS if (found := _number(document.get(key))) is not None), None
    )


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None
