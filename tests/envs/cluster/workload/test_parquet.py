"""Parquet: what is written is read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given
from random_traces import NAMES, traces

from envs.cluster.workload.parquet import HEADER, read_frame, read_parquet, write_parquet
from envs.cluster.workload.readers.canonical import CanonicalReader
from envs.cluster.workload.trace import LABELS, NUMBERS, Labels, Trace
from tests.refusal import refusal
from tests.strength import examples


def assert_same(found: Trace, expected: Trace) -> None:
    assert found.name == expected.name
    assert found.job_id.tolist() == expected.job_id.tolist()
    for field in NUMBERS:
        column, wanted = getattr(found, field), getattr(expected, field)
        np.testing.assert_array_equal(column, wanted, strict=True)
    for field in LABELS:
        labels, wanted = getattr(found, field), getattr(expected, field)
        assert labels.names == wanted.names
        np.testing.assert_array_equal(labels.codes, wanted.codes)


@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(trace=traces(NAMES))
def test_a_trace_comes_back_as_it_was(trace: Trace, tmp_path: Path) -> None:
    write_parquet(trace, tmp_path / "trace.parquet")
    assert_same(read_parquet(tmp_path / "trace.parquet"), trace)


SMALL = Trace.of("small", [0, 5], [10, 20], [1, 8], job_id=["a", "b"])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of `SMALL`."""
    write_parquet(SMALL, tmp_path / "trace.parquet", {"source": "by hand"})
    return tmp_path / "trace.parquet"


def test_the_header_says_where_it_comes_from_and_labels_are_texts(path: Path) -> None:
    header, frame = read_frame(path, path.read_bytes())
    assert (header["format"], header["schema_version"]) == ("meshwright.trace", 1)
    assert (header["name"], header["provenance"]) == ("small", {"source": "by hand"})
    assert frame["queue"].to_list() == [None, None]
    assert [file.name for file in path.parent.iterdir()] == ["trace.parquet"]


@pytest.mark.parametrize(
    ("column", "told"),
    [
        (pl.lit(None).cast(pl.Int64).alias("submit_s"), "submit_s.*int64"),
        (pl.lit(0).cast(pl.Int64).alias("duration_s"), "duration_s.*0 is impossible"),
        (pl.lit(5).alias("job_id"), "job_id.*texts"),
        (pl.lit("x").alias("user"), "user.*labels"),
    ],
)
def test_a_wrong_column_is_named(column: pl.Expr, told: str, path: Path) -> None:
    header = {HEADER: pl.read_parquet_metadata(path)[HEADER]}
    pl.read_parquet(path).with_columns(column).write_parquet(path, metadata=header)
    with refusal(f"trace.parquet.*{told}"):
        read_parquet(path)


def test_other_files_are_refused(path: Path) -> None:
    content, frame = path.read_bytes(), pl.read_parquet(path)
    header = pl.read_parquet_metadata(path)[HEADER]
    later = header.replace('"schema_version": 1', '"schema_version": 2')
    assert later != header
    for edit, word in (
        (lambda: frame.write_parquet(path, metadata={HEADER: later}), "version 1"),
        (lambda: frame.write_parquet(path), "version 1"),
        (lambda: frame.drop("model").write_parquet(path, metadata={HEADER: header}), "model"),
        (lambda: path.write_bytes(content[: len(content) // 2]), "Parquet"),
        (lambda: path.write_bytes(b""), "Parquet"),
        (path.unlink, "cannot be read"),
    ):
        edit()
        with refusal(word):
            read_parquet(path)


def test_two_labels_of_one_name_are_refused(tmp_path: Path) -> None:
    labels = Labels(np.array([0, 1], dtype=np.int32), ("a", "a"))
    with refusal("user"):
        write_parquet(replace(SMALL, user=labels), tmp_path / "trace.parquet")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("field", ["submit_s", "duration_s", "memory_mib"])
def test_a_number_that_no_float_holds_is_refused(field: str, path: Path) -> None:
    beyond, frame = 2**53 + 1, pl.read_parquet(path)
    frame[-1, field] = beyond
    ours = {HEADER: pl.read_parquet_metadata(path)[HEADER]}
    for header in (ours, {}):  # or anybody's
        frame.write_parquet(path, metadata=header)
        with refusal(rf"record .*field '{field}': '?{beyond}'? is"):
            CanonicalReader().read(path)
