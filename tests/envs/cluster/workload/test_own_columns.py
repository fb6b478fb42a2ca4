"""Anybody's table of jobs: which column has what, and how times are written."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from envs.cluster.workload.readers.canonical import CanonicalReader
from envs.cluster.workload.readers.read_trace import ReadTrace
from tests.refusal import refusal

NAMES = {"id": "name", "submit": "created_at", "duration": "runtime", "gpus": "gpu_count"}


def read(
    folder: Path, text: str, columns: dict[str, str], units: dict[str, str] | None = None,
    *, strict: bool = True,
) -> ReadTrace:  # fmt: skip
    path = folder / "jobs.csv"
    path.write_text(text)
    return CanonicalReader(columns, units or {}).read(path, strict)


def table(*times: str) -> str:
    rows = [f"job{k},{at},60,{k + 1},whatever" for k, at in enumerate(times)]
    return "\n".join(["name,created_at,runtime,gpu_count,else", *rows]) + "\n"


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
    times: tuple[str, str], units: dict[str, str], tmp_path: Path
) -> None:
    found = read(tmp_path, table(*times), NAMES, units)
    assert found.trace.submit_s.tolist() == [0, 90]
    assert found.trace.duration_s.tolist() == [60, 60]
    assert found.trace.num_gpus.tolist() == [1, 2]
    assert found.trace.job_id.tolist() == ["job0", "job1"]
    assert found.rounded == 0


def test_a_date_is_seconds_since_the_epoch(tmp_path: Path) -> None:
    assert read(tmp_path, table("1970-01-02 00:00:01"), NAMES).origin_s == 86_401


def test_fractions_are_rounded_and_counted(tmp_path: Path) -> None:
    text = "at,ran,n\n0.4,0.2,1\n10.6,59.5,1\n20,60,1\n30,1e-12,1\n"
    found = read(tmp_path, text, {"submit": "at", "duration": "ran", "gpus": "n"})
    assert found.trace.submit_s.tolist() == [0, 11, 20, 30]
    assert found.trace.duration_s.tolist() == [1, 60, 60, 1]
    assert found.trace.job_id.tolist() == ["0", "1", "2", "3"]
    assert found.rounded == 3


def test_start_and_end_make_a_duration_and_other_columns_keep_their_names(tmp_path: Path) -> None:
    text = (
        "job_id,submit_s,begin,finish,num_gpus,who\n"
        "a,5,2026-11-22 10:00:00,2026-11-22 10:02:00,4,ann\n"
        "b,6,2026-11-22 10:00:00,2026-11-22 10:00:00,4,bob\n"
    )
    found = read(tmp_path, text, {"start": "begin", "end": "finish", "user": "who"})
    assert found.trace.job_id.tolist() == ["a"]
    assert found.trace.duration_s.tolist() == [120]
    assert found.trace.user[0] == "ann"
    assert [(r.field, r.rows, r.excluded) for r in found.rejected] == [("finish", 1, True)]


def test_parquet_with_dates_of_its_own(tmp_path: Path) -> None:
    frame = pl.DataFrame(
        {"at": ["2026-11-22 10:00:00.500", "2026-11-22 10:00:30"], "ran": [1.0, 2.0], "n": [1, 2]}
    ).with_columns(pl.col("at").str.to_datetime("%Y-%m-%d %H:%M:%S%.f"))
    frame.write_parquet(tmp_path / "jobs.parquet")
    reader = CanonicalReader({"submit": "at", "duration": "ran", "gpus": "n"}, {})
    found = reader.read(tmp_path / "jobs.parquet")
    assert found.trace.submit_s.tolist() == [0, 30]
    assert found.rounded == 1


@pytest.mark.parametrize(
    ("text", "columns", "units", "told"),
    [
        (
            table("soon"),
            NAMES,
            {},
            "row 1 (line 2): field 'created_at': 'soon' is neither a number",
        ),
        (table("0", "soon"), NAMES, {}, "row 2 (line 3): field 'created_at': 'soon' is not a num"),
        (table("01/02/2026"), NAMES, {}, "is neither a number nor a date such as"),
        (table("2026-11-22 10:00Z", "2026-11-22 11:00"), NAMES, {}, "has no offset from UTC"),
        (
            table("2026-11-22 10:00+99:99"),
            NAMES,
            {},
            "field 'created_at': '2026-11-22 10:00+99:99'",
        ),
        (table("2026-11-22 10:00+08:60"), NAMES, {}, "is no offset from UTC"),
        (table("1700000000000"), NAMES, {}, "say units: {submit: ms}"),
        (table("2026-11-22"), NAMES, {"submit": "ms"}, "has dates, which have no unit"),
        (table("0"), {**NAMES, "gpus": "gpux"}, {}, "header: field 'gpux': is missing"),
        (table("0"), {"submit": "created_at"}, {}, "header: field 'duration_s': is missing"),
        (table("0"), {"submitted": "x"}, {}, "columns': 'submitted' is none of id, submit"),
        (table("0"), NAMES, {"gpus": "s"}, "'gpus' is none of submit"),
        (table("0"), NAMES, {"submit": "days"}, "'days' is none of us, ms, s, min, h"),
        (table("0"), {**NAMES, "start": "x"}, {}, "give duration, or start and end"),
        (table("0"), {"start": "x"}, {}, "'end' is missing"),
    ],
)
def test_faults_name_the_row_and_the_column(
    text: str, columns: dict[str, str], units: dict[str, str], told: str, tmp_path: Path
) -> None:
    with refusal() as refused:
        read(tmp_path, text, columns, units)
    assert told in str(refused.value)


def test_a_job_that_ends_before_it_starts_is_a_fault_or_left_out(tmp_path: Path) -> None:
    text = "submit_s,b,e,num_gpus\n0,5,9,1\n0,9,5,1\n"
    columns = {"start": "b", "end": "e"}
    with refusal(r"row 2 .*field 'e': '5' is before 'b'"):
        read(tmp_path, text, columns)
    assert len(read(tmp_path, text, columns, strict=False).trace) == 1
