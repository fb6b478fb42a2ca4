"""What each format's columns become; rows made by hand after the published descriptions."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given
from random_traces import traces

from envs.cluster.workload.parquet import LABELS, NUMBERS, write_parquet
from envs.cluster.workload.readers.canonical import CanonicalReader, write_csv
from envs.cluster.workload.readers.job_logs import (
    AcmeReader,
    HeliosReader,
    ItpReader,
    PaiReader,
    PhillyReader,
)
from envs.cluster.workload.readers.philly_json import PhillyJsonReader
from envs.cluster.workload.trace import Trace
from tests.refusal import refusal
from tests.strength import examples


def test_canonical_form_sorts_ids_as_text_in_itp(tmp_path: Path) -> None:
    path = tmp_path / "c.csv"
    path.write_text("job_id,submission_time,duration,num_gpu\n10,9,1,1\n9,9,2,1\n1,8,3,1\n")
    found = ItpReader().read(path)
    assert found.trace.job_id.tolist() == ["1", "10", "9"]
    assert found.trace.submit_s.tolist() == [0, 1, 1]
    assert found.trace.duration_s.tolist() == [3, 1, 2]
    assert found.origin_s == 8


def test_philly_rows_are_numbered(tmp_path: Path) -> None:
    path = tmp_path / "philly.csv"
    rows = ["2017-10-09 06:13:03,5.0,1,5.0,b"] * 12 + ["2017-10-08 06:13:03,5,2,10,a"]
    path.write_text("timestamp,duration,num_gpus,gpu_time,cluster\n" + "\n".join(rows))
    found = PhillyReader().read(path).trace
    assert found.job_id.tolist() == ["12", *[str(row) for row in range(12)]]
    assert found.submit_s.tolist() == [0, *[86400] * 12]
    assert (found.queue[0], found.queue[1]) == ("a", "b")


HELIOS = """\
job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
1000,u2,vcB,4,16,1,FAILED,2020-06-09 18:41:27,2020-06-09 18:41:27,2020-06-09 18:45:36,249,0
999,u1,vcA,1,1,1,COMPLETED,2020-06-09 18:41:27,2020-06-09 18:41:27,2020-06-10 04:55:35,36848,0
1001,u1,vcA,0,8,1,COMPLETED,2020-06-09 18:41:28,,,100,0
1002,u1,vcA,2,8,1,CANCELLED,2020-06-09 18:41:29,,,0,7
"""


def test_helios(tmp_path: Path) -> None:
    (tmp_path / "cluster_log.csv").write_text(HELIOS)
    found = HeliosReader().read(tmp_path / "cluster_log.csv")
    assert found.trace.job_id.tolist() == ["999", "1000"]  # as numbers
    job = found.trace[1]
    assert (job.duration_s, job.num_gpus, job.cpu_milli) == (249, 4, 16000)
    assert (job.user, job.queue, job.gpu_milli) == ("u2", "vcB", 1000)
    assert [(r.field, r.rows, r.excluded) for r in found.rejected] == [
        ("gpu_num", 1, True),
        ("duration", 1, True),
    ]
    assert "without GPU" in found.rejected[0].reason
    assert found.rows == 4


ACME = """\
job_id,user,node_num,gpu_num,cpu_num,mem_per_pod_GB,shared_mem_per_pod,type,state,submit_time,\
start_time,end_time,fail_time,stop_time,duration,queue,gpu_time
dlcB,u1,8,64,960,1000,100.0,Other,FAILED,2023-05-17 11:00:58+00:00,,,,,18,10.0,1152.0
dlcA,u2,1,8,128,,,Other,COMPLETED,2023-05-17 19:00:59+08:00,,,,,2693,13,21544.0
dlcC,u2,1,0,4,,,Other,COMPLETED,2023-05-17 19:00:59+08:00,,,,,10,0,0.0
"""


def test_acme_times_have_offsets(tmp_path: Path) -> None:
    (tmp_path / "trace_kalos.csv.gz").write_bytes(gzip.compress(ACME.encode()))
    found = AcmeReader().read(tmp_path / "trace_kalos.csv.gz")
    assert found.trace.name == "trace_kalos"
    assert found.trace.job_id.tolist() == ["dlcB", "dlcA"]
    assert found.trace.submit_s.tolist() == [0, 1]
    assert found.trace.num_gpus.tolist() == [64, 8]
    assert found.trace[0].cpu_milli == 960_000
    assert found.origin_s == 1684321258
    assert [(r.field, r.rows) for r in found.rejected] == [("gpu_num", 1)]


PAI = """\
job_id,num_inst,submit_time,num_cpu,num_gpu,gpu_type,duration,user
0,1,0,200,0,CPU,34,u1
1,12,3,600,25,T4,15748,u1
2,1,5,600,100,MISC,84,u2
3,1,5,600,25,T4,46,u3
4,3,9,1800,200,V100,80,u3
5,1,9,600,150,V100,80,u3
6,1,10,600,100,V100,0,u3
"""
EXCLUDED_OF_PAI = [
    ("num_gpu", "is zero: a job without GPU", 1),
    ("num_gpu", "is a fraction of several GPUs", 2),
    ("duration", "is zero: the job never ran", 1),
]


def in_gpus(text: str) -> str:
    header, *rows = text.splitlines()
    cells = [row.split(",") for row in rows]
    for row in cells:
        row[3], row[4] = str(int(row[3]) / 100), str(int(row[4]) / 100)
    return "\n".join([header, *(",".join(row) for row in cells)]) + "\n"


@pytest.mark.parametrize(("milli", "text"), [(10, PAI), (1000, in_gpus(PAI))])
def test_pai_in_either_unit(milli: int, text: str, tmp_path: Path) -> None:
    (tmp_path / "pai.csv").write_text(text)
    found = PaiReader(milli).read(tmp_path / "pai.csv")
    assert [(r.field, r.reason, r.rows) for r in found.rejected] == EXCLUDED_OF_PAI
    assert all(rejected.excluded for rejected in found.rejected)
    assert found.trace.job_id.tolist() == ["2", "3", "4"]
    assert found.trace.num_gpus.tolist() == [1, 1, 6]
    assert found.trace.gpu_milli.tolist() == [1000, 250, 1000]
    assert found.trace.cpu_milli.tolist() == [6000, 6000, 54000]
    assert found.trace.submit_s.tolist() == [0, 0, 4]
    assert found.trace[1].gpu_type == "T4"


def test_pai_in_the_other_unit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pai.csv"
    path.write_text(in_gpus(PAI))
    for strict in (True, False):
        with refusal(r"row 2 .line 3.*'0.25'.*pai_sample"):
            PaiReader(10).read(path, strict)
    path.write_text(PAI)
    for strict in (True, False):
        with refusal(r"row 2 .line 3.*'25'.*format pai"):
            PaiReader(1000).read(path, strict)


def attempt(start: str | None, end: str | None, *gpus: int) -> dict[str, Any]:
    detail = [{"ip": f"m{i}", "gpus": [f"gpu{g}" for g in range(n)]} for i, n in enumerate(gpus)]
    return {"start_time": start, "end_time": end, "detail": detail}


def entry(job: str, *attempts: dict[str, Any], **edits: Any) -> dict[str, Any]:
    whole = {
        "status": "Pass", "vc": "ee9e8c", "jobid": job, "user": "ce2f4c",
        "submitted_time": "2017-10-07 01:11:39", "attempts": list(attempts),
    }  # fmt: skip
    return whole | edits


FIRST = attempt("2017-10-07 01:12:09", "2017-10-07 01:13:23", 8, 4)
SECOND = attempt("2017-10-07 01:13:30", "2017-10-09 06:53:12", 8)


def test_philly_json(tmp_path: Path) -> None:
    entries = [
        entry("application_2", FIRST, SECOND, submitted_time="2017-10-07 01:11:40"),
        entry("application_1", FIRST, vc="other"),
        entry("never"),
        entry("running", FIRST, attempt("2017-10-07 01:13:30", None, 8)),
        entry("lost", attempt(None, "2017-10-07 01:13:30", 8)),
        entry("cpu", attempt("2017-10-07 01:12:09", "2017-10-07 01:13:23")),
        entry("still", attempt("2017-10-07 01:12:09", "2017-10-07 01:12:09", 1)),
        entry("draft", FIRST, submitted_time=None),
    ]
    path = tmp_path / "cluster_job_log.json.gz"
    path.write_bytes(gzip.compress(json.dumps(entries).encode()))
    found = PhillyJsonReader().read(path)
    assert found.trace.name == "cluster_job_log"
    assert found.trace.job_id.tolist() == ["application_1", "application_2"]
    assert found.trace.submit_s.tolist() == [0, 1]
    assert found.trace.num_gpus.tolist() == [12, 12]
    assert found.trace.duration_s.tolist() == [74, 74 + 2 * 86400 + 5 * 3600 + 39 * 60 + 42]
    assert (found.trace[0].queue, found.trace[0].user) == ("other", "ce2f4c")
    assert found.rows == 8
    assert [(r.field, r.rows, r.first, r.excluded) for r in found.rejected] == [
        ("attempts", 1, "entry 3", True),
        ("end_time", 1, "entry 4", True),
        ("start_time", 1, "entry 5", True),
        ("gpus", 1, "entry 6", True),
        ("attempts", 1, "entry 7", True),
        ("submitted_time", 1, "entry 8", True),
    ]


@pytest.mark.parametrize(
    ("bad", "field", "words"),
    [
        ("text", None, "is no object"),
        (entry("a", FIRST), "jobid", "stands twice"),
        (entry("", FIRST), "jobid", "is missing"),
        (entry("b", FIRST, submitted_time="yesterday"), "submitted_time", "is no time"),
        (entry("b", FIRST, submitted_time="2017-10-07"), "submitted_time", "is no time"),
        (entry("b", FIRST, submitted_time=[7]), "submitted_time", "is no time"),
        (entry("b", FIRST, attempts=None), "attempts", "is no list"),
        (entry("b", {**FIRST, "detail": 5}), "detail", "is no list"),
        (entry("b", {**FIRST, "detail": [{}]}), "gpus", "is no list"),
        (entry("b", {**FIRST, "end_time": "2017-10-07 01:12:08"}), "end_time", "before"),
    ],
)
def test_a_faulty_entry(bad: object, field: str | None, words: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(json.dumps([entry("a", FIRST), bad]))
    with refusal(words) as error:
        PhillyJsonReader().read(path)
    assert (error.value.file, error.value.record, error.value.field) == (path, "entry 2", field)
    found = PhillyJsonReader().read(path, strict=False)
    assert (len(found.trace), found.num_rejected, found.rejected[0].excluded) == (1, 1, False)


@pytest.mark.parametrize(
    ("text", "words"),
    [("", "line 1.*not JSON"), ("[\n{]", "line 2"), ("{}", "no list"), ("[]", "no job")],
)
def test_a_log_that_is_none(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(text)
    with refusal(words):
        PhillyJsonReader().read(tmp_path / "log")


@examples(40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(trace=traces(least=1))
def test_canonical_files_hold_the_trace(trace: Trace, tmp_path: Path) -> None:
    """CSV, CSV in gzip and Parquet are read to the same jobs in the same order."""
    paths = [tmp_path / name for name in ("t.csv", "t.csv.gz", "t.parquet", "foreign.parquet")]
    write_csv(trace, paths[0])
    write_csv(trace, paths[1])
    write_parquet(trace, paths[2])
    pl.read_parquet(paths[2]).write_parquet(paths[3])
    found = [CanonicalReader().read(path) for path in paths]
    ids = trace.job_id.tolist()
    key: Any = int if all(job.isascii() and job.isdigit() for job in ids) else str
    expected = sorted(trace, key=lambda job: (job.submit_s, key(job.job_id)))
    for read in found:
        assert read.origin_s == trace.submit_s[0]
        assert read.num_rejected == 0
        for job, own in zip(read.trace, expected, strict=True):
            assert job.submit_s == own.submit_s - trace.submit_s[0]
            for field in ("job_id", *NUMBERS, *LABELS):
                if field != "submit_s":
                    assert getattr(job, field) == getattr(own, field)
    assert found[2].trace.name == trace.name
    assert found[0].trace.name == "t"


def test_jobs_without_gpu_are_read_back(tmp_path: Path) -> None:
    trace = Trace.of("t", [0, 1], [5, 5], [0, 4])
    write_parquet(trace, tmp_path / "t.parquet")
    write_csv(trace, tmp_path / "t.csv")
    for name in ("t.parquet", "t.csv"):
        assert CanonicalReader().read(tmp_path / name).trace.num_gpus.tolist() == [0, 4]


def test_what_would_not_be_read_back_is_not_written(tmp_path: Path) -> None:
    for job in ("", " a"):
        trace = Trace.of("t", [0], [5], [1], job_id=[job])
        with refusal("read back"):
            write_csv(trace, tmp_path / "t.csv")
    assert not list(tmp_path.iterdir())
