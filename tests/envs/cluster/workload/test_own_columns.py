"""Anybody's table of jobs: which column has what, and how times are written."""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl
import pytest
from random_traces import holds, table

from envs.cluster.workload.readers.canonical import CanonicalReader
from tests.refusal import refusal

NAMES = {"id": "name", "submit": "created_at", "duration": "runtime", "gpus": "gpu_count"}
AT = {"submit": "at", "duration": "ran", "gpus": "n"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.csv"


def jobs(*times: str) -> list[str]:
    rows = [f"job{k},{at},60,{k + 1},whatever" for k, at in enumerate(times)]
    return ["name,created_at,runtime,gpu_count,else", *rows]


@pytest.mark.parametrize(
    ("times", "units"),
    [
        (("0", "90"), {}),
        (("1700000000", "1700000090"), {}),
        (("1700000000000", "1700000090000"), {"submit": "ms"}),
        (("0", "1.5"), {"submit": "min"}),
        (("2026-11-22", "2026-11-22 00:01:30"), {}),
        (("2026-11-22 23:59", "2026-11-23 00:00:30"), {}),
        (("2026-11-22T14:05:00Z", "2026-11-22T14:06:30Z"), {}),
        (("2026-11-22 14:05:00+02:00", "2026-11-22 15:06:30+0300"), {}),
        (("2026-11-22 14:05:00-01:30", "2026-11-22 15:36:30Z"), {}),
    ],
)
def test_times_are_numbers_of_a_unit_or_dates(
    times: tuple[str, str], units: dict[str, str], path: Path
) -> None:
    found = CanonicalReader(NAMES, units).read(table(path, *jobs(*times)))
    holds(
        found.trace,
        submit_s=[0, 90], duration_s=[60, 60], num_gpus=[1, 2], job_id=["job0", "job1"],
    )  # fmt: skip
    assert found.rounded == 0


def test_a_date_is_seconds_since_the_epoch(path: Path) -> None:
    found = CanonicalReader(NAMES).read(table(path, *jobs("1970-01-02 00:00:01")))
    assert found.origin_s == 86_401


def test_fractions_are_rounded_and_counted(path: Path) -> None:
    table(path, "at,ran,n", "0.4,0.2,1", "10.6,59.5,1", "20,60,1", "30,1e-12,1")
    found = CanonicalReader(AT).read(path)
    submit_s, duration_s = [0, 11, 20, 30], [1, 60, 60, 1]
    holds(found.trace, submit_s=submit_s, duration_s=duration_s, job_id=["0", "1", "2", "3"])
    assert found.rounded == 3


def test_start_and_end_make_a_duration_and_other_columns_keep_their_names(path: Path) -> None:
    table(
        path,
        "job_id,submit_s,begin,finish,num_gpus,who",
        "a,5,2026-11-22 10:00:00,2026-11-22 10:02:00,4,ann",
        "b,6,2026-11-22 10:00:00,2026-11-22 10:00:00,4,bob",
    )
    found = CanonicalReader({"start": "begin", "end": "finish", "user": "who"}).read(path)
    holds(found.trace, job_id=["a"], duration_s=[120], user=["ann"])
    assert [(r.field, r.rows, r.excluded) for r in found.rejected] == [("finish", 1, True)]


def test_parquet_with_dates_of_its_own(path: Path) -> None:
    frame = pl.DataFrame(
        {"at": ["2026-11-22 10:00:00.500", "2026-11-22 10:00:30"], "ran": [1.0, 2.0], "n": [1, 2]}
    ).with_columns(pl.col("at").str.to_datetime("%Y-%m-%d %H:%M:%S%.f"))
    frame.write_parquet(path)
    found = CanonicalReader(AT, {}).read(path)
    holds(found.trace, submit_s=[0, 30])
    assert found.rounded == 1


AT_FIELD = "field 'created_at': '"
FAULTS: list[tuple[list[str], dict[str, str], dict[str, str], str]] = [
    # rows; what columns are called, units; words of the error
    (jobs("soon"), NAMES, {}, f"row 1 (line 2): {AT_FIELD}soon' is neither a number"),
    (jobs("0", "soon"), NAMES, {}, f"row 2 (line 3): {AT_FIELD}soon' is not a num"),
    (jobs("01/02/2026"), NAMES, {}, "is neither a number nor a date such as"),
    (jobs("2026-11-22 10:00Z", "2026-11-22 11:00"), NAMES, {}, "has no offset from UTC"),
    (jobs("2026-11-22 10:00+99:99"), NAMES, {}, f"{AT_FIELD}2026-11-22 10:00+99:99'"),
    (jobs("2026-11-22 10:00+08:60"), NAMES, {}, "is no offset from UTC"),
    (jobs("1700000000000"), NAMES, {}, "say units: {submit: ms}"),
    (jobs("2026-11-22"), NAMES, {"submit": "ms"}, "has dates, which have no unit"),
    (jobs("0"), {**NAMES, "gpus": "gpux"}, {}, "header: field 'gpux': is missing"),
    (jobs("0"), {"submit": "created_at"}, {}, "header: field 'duration_s': is missing"),
    (jobs("0"), {"submitted": "x"}, {}, "columns': 'submitted' is none of id, submit"),
    (jobs("0"), NAMES, {"gpus": "s"}, "'gpus' is none of submit"),
    (jobs("0"), NAMES, {"submit": "days"}, "'days' is none of us, ms, s, min, h"),
    (jobs("0"), {**NAMES, "start": "x"}, {}, "give duration, or start and end"),
    (jobs("0"), {"start": "x"}, {}, "'end' is missing"),
]


@pytest.mark.parametrize(("lines", "columns", "units", "told"), FAULTS)
def test_faults_name_the_row_and_the_column(
    lines: list[str], columns: dict[str, str], units: dict[str, str], told: str, path: Path
) -> None:
    with refusal(re.escape(told)):
        CanonicalReader(columns, units).read(table(path, *lines))


def test_a_job_that_ends_before_it_starts_is_a_fault_or_left_out(path: Path) -> None:
    reader = CanonicalReader({"start": "b", "end": "e"})
    table(path, "submit_s,b,e,num_gpus", "0,5,9,1", "0,9,5,1")
    with refusal(r"row 2 .*field 'e': '5' is before 'b'"):
        reader.read(path)
    assert len(reader.read(path, strict=False).trace) == 1
