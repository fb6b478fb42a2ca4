"""Traces as Parquet: every column as it is in memory, with its origin in the file's metadata."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from polars.exceptions import PanicException, PolarsError

from envs.cluster.workload.trace import COLUMNS, LABELS, NUMBERS, UNKNOWN, Labels, Trace
from envs.errors import InputError, in_one_line, refused_in
from envs.files import parse_json, read_content, unprintable, write_atomically
from envs.text_table import CONTROL, has_control

FORMAT = "meshwright.trace"
SCHEMA_VERSION = 1
HEADER = "meshwright"  # key of the header, a JSON mapping, in the file's metadata
UNITS = {"submit_s": "s", "duration_s": "s", "memory_mib": "MiB"}


def write_parquet(
    trace: Trace, path: str | Path, provenance: Mapping[str, object] | None = None
) -> None:
    """Write `trace` to `path`, atomically; `provenance` is any JSON mapping.

    The columns are those of `Trace`; labels are texts, an unknown one is null.

    Raises:
        InputError: two labels of a column have one name.
    """
    header = {
        "format": FORMAT,
        "schema_version": SCHEMA_VERSION,
        "name": trace.name,
        "units": UNITS,
        "provenance": dict(provenance or {}),
    }
    buffer = io.BytesIO()
    frame_of(trace).write_parquet(buffer, metadata={HEADER: json.dumps(header)})
    write_atomically(Path(path), buffer.getvalue())


def frame_of(trace: Trace) -> pl.DataFrame:
    """The columns of a trace; labels are texts, an unknown one is null.

    Raises:
        InputError: two labels of a column have one name.
    """
    columns: dict[str, pl.Series] = {"job_id": pl.Series(trace.job_id.tolist(), dtype=pl.String)}
    for field in NUMBERS:
        columns[field] = pl.Series(getattr(trace, field))
    for field in LABELS:
        codes, names = getattr(trace, field).codes, getattr(trace, field).names
        if len(set(names)) < len(names):
            raise InputError("two labels have one name", field=field)
        place = np.where(codes == UNKNOWN, len(names), codes)
        texts = pl.Series([*names, None], dtype=pl.Enum(names))
        columns[field] = texts.gather(pl.Series(place.astype(np.uint32)))
    return pl.DataFrame(columns)


def read_parquet(path: str | Path) -> Trace:
    """The trace in a file of `write_parquet`, column for column as it was.

    Raises:
        InputError: the file cannot be read, is no Parquet, not a trace of this version, lacks a
            column, or a job of it is impossible.
    """
    return trace_of(path, *read_frame(path, read_content(path)))


def read_frame(path: str | Path, content: bytes) -> tuple[dict[str, object], pl.DataFrame]:
    """The header of a Parquet file, empty where it is not ours, and its columns.

    Raises:
        InputError: the file is no Parquet.
    """
    try:
        text = pl.read_parquet_metadata(io.BytesIO(content)).get(HEADER, "{}")
        frame = pl.read_parquet(io.BytesIO(content))
    except (OSError, PolarsError, PanicException) as error:
        reason = f"is no Parquet ({in_one_line(error)[:200]})"
        raise InputError(reason, file=path) from error
    header = parse_json(text.encode(), f"{path}: header")
    return header if isinstance(header, dict) else {}, frame


def trace_of(path: str | Path, header: Mapping[str, object], frame: pl.DataFrame) -> Trace:
    """The trace that a header and its columns describe.

    Raises:
        InputError: it is no trace of this version, lacks a column, or a job of it is impossible.
    """
    if header.get("format") != FORMAT or header.get("schema_version") != SCHEMA_VERSION:
        raise InputError(f"is no {FORMAT} of version {SCHEMA_VERSION}", file=path)
    missing = [name for name in COLUMNS if name not in frame.columns]
    if missing:
        raise InputError("is missing", file=path, record="header", field=missing[0])
    columns: dict[str, Any] = {}
    for field, kind in NUMBERS.items():
        columns[field] = np.array(frame[field])
        if columns[field].dtype != kind:  # a column with nulls is a column of floats here
            raise InputError(f"is no column of {kind.__name__}", file=path, field=field)
    for field in LABELS:
        texts = frame[field]
        if not isinstance(texts.dtype, pl.Enum):
            raise InputError(f"{texts.dtype} is no column of labels", file=path, field=field)
        names = texts.dtype.categories.to_list()
        if (wrong := unprintable(names)) is not None:
            raise InputError(f"{names[wrong]!r} {CONTROL}", file=path, field=field)
        codes = texts.to_physical().cast(pl.Int32).fill_null(UNKNOWN)
        columns[field] = Labels(np.array(codes), tuple(names))
    ids = frame["job_id"]
    if ids.dtype != pl.String or ids.null_count():
        raise InputError("is no column of texts", file=path, field="job_id")
    if (unprinted := has_control(ids)).any():
        raise InputError(CONTROL, file=path, record=int(unprinted.argmax()), field="job_id")
    with refused_in(path):
        return Trace(str(header.get("name")), np.array(ids.to_list(), np.str_), **columns)
