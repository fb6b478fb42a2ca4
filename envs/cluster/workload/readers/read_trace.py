"""What every reader returns, and the last step all of them share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import polars as pl
from numpy.typing import NDArray

from envs.cluster.workload.parquet import fixed_width
from envs.cluster.workload.readers.row_checks import IntArray, RejectedRows, RowChecks
from envs.cluster.workload.trace import UNKNOWN, WHOLE_GPU, Labels, Trace
from envs.errors import InputError

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

    @property
    def num_rejected(self) -> int:
        """Rows that are not in the trace."""
        return sum(rejected.rows for rejected in self.rejected)


@runtime_checkable
class TraceReader(Protocol):
    """One format."""

    def read(self, path: str | Path, strict: bool = True) -> ReadTrace:
        """The trace in `path`; with `strict` the first faulty row raises InputError."""


@dataclass(frozen=True, eq=False)
class JobColumns:
    """R rows of jobs as a reader found them, wrong ones among them; the fields are `Trace`'s."""

    job_id: pl.Series  # texts
    submit_s: IntArray
    duration_s: IntArray
    num_gpus: IntArray
    gpu_milli: IntArray | None = None
    cpu_milli: IntArray | None = None
    memory_mib: IntArray | None = None
    user: pl.Series | None = None
    queue: pl.Series | None = None
    gpu_type: pl.Series | None = None
    model: pl.Series | None = None


def by_text(ids: pl.Series) -> pl.Series:
    """Ids in the order of their characters."""
    return ids


def by_number(ids: pl.Series) -> pl.Series:
    """Ids in the order of their numbers where all are whole numbers, else of their characters."""
    numbers = ids.cast(pl.Int64, strict=False)
    return ids if numbers.null_count() else numbers


def canonical_order(submit_s: IntArray, job_id: pl.Series, id_order: IdOrder) -> IntArray:
    """(J,) the jobs by (submission, id)."""
    keys = pl.DataFrame({"submit": submit_s, "id": id_order(job_id)})
    order = keys.select(pl.arg_sort_by("submit", "id", maintain_order=True)).to_series()
    return order.to_numpy().astype(np.int64)


def canonical_trace(
    columns: JobColumns,
    checks: RowChecks,
    *,
    id_field: str,
    id_order: IdOrder = by_number,
    strict: bool,
) -> ReadTrace:
    """The rows without fault as a trace in canonical form.

    Raises:
        InputError: the first faulty row where `strict`, an id that stands twice among them; no row
            is left.
    """
    path = checks.table.path
    checks.unique(id_field, columns.job_id)
    rejected = checks.finish(strict=strict)
    kept = np.flatnonzero(checks.kept)
    if not len(kept):
        told = "; ".join(f"{r.field or 'row'} {r.reason}: {r.rows}" for r in rejected)
        raise InputError(f"no row is a job on GPUs ({told})", file=path)
    order = kept[canonical_order(columns.submit_s[kept], columns.job_id.gather(kept), id_order)]
    submit_s = columns.submit_s[order]
    jobs, origin = len(order), int(submit_s[0])

    def numbers(values: IntArray | None, missing: int) -> IntArray:
        return np.full(jobs, missing, np.int64) if values is None else values[order]

    trace = Trace(
        name=trace_name(path),
        job_id=fixed_width(columns.job_id.gather(order)),
        submit_s=submit_s - origin,
        duration_s=columns.duration_s[order],
        num_gpus=columns.num_gpus[order].astype(np.int32),
        gpu_milli=numbers(columns.gpu_milli, WHOLE_GPU).astype(np.int32),
        cpu_milli=numbers(columns.cpu_milli, 0),
        memory_mib=numbers(columns.memory_mib, 0),
        user=_labels(columns.user, order),
        queue=_labels(columns.queue, order),
        gpu_type=_labels(columns.gpu_type, order),
        model=_labels(columns.model, order),
    )
    return ReadTrace(trace, len(checks.table), rejected, origin)


def trace_name(path: str | Path) -> str:
    """A file's name without the suffixes of its format."""
    name = Path(path).name
    while name.endswith(_SUFFIXES):
        name = Path(name).stem
    return name


def _labels(texts: pl.Series | None, order: NDArray[np.int64]) -> Labels:
    if texts is None:
        return Labels.unknown(len(order))
    texts = texts.gather(order)
    names = texts.filter(texts != "").unique(maintain_order=True).to_list()
    place = {name: code for code, name in enumerate(names)}
    codes = texts.replace_strict(place, default=UNKNOWN, return_dtype=pl.Int32)
    return Labels(codes.to_numpy().copy(), tuple(names))
