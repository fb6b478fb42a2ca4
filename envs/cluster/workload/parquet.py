"""Traces as Parquet: every column as it is in memory, with its origin in the file's metadata."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
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
        columns[field] = _texts(getattr(trace, field), field)
    return pl.DataFrame(columns)


def read_parquet(path: str | Path) -> Trace:
    """The trace in a file of `write_parquet`, column for column as it was.

    Raises:
        InputError: the file cannot be read, is no Parquet, not a trace of this version, lacks a
            column, or a job of it is impossible.
    """
    header, content = read_header(path)
    return trace_of(path, header, read_frame(path, content))


def read_frame(path: str | Path, content: bytes) -> pl.DataFrame:
    """The columns of a Parquet file.

    Raises:
        InputError: the file is no Parquet.
    """
    try:
        return pl.read_parquet(io.BytesIO(content))
    except (PolarsError, PanicException) as error:
        raise _unreadable(path, error) from error


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
    columns: dict[str, Any] = {
        field: _numbers(frame[field], kind, path) for field, kind in NUMBERS.items()
    }
    columns.update((field, _labels(frame[field], path)) for field in LABELS)
    if frame["job_id"].dtype != pl.String or frame["job_id"].null_count():
        raise InputError("is no column of texts", file=path, field="job_id")
    wrong = has_control(frame["job_id"])
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(CONTROL, file=path, record=row, field="job_id")
    columns["job_id"] = np.array(frame["job_id"].to_list(), np.str_)
    with refused_in(path):
        return Trace(name=str(header.get("name")), **columns)


def read_header(path: str | Path) -> tuple[dict[str, object], bytes]:
    """The header of a Parquet file, empty where it is not ours, and the file's content.

    Raises:
        InputError: the file cannot be read or is no Parquet.
    """
    try:
        content = read_content(path)
        text = pl.read_parquet_metadata(io.BytesIO(content)).get(HEADER, "{}")
        header = parse_json(text.encode(), f"{path}: header")
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror or error})", file=path) from error
    except (PolarsError, PanicException) as error:
        raise _unreadable(path, error) from error
    return header if isinstance(header, dict) else {}, content


def _texts(labels: Labels, field: str) -> pl.Series:
    if len(set(labels.names)) < len(labels.names):
        raise InputError("two labels have one name", field=field)
    names = pl.Series([*labels.names, None], dtype=pl.Enum(labels.names))
    place = np.where(labels.codes == UNKNOWN, len(labels.names), labels.codes)
    return names.gather(pl.Series(place.astype(np.uint32)))


def _labels(texts: pl.Series, path: str | Path) -> Labels:
    if not isinstance(texts.dtype, pl.Enum):
        raise InputError(f"{texts.dtype} is no column of labels", file=path, field=texts.name)
    codes = texts.to_physical().cast(pl.Int32).fill_null(UNKNOWN)
    names = texts.dtype.categories.to_list()
    if (wrong := unprintable(names)) is not None:
        raise InputError(f"{names[wrong]!r} {CONTROL}", file=path, field=texts.name)
    return Labels(codes.to_numpy().copy(), tuple(names))


def _numbers(column: pl.Series, kind: type[np.integer], path: str | Path) -> NDArray[np.integer]:
    values = column.to_numpy()
    if values.dtype != kind:  # a column with nulls is a column of floats here
        raise InputError(f"is no column of {kind.__name__}", file=path, field=column.name)
    return np.array(values)


def _unreadable(path: str | Path, error: BaseException) -> InputError:
    return InputError(f"is no Parquet ({in_one_line(error)[:200]})", file=path)
