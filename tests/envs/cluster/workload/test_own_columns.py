"""Anybody's table of jobs: which column has what, and how times are written."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path

import polars as pl
import pytest
from random_traces import holds, left_out, table

from envs.cluster.workload.readers.canonical import CanonicalReader
from tests.refusal import refusal

NAMES = {"id": "name", "submit": "created_at", "duration": "runtime", "gpus": "gpu_count"}
AT = {"submit": "at", "duration": "ran", "gpus": "n"}
OWN = CanonicalReader(NAMES)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.csv"


def jobs(*times: str) -> list[str]:
    rows = [f"job{k},{at},60,{k + 1},whatever" for k, at in enumerate(times)]
    return ["name,created_at,runtime,gpu_count,else", *rows]


@pytest.mark.parametrize(
    ("first", "second", "unit"),
    [
        ("0", "90", None),
        ("1700000000", "1700000090", None),
        ("1700000000000", "1700000090000", "ms"),
        ("0", "1.5", "min"),
        ("2026-11-22", "2026-11-22 00:01:30", None),
        ("2026-11-22 23:59", "2026-11-23 00:00:30", None),
        ("2026-11-22T14:05:00Z", "2026-11-22T14:06:30Z", None),
        ("2026-11-22 14:05:00+02:00", "2026-11-22 15:06:30+0300", None),
        ("2026-11-22 14:05:00-01:30", "2026-11-22 15:36:30Z", None),
    ],
)
def test_times_are_numbers_of_a_unit_or_dates(
    first: str, second: str, unit: str | None, path: Path
) -> None:
    reader = CanonicalReader(NAMES, {"submit": unit} if unit else {})
    found = reader.read(table(path, *jobs(first, second)))
    holds(found.trace, "job_id submit_s duration_s num_gpus\n job0 0 60 1\n job1 90 60 2")
    assert found.rounded == 0


def test_a_date_is_seconds_since_the_epoch(path: Path) -> None:
    found = OWN.read(table(path, *jobs("1970-01-02 00:00:01")))
    assert found.origin_s == 86_401


def test_fractions_are_rounded_and_counted(path: Path) -> None:
    table(path, "at,ran,n", "0.4,0.2,1", "10.6,59.5,1", "20,60,1", "30,1e-12,1")
    found = CanonicalReader(AT).read(path)
    holds(found.trace, "job_id submit_s duration_s\n 0 0 1\n 1 11 60\n 2 20 60\n 3 30 1")
    assert found.rounded == 3


def test_start_and_end_make_a_duration_and_other_columns_keep_their_names(path: Path) -> None:
    table(
        path,
        "job_id,submit_s,begin,finish,num_gpus,who",
        "a,5,2026-11-22 10:00:00,2026-11-22 10:02:00,4,ann",
        "b,6,2026-11-22 10:00:00,2026-11-22 10:00:00,4,bob",
    )
    found = CanonicalReader({"start": "begin", "end": "finish", "user": "who"}).read(path)
    holds(found.trace, "job_id duration_s user\n a 120 ann")
    assert left_out(found) == [
        "no job: 1 from row 2 (line 3): finish leaves no time: the job never ran"
    ]


def test_parquet_with_dates_of_its_own(path: Path) -> None:
    at = map(datetime.fromisoformat, ("2026-11-22 10:00:00.500", "2026-11-22 10:00:30"))
    pl.DataFrame({"at": [*at], "ran": [1.0, 2.0], "n": [1, 2]}).write_parquet(path)
    found = CanonicalReader(AT, {}).read(path)
    holds(found.trace, "submit_s\n 0\n 30")
    assert found.rounded == 1


FAULTS: dict[str, tuple[CanonicalReader, *tuple[str, ...]]] = {  # words of the error: times
    "row 1 (line 2): field 'created_at': 'soon' is neither a number": (OWN, "soon"),
    "row 2 (line 3): field 'created_at': 'soon' is not a num": (OWN, "0", "soon"),
    "is neither a number nor a date such as": (OWN, "01/02/2026"),
    "has no offset from UTC": (OWN, "2026-11-22 10:00Z", "2026-11-22 11:00"),
    "field 'created_at': '2026-11-22 10:00+99:99'": (OWN, "2026-11-22 10:00+99:99"),
    "is no offset from UTC": (OWN, "2026-11-22 10:00+08:60"),
    "say units: {submit: ms}": (OWN, "1700000000000"),
    "has dates, which have no unit": (CanonicalReader(NAMES, {"submit": "ms"}), "2026-11-22"),
    "header: field 'gpux': is missing": (CanonicalReader(NAMES | {"gpus": "gpux"}), "0"),
    "header: field 'duration_s': is missing": (CanonicalReader({"submit": "created_at"}), "0"),
    "columns': 'submitted' is not one of id, submit": (CanonicalReader({"submitted": "x"}), "0"),
    "'gpus' is not one of submit": (CanonicalReader(NAMES, {"gpus": "s"}), "0"),
    "'days' is not one of us, ms, s, min, h": (CanonicalReader(NAMES, {"submit": "days"}), "0"),
    "give duration, or start and end": (CanonicalReader(NAMES | {"start": "x"}), "0"),
    "'end' is missing": (CanonicalReader({"start": "x"}), "0"),
}


@pytest.mark.parametrize("words", FAULTS)
def test_faults_name_the_row_and_the_column(words: str, path: Path) -> None:
    reader, *times = FAULTS[words]
    with refusal(re.escape(words)):
        reader.read(table(path, *jobs(*times)))


def test_a_job_that_ends_before_it_starts_is_a_fault_or_left_out(path: Path) -> None:
    reader = CanonicalReader({"start": "b", "end": "e"})
    table(path, "submit_s,b,e,num_gpus", "0,5,9,1", "0,9,5,1")
    with refusal(r"row 2 .*field 'e': '5' is before 'b'"):
        reader.read(path)
    assert len(reader.read(path, strict=False).trace) == 1
