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

from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np
import polars as pl

from envs.arrays import FloatArray, IntArray
from envs.cluster.workload.readers.read_trace import MOST_GPUS, Column, ReadTrace, canonical_trace
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
OFFSET = r"\s*(Z|[+-]\d{2}:?\d{2})$"
MOST_HOURS = 14  # from UTC, anywhere
CLOCKS = ("%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%d %H:%M")
ASKED: Mapping[str, tuple[int, ...]] = {  # besides GPUs; the least and the most
    "gpu_milli": (1, WHOLE_GPU), "cpu_milli": (), "memory_mib": (),
}  # fmt: skip


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


def own_table(
    table: Table, columns: Mapping[str, str], units: Mapping[str, str], *, strict: bool
) -> ReadTrace:
    """The jobs of a table whose `columns` are called so, by the fields above.

    Raises:
        InputError: naming the row and the column; no row is a job.
    """
    checks, called = RowChecks(table), {**CANONICAL, **columns}

    def at(field: str) -> FloatArray:
        return moments(checks, called[field], units.get(field), f": say units: {{{field}: ms}}")

    def whole(seconds: FloatArray) -> IntArray:
        return np.where(checks.kept, np.rint(seconds), 0.0).astype(np.int64)

    submit_s = at("submit")
    if "start" in columns:
        began, ended = at("start"), at("end")
        checks.reject(ended < began, called["end"], f"is before {called['start']!r}")
        ran_s, of = ended - began, called["end"]
    else:
        of = called["duration"]
        ran_s = checks.numbers(of) * UNITS[units.get("duration", "s")]
    checks.exclude(ran_s == 0, of, "leaves no time: the job never ran")
    checks.reject(ran_s > EXACT, of, "is too large")
    found = {
        "job_id": table.columns[called["id"]] if "id" in columns else table.get(called["id"]),
        "submit_s": whole(submit_s),
        "duration_s": np.maximum(whole(ran_s), 1),
        **asked(checks, called, columns),
    }
    read = canonical_trace(checks, found, called["id"], strict=strict)
    uneven = np.rint(ran_s) < 1
    for seconds in (submit_s, ran_s):
        uneven |= np.abs(seconds - np.rint(seconds)) > 1e-6
    return replace(read, rounded=int((uneven & checks.kept).sum()))


def moments(checks: RowChecks, name: str, unit: str | None = None, hint: str = "") -> FloatArray:
    """(R,) a column of numbers, in seconds unless a unit is named, or of dates, as seconds.

    Wrong rows are marked and hold 0.

    Raises:
        InputError: dates where a unit is named.
    """
    text = checks.text(name)
    if text.cast(pl.Float64, strict=False).is_null().all():
        if unit is not None and len(text):
            reason = f"has dates, which have no unit; {unit!r} is for numbers"
            raise InputError(reason, file=checks.table.path, field=name)
        return _dates(checks, name)
    seconds = checks.numbers(name) * UNITS[unit or "s"]
    checks.reject(seconds > LATEST_S, name, f"is beyond the year 5000 in {unit or 's'}{hint}")
    return np.where(seconds > LATEST_S, 0.0, seconds)


def _dates(checks: RowChecks, name: str) -> FloatArray:
    """(R,) a column of dates as seconds since 1970; wrong rows are marked and hold 0."""
    text = pl.col("text")
    offset = text.str.extract(OFFSET)
    clock = text.str.replace(OFFSET, "").str.replace("T", " ", literal=True)
    hours, minutes = (
        offset.str.slice(place, 2).cast(pl.Int64, strict=False).fill_null(0) for place in (1, -2)
    )
    sign = pl.when(offset.str.starts_with("-")).then(-1).otherwise(1)
    day = clock.str.to_date("%Y-%m-%d", strict=False).cast(pl.Datetime("us"))
    moment = pl.coalesce(
        *(clock.str.to_datetime(form, strict=False, time_unit="us") for form in CLOCKS),
        pl.when(offset.is_null()).then(day),
    )
    found = (
        checks.table.columns[name]
        .to_frame("text")
        .select(
            seconds=moment.dt.epoch("us") / 1e6 - sign * (3600 * hours + 60 * minutes),
            far=(hours > MOST_HOURS) | (minutes >= 60),
            without=offset.is_null(),
        )
    )
    seconds, without = found["seconds"], found["without"].to_numpy()
    dated = seconds.is_not_null().to_numpy()
    reason = "is neither a number nor a date such as 2026-11-22 14:05:00"
    checks.reject(~dated, name, reason)
    checks.reject(found["far"].to_numpy(), name, "is no offset from UTC of any place")
    if (dated & ~without).any():
        checks.reject(dated & without, name, "has no offset from UTC, as others have")
    return np.asarray(seconds.fill_null(0.0).to_numpy(), np.float64)


def asked(
    checks: RowChecks, called: Mapping[str, str], needed: Collection[str] = ()
) -> dict[str, Column]:
    """What jobs ask for, and their labels, from the columns that are `called` so.

    Those of `needed` fields must be there.
    """
    text = checks.table.columns
    found: dict[str, Column] = {"num_gpus": checks.whole(called["gpus"], 0, MOST_GPUS)}
    for field in (*ASKED, *LABELS):
        name = called[field]
        if field in needed or name in text.header:
            found[field] = checks.whole(name, *ASKED[field]) if field in ASKED else text[name]
    return found
