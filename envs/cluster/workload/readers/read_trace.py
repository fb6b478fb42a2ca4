"""From the rows of a table to a trace: canonical columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import polars as pl

from envs.arrays import IntArray
from envs.cluster.workload.trace import LABELS, NUMBERS, WHOLE_GPU, Labels, Trace
from envs.errors import InputError
from envs.text_table import CONTROL, RejectedRows, RowChecks, has_control

MOST_GPUS = 2**31 - 1
_SUFFIXES = (".gz", ".csv", ".json", ".parquet")

IdOrder = Callable[[pl.Series], pl.Series]


@dataclass(frozen=True, eq=False)
class ReadTrace:
    """A trace in canonical form, and what of its file is not in it.

    `origin_s` is the first submission on the source's own clock: seconds since 1970-01-01 00:00
    where the source gives times of day, seconds since a beginning of its own otherwise.
    """

    trace: Trace
    rows: int  # of the file
    rejected: tuple[RejectedRows, ...]
    origin_s: int
    rounded: int = 0  # jobs whose times had fractions of a second
    place: Callable[[int], str] = lambda job: f"row {job + 1}"  # where job 0, 1, ... stands

    @property
    def num_rejected(self) -> int:
        """Rows that are not in the trace."""
        return sum(rejected.rows for rejected in self.rejected)


@runtime_checkable
class TraceReader(Protocol):
    def read(self, path: str | Path, strict: bool = True) -> ReadTrace:
        """The trace in `path`; with `strict` the first faulty row raises InputError."""


Column = pl.Series | IntArray | None  # None: the source does not say
MISSING = {"gpu_milli": WHOLE_GPU, "cpu_milli": 0, "memory_mib": 0}


def by_text(ids: pl.Series) -> pl.Series:
    """Ids in the order of their characters."""
    return ids


def by_number(ids: pl.Series) -> pl.Series:
    """Ids in the order of their numbers where all are whole numbers, else of their characters."""
    numbers = ids.cast(pl.Int64, strict=False)
    return ids if numbers.null_count() else numbers


def canonical_order(submit_s: IntArray, job_id: pl.Series, id_order: IdOrder) -> IntArray:
    keys = pl.DataFrame({"submit": submit_s, "id": id_order(job_id)})
    order = keys.select(pl.arg_sort_by("submit", "id", maintain_order=True)).to_series()
    return order.to_numpy().astype(np.int64)


def canonical_trace(
    checks: RowChecks,
    *,
    id_field: str,
    id_order: IdOrder = by_number,
    strict: bool,
    **columns: Column,
) -> ReadTrace:
    """The rows without fault as a trace in canonical form.

    Args:
        checks: of the rows.
        id_field: what the source calls `job_id`.
        id_order: of jobs submitted at once.
        strict: whether the first faulty row raises.
        columns: of all R rows, wrong ones among them; fields of `Trace`, at least `job_id`,
            `submit_s`, `duration_s` and `num_gpus`.

    Raises:
        InputError: the first faulty row where `strict`, an id that stands twice among them; no row
            is left.
    """
    path, place = checks.table.path, checks.table.place
    frame = pl.DataFrame({field: values for field, values in columns.items() if values is not None})
    for field in LABELS:
        if field in frame.columns:
            checks.reject(has_control(frame[field]), field, CONTROL)
    checks.unique(id_field, frame["job_id"])
    rejected = checks.finish(strict=strict)
    kept = np.flatnonzero(checks.kept)
    if not len(kept):
        told = "; ".join(f"{r.field or 'row'} {r.reason}: {r.rows}" for r in rejected)
        raise InputError(f"no row is a job on GPUs ({told})", file=path)
    jobs = frame[kept]
    by_time = canonical_order(jobs["submit_s"].to_numpy(), jobs["job_id"], id_order)
    order, jobs = kept[by_time], jobs[by_time]
    missing = [pl.lit(value).alias(name) for name, value in MISSING.items() if name not in jobs]
    jobs = jobs.with_columns(missing)
    found: dict[str, Any] = {name: np.array(jobs[name], kind) for name, kind in NUMBERS.items()}
    for name in LABELS:
        named = name in jobs.columns
        found[name] = Labels.of(jobs[name].to_list()) if named else Labels.unknown(len(jobs))
    trace = Trace(trace_name(path), np.array(jobs["job_id"].to_list(), np.str_), **found)
    return ReadTrace(
        trace.canonical(),
        len(checks.table),
        rejected,
        int(trace.submit_s[0]),
        place=lambda job: place(int(order[job])),
    )


def trace_name(path: str | Path) -> str:
    """A file's name without the suffixes of its format."""
    name = Path(path).name
    while name.endswith(_SUFFIXES):
        name = Path(name).stem
    return name
