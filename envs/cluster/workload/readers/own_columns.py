"""Anybody's table of jobs: which column has what, and how times are written.

| field | meaning | needed |
|---|---|---|
| `id` | any text, different for every job | no: the number of the row |
| `submit` | when the job was submitted | yes |
| `duration` | how long it runs alone on its GPUs | yes, or `start` and `end` |
| `start`, `end` | when it began to run, and when it ended, instead of `duration` | no |
| `gpus` | GPUs, all of them at once | yes |
| `gpu_milli` | thousandths of each GPU, 1 to 1000 | no: 1000 |
| `cpu_milli`, `memory_mib` | thousandths of a processor core, MiB of main memory | no: 0 |
| `user`, `queue`, `gpu_type`, `model` | as in `canonical` | no: unknown |

A field that is not named is taken from the column that `canonical` calls so (`submit` from
`submit_s`), where the table has it. A time is a number of seconds, or of another unit that is
named, since whatever beginning (so epochs are), or a date: `2026-11-22`, `2026-11-22 14:05`,
`2026-11-22T14:05:00.250Z`, `2026-11-22 14:05:00+08:00`. Dates without an offset from UTC are taken
as they stand; either all or none in a column have one. Traces have whole seconds: fractions are
rounded to the nearest, durations to 1 at least, and the jobs concerned are counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from envs.arrays import BoolArray, FloatArray, IntArray
from envs.cluster.workload.readers.read_trace import (
    MOST_GPUS,
    Column,
    ReadTrace,
    canonical_trace,
)
from envs.cluster.workload.trace import LABELS, WHOLE_GPU
from envs.errors import InputError, require_one_of
from envs.text_table import RowChecks, Table
from envs.units import EXACT

CANONICAL = {  # fields, and what the canonical table calls them
    "id": "job_id", "submit": "submit_s", "duration": "duration_s", "start": "start_s",
    "end": "end_s", "gpus": "num_gpus", "gpu_milli": "gpu_milli", "cpu_milli": "cpu_milli",
    "memory_mib": "memory_mib", "user": "user", "queue": "queue", "gpu_type": "gpu_type",
    "model": "model",
}  # fmt: skip
TIMES = ("submit", "duration", "start", "end")
UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
LATEST_S = 1e11  # the year 5138, as seconds of an epoch; as milliseconds 1973
OFFSET = r"\s*(?:Z|[+-]\d{2}:?\d{2})$"
MOST_HOURS = 14  # from UTC, anywhere
CLOCKS = ("%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%d %H:%M", "%Y-%m-%d")


def check_columns(columns: Mapping[str, str], units: Mapping[str, str]) -> None:
    """What a user names is known.

    Raises:
        InputError: an unknown field or unit, a column that is no text, a duration that is given
            twice.
    """
    for field, name in columns.items():
        require_one_of(field, CANONICAL, field="columns")
        if not isinstance(name, str) or not name.strip():
            raise InputError(f"{name!r} is no name of a column", field=f"columns.{field}")
    for field, unit in units.items():
        require_one_of(field, TIMES, field="units")
        require_one_of(unit, UNITS, field=f"units.{field}")
    if "duration" in columns and ("start" in columns or "end" in columns):
        raise InputError("give duration, or start and end", field="columns")
    if ("start" in columns) != ("end" in columns):
        other = "end" if "start" in columns else "start"
        raise InputError(f"'{other}' is missing: a duration is end - start", field="columns")


def wanted(columns: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """The columns of the table that must be there, and those that may be."""
    spans = "start" in columns
    needed = ("submit", "start", "end", "gpus") if spans else ("submit", "duration", "gpus")
    unused = ("duration",) if spans else ("start", "end")
    required = [columns.get(field, CANONICAL[field]) for field in needed]
    required += [name for field, name in columns.items() if field not in needed]
    optional = [
        name
        for field, name in CANONICAL.items()
        if field not in (*columns, *needed, *unused) and name not in required
    ]
    return list(dict.fromkeys(required)), optional


def own_table(
    table: Table, columns: Mapping[str, str], units: Mapping[str, str], *, strict: bool
) -> ReadTrace:
    """The jobs of a table with the columns that are `wanted`.

    Raises:
        InputError: naming the row and the column; no row is a job.
    """
    checks, called = RowChecks(table), {**CANONICAL, **columns}
    times = _Times(checks, called, units)
    submit_s = times.instant("submit")
    if "start" in columns:
        begun, over = times.instant("start"), times.instant("end")
        checks.reject(over < begun, called["end"], f"is before {called['start']!r}")
        ran_s, of = over - begun, called["end"]
    else:
        ran_s, of = times.numbers("duration"), called["duration"]
    checks.exclude(ran_s == 0, of, "leaves no time: the job never ran")
    checks.reject(ran_s > EXACT, of, "is too large")
    ids = table.get(called["id"])
    found = canonical_trace(
        checks,
        id_field="row" if ids is None else called["id"],
        strict=strict,
        job_id=table.rows() if ids is None else ids,
        submit_s=_whole(submit_s, checks),
        duration_s=np.maximum(_whole(ran_s, checks), 1),
        **asked(checks, called),
    )
    lengthened = np.rint(ran_s) < 1
    uneven = (_fraction(submit_s) | _fraction(ran_s) | lengthened) & checks.kept
    return replace(found, rounded=int(uneven.sum()))


class _Times:
    """Columns of times as seconds; wrong rows are marked and hold 0."""

    def __init__(
        self, checks: RowChecks, called: Mapping[str, str], units: Mapping[str, str]
    ) -> None:
        self._checks, self._called, self._units = checks, called, units

    def instant(self, field: str) -> FloatArray:
        """(R,) points in time: numbers or dates."""
        name = self._called[field]
        text = self._checks.table.columns[name]
        blank = (text == "").to_numpy()
        self._checks.reject(blank, name, "is missing")
        if text.filter(text != "").cast(pl.Float64, strict=False).is_not_null().any():
            seconds = self.numbers(field)
            hint = f"is beyond the year 5000 in {self._unit(field)}: say units: {{{field}: ms}}"
            self._checks.reject(seconds > LATEST_S, name, hint)
            return np.where(seconds > LATEST_S, 0.0, seconds)
        if field in self._units:
            told = f"has dates, which have no unit; {self._units[field]!r} is for numbers"
            raise InputError(told, file=self._checks.table.path, field=name)
        return self._dates(name, text)

    def numbers(self, field: str) -> FloatArray:
        """(R,) lengths of time, or points since whatever beginning."""
        return self._checks.numbers(self._called[field]) * UNITS[self._unit(field)]

    def _unit(self, field: str) -> str:
        return self._units.get(field, "s")

    def _dates(self, name: str, text: pl.Series) -> FloatArray:
        frame = text.str.replace("T", " ", literal=True).to_frame("clock")
        frame = frame.with_columns(
            pl.col("clock").str.extract(f"({OFFSET})").str.strip_chars().alias("offset"),
            pl.col("clock").str.replace(OFFSET, ""),
        )
        day = pl.col("offset").is_null() & ~pl.col("clock").str.contains(":")
        parsed = pl.coalesce(
            pl.col("clock").str.to_datetime(form, strict=False, time_unit="us")
            for form in CLOCKS[:2]
        )
        dated = pl.col("clock").str.to_date(CLOCKS[2], strict=False).cast(pl.Datetime("us"))
        sign = pl.when(pl.col("offset").str.starts_with("-")).then(-1).otherwise(1)
        hours = pl.col("offset").str.slice(1, 2).cast(pl.Int64, strict=False).fill_null(0)
        minutes = pl.col("offset").str.slice(-2, 2).cast(pl.Int64, strict=False).fill_null(0)
        far = (hours > MOST_HOURS) | (minutes >= 60)
        moment = pl.when(day).then(dated).otherwise(parsed).dt.epoch("us") / 1e6
        frame = frame.with_columns(
            (moment - sign * (3600 * hours + 60 * minutes)).alias("s"), far.alias("far")
        )
        wrong = (frame["s"].is_null() & (text != "")).to_numpy()
        told = "is neither a number nor a date such as 2026-11-22 14:05:00"
        self._checks.reject(wrong, name, told)
        self._checks.reject(frame["far"].to_numpy(), name, "is no offset from UTC of any place")
        offset = frame["offset"].is_not_null().to_numpy()
        there = ~wrong & (text != "").to_numpy()
        if offset[there].any():
            missing = there & ~offset
            self._checks.reject(missing, name, "has no offset from UTC, as others have")
        return np.asarray(frame["s"].fill_null(0.0).to_numpy(), np.float64)


def _fraction(seconds: FloatArray) -> BoolArray:
    uneven: BoolArray = np.abs(seconds - np.rint(seconds)) > 1e-6
    return uneven


def _whole(seconds: FloatArray, checks: RowChecks) -> IntArray:
    return np.where(checks.kept, np.rint(seconds), 0.0).astype(np.int64)


def asked(checks: RowChecks, called: Mapping[str, str]) -> dict[str, Any]:
    """What jobs ask for, and their labels, from the columns that are `called` so."""

    def numbers(field: str, least: int = 0, most: int = EXACT) -> Column:
        known = checks.table.get(called[field])
        return None if known is None else checks.whole(called[field], least, most)

    return {
        "num_gpus": checks.whole(called["gpus"], 0, MOST_GPUS),
        "gpu_milli": numbers("gpu_milli", 1, WHOLE_GPU),
        "cpu_milli": numbers("cpu_milli"),
        "memory_mib": numbers("memory_mib"),
        **{label: checks.table.get(called[label]) for label in LABELS},
    }
