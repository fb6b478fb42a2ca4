"""From the rows of a table to a trace: canonical columns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import polars as pl

from envs.arrays import IntArray
from envs.cluster.workload.trace import LABELS, NUMBERS, WHOLE_GPU, Labels, Trace
from envs.errors import InputError
from envs.text_table import CONTROL, RejectedRows, RowChecks, has_control, read_table

MOST_GPUS = 2**31 - 1
_SUFFIXES = (".gz", ".csv", ".json", ".parquet")


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
Columns = Mapping[str, Column]
MISSING = {"gpu_milli": WHOLE_GPU, "cpu_milli": 0, "memory_mib": 0}


class LogReader(ABC):
    """A CSV file with a header and one row per job."""

    ID: ClassVar[str] = "job_id"  # what the file calls the ids
    IDS_ARE_TEXTS: ClassVar[bool] = False  # which orders them by their characters

    def read(self, path: str | Path, strict: bool = True) -> ReadTrace:
        """The trace in `path`; with `strict` the first faulty row raises InputError."""
        checks = RowChecks(read_table(path, ()))
        columns = self.columns(checks)
        return canonical_trace(
            checks, columns, self.ID, strict=strict, ids_are_texts=self.IDS_ARE_TEXTS
        )

    @abstractmethod
    def columns(self, checks: RowChecks) -> Columns:
        """The columns of a trace from those of the file; faulty rows are marked."""


def canonical_order(
    submit_s: IntArray, job_id: pl.Series, *, ids_are_texts: bool = False
) -> IntArray:
    """Jobs by submission, then by id: by its number where all are whole numbers."""
    numbers = job_id.cast(pl.Int64, strict=False)
    ids = job_id if ids_are_texts or numbers.null_count() else numbers
    keys = pl.DataFrame({"submit": submit_s, "id": ids})
    order = keys.select(pl.arg_sort_by("submit", "id", maintain_order=True)).to_series()
    return order.to_numpy().astype(np.int64)


def canonical_trace(
    checks: RowChecks,
    columns: Columns,
    id_field: str = "job_id",
    *,
    strict: bool,
    ids_are_texts: bool = False,
) -> ReadTrace:
    """The rows without fault as a trace in canonical form.

    Args:
        checks: of the rows.
        columns: of all R rows, wrong ones among them; fields of `Trace`, at least `submit_s`,
            `duration_s` and `num_gpus`. Without `job_id` the numbers of the rows are the ids.
        id_field: what the source calls `job_id`.
        strict: whether the first faulty row raises.
        ids_are_texts: jobs submitted at once are ordered by the characters of their ids.

    Raises:
        InputError: the first faulty row where `strict`, an id that stands twice among them; no row
            is left.
    """
    path, place = checks.table.path, checks.table.place
    known = {field: values for field, values in columns.items() if values is not None}
    if "job_id" not in known:
        known["job_id"], id_field = checks.table.rows(), "row"
    frame = pl.DataFrame(known)
    labels = [field for field in LABELS if field in known]
    for field in labels:
        checks.reject(has_control(frame[field]), field, CONTROL)
    checks.unique(id_field, frame["job_id"])
    rejected = checks.finish(strict=strict)
    kept = np.flatnonzero(checks.kept)
    if not len(kept):
        reason = "; ".join(f"{r.field or 'row'} {r.reason}: {r.rows}" for r in rejected)
        raise InputError(f"no row is a job on GPUs ({reason})", file=path)
    jobs = frame[kept]
    by_time = canonical_order(
        jobs["submit_s"].to_numpy(), jobs["job_id"], ids_are_texts=ids_are_texts
    )
    order, jobs = kept[by_time], jobs[by_time]
    found: dict[str, Any] = dict.fromkeys(LABELS, Labels.unknown(len(jobs)))
    found.update((field, Labels.of(jobs[field].to_list())) for field in labels)
    for field, kind in NUMBERS.items():
        values = jobs[field] if field in known else np.full(len(jobs), MISSING[field])
        found[field] = np.array(values, kind)
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
