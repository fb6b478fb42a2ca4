"""Parquet: what is written is read."""

from __future__ import annotations

from dataclasses import astuple, replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given
from numpy.testing import assert_equal
from random_traces import NAMES, traces

from envs.cluster.workload.parquet import HEADER, read_frame, read_parquet, write_parquet
from envs.cluster.workload.readers.canonical import CanonicalReader
from envs.cluster.workload.trace import NUMBERS, Labels, Trace
from tests.refusal import refusal
from tests.strength import examples


@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(trace=traces(NAMES))
def test_a_trace_comes_back_as_it_was(trace: Trace, tmp_path: Path) -> None:
    write_parquet(trace, tmp_path / "trace.parquet")
    found = read_parquet(tmp_path / "trace.parquet")
    assert_equal(astuple(found), astuple(trace))
    assert {field: getattr(found, field).dtype for field in NUMBERS} == NUMBERS


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


def test_a_wrong_file_is_refused_and_its_column_named(path: Path) -> None:
    content, jobs = path.read_bytes(), pl.read_parquet(path)
    ours = {HEADER: pl.read_parquet_metadata(path)[HEADER]}
    later = {HEADER: ours[HEADER].replace('"schema_version": 1', '"schema_version": 2')}
    assert later != ours
    having, null, zero = jobs.with_columns, pl.lit(None, pl.Int64), pl.lit(0, pl.Int64)
    for frame, metadata, words in (
        (having(submit_s=null), ours, "submit_s.*int64"),
        (having(duration_s=zero), ours, "duration_s.*0 is impossible"),
        (having(job_id=pl.lit(5)), ours, "job_id.*texts"),
        (having(user=pl.lit("x")), ours, "user.*labels"),
        (jobs.drop("model"), ours, "model"),
        (jobs, later, "version 1"),
        (jobs, {}, "version 1"),
    ):
        frame.write_parquet(path, metadata=metadata)
        with refusal(f"trace.parquet.*{words}"):
            read_parquet(path)
    for part in (content[: len(content) // 2], b""):
        path.write_bytes(part)
        with refusal("Parquet"):
            read_parquet(path)
    path.unlink()
    with refusal("cannot be read"):
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
    for metadata in ({HEADER: pl.read_parquet_metadata(path)[HEADER]}, {}):  # or anybody's
        frame.write_parquet(path, metadata=metadata)
        with refusal(rf"record .*field '{field}': '?{beyond}'? is"):
            CanonicalReader().read(path)
