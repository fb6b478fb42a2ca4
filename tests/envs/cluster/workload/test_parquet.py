"""Parquet: what is written is read."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given
from random_traces import NAMES, traces

from envs.cluster.workload.parquet import (
    HEADER,
    LABELS,
    NUMBERS,
    read_frame,
    read_parquet,
    write_parquet,
)
from envs.cluster.workload.readers.canonical import CanonicalReader
from envs.cluster.workload.trace import Labels, Trace
from tests.refusal import refusal
from tests.strength import examples


def assert_same(found: Trace, expected: Trace) -> None:
    assert found.name == expected.name
    assert found.job_id.tolist() == expected.job_id.tolist()
    for field in NUMBERS:
        assert getattr(found, field).dtype == getattr(expected, field).dtype
        np.testing.assert_array_equal(getattr(found, field), getattr(expected, field))
    for field in LABELS:
        assert getattr(found, field).names == getattr(expected, field).names
        np.testing.assert_array_equal(getattr(found, field).codes, getattr(expected, field).codes)


@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(trace=traces(NAMES))
def test_a_trace_comes_back_as_it_was(trace: Trace, tmp_path: Path) -> None:
    write_parquet(trace, tmp_path / "trace.parquet")
    assert_same(read_parquet(tmp_path / "trace.parquet"), trace)


def small() -> Trace:
    return Trace.of("small", [0, 5], [10, 20], [1, 8], job_id=["a", "b"])


def test_the_header_says_where_it_comes_from_and_labels_are_texts(tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    write_parquet(small(), path, {"source": "by hand"})
    header, frame = read_frame(path, path.read_bytes())
    assert header["format"] == "meshwright.trace"
    assert header["schema_version"] == 1
    assert header["name"] == "small"
    assert header["provenance"] == {"source": "by hand"}
    assert frame["queue"].to_list() == [None, None]
    assert [file.name for file in tmp_path.iterdir()] == ["trace.parquet"]


def edited(frame: pl.DataFrame, header: dict[str, object], path: Path) -> Path:
    buffer = io.BytesIO()
    frame.write_parquet(buffer, metadata={HEADER: json.dumps(header)})
    path.write_bytes(buffer.getvalue())
    return path


@pytest.mark.parametrize(
    ("column", "told"),
    [
        (pl.lit(None).cast(pl.Int64).alias("submit_s"), ["submit_s", "int64"]),
        (pl.lit(0).cast(pl.Int64).alias("duration_s"), ["duration_s", "0 is impossible"]),
        (pl.lit(5).alias("job_id"), ["job_id", "texts"]),
        (pl.lit("x").alias("user"), ["user", "labels"]),
    ],
)
def test_a_wrong_column_is_named(column: pl.Expr, told: list[str], tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    write_parquet(small(), path)
    header, frame = read_frame(path, path.read_bytes())
    edited(frame.with_columns(column), header, path)
    with refusal() as error:
        read_parquet(path)
    for word in [*told, "trace.parquet"]:
        assert word in str(error.value)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    write_parquet(small(), path)
    content = path.read_bytes()
    header, frame = read_frame(path, content)
    for edit, word in (
        (lambda: edited(frame, {**header, "schema_version": 2}, path), "version 1"),
        (lambda: edited(frame, {}, path), "version 1"),
        (lambda: edited(frame.drop("model"), header, path), "model"),
        (lambda: path.write_bytes(content[: len(content) // 2]), "Parquet"),
        (lambda: path.write_bytes(b""), "Parquet"),
        (path.unlink, "cannot be read"),
    ):
        edit()
        with refusal(word):
            read_parquet(path)


def test_two_labels_of_one_name_are_refused(tmp_path: Path) -> None:
    labels = Labels(np.array([0, 1], dtype=np.int32), ("a", "a"))
    trace = Trace(**{**small().__dict__, "user": labels})
    with refusal("user"):
        write_parquet(trace, tmp_path / "trace.parquet")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("field", ["submit_s", "duration_s", "memory_mib"])
def test_a_number_that_no_float_holds_is_refused(field: str, tmp_path: Path) -> None:
    path, beyond = tmp_path / "trace.parquet", 2**53 + 1
    write_parquet(small(), path)
    header = pl.read_parquet_metadata(path)[HEADER]
    frame = pl.read_parquet(path)
    frame[-1, field] = beyond
    for metadata in ({HEADER: header}, {}):  # ours, and anybody's
        frame.write_parquet(path, metadata=metadata)
        with refusal(rf"record .*field '{field}': '?{beyond}'? is"):
            CanonicalReader().read(path)
