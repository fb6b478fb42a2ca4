"""What each format's columns become; rows made by hand after the published descriptions."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given
from random_traces import holds, table, traces

from envs.cluster.workload.parquet import write_parquet
from envs.cluster.workload.readers.canonical import CanonicalReader, write_csv
from envs.cluster.workload.readers.job_logs import (
    AcmeReader,
    HeliosReader,
    ItpReader,
    PaiReader,
    PhillyReader,
)
from envs.cluster.workload.readers.openb import OpenbReader
from envs.cluster.workload.readers.philly_json import PhillyJsonReader
from envs.cluster.workload.readers.read_trace import TraceReader
from envs.cluster.workload.trace import LABELS, NUMBERS, Trace
from tests.refusal import refusal
from tests.strength import examples

HELIOS = """\
job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
1000,u2,vcB,4,16,1,FAILED,2020-06-09 18:41:27,2020-06-09 18:41:27,2020-06-09 18:45:36,249,0
999,u1,vcA,1,1,1,COMPLETED,2020-06-09 18:41:27,2020-06-09 18:41:27,2020-06-10 04:55:35,36848,0
1001,u1,vcA,0,8,1,COMPLETED,2020-06-09 18:41:28,,,100,0
1002,u1,vcA,2,8,1,CANCELLED,2020-06-09 18:41:29,,,0,7"""
ACME = """\
job_id,user,node_num,gpu_num,cpu_num,mem_per_pod_GB,shared_mem_per_pod,type,state,submit_time,\
start_time,end_time,fail_time,stop_time,duration,queue,gpu_time
dlcB,u1,8,64,960,1000,100.0,Other,FAILED,2023-05-17 11:00:58+00:00,,,,,18,10.0,1152.0
dlcA,u2,1,8,128,,,Other,COMPLETED,2023-05-17 19:00:59+08:00,,,,,2693,13,21544.0
dlcC,u2,1,0,4,,,Other,COMPLETED,2023-05-17 19:00:59+08:00,,,,,10,0,0.0"""
PAI = """\
job_id,num_inst,submit_time,num_cpu,num_gpu,gpu_type,duration,user
0,1,0,200,0,CPU,34,u1
1,12,3,600,25,T4,15748,u1
2,1,5,600,100,MISC,84,u2
3,1,5,600,25,T4,46,u3
4,3,9,1800,200,V100,80,u3
5,1,9,600,150,V100,80,u3
6,1,10,600,100,V100,0,u3"""
IN_GPUS = """\
job_id,num_inst,submit_time,num_cpu,num_gpu,gpu_type,duration,user
0,1,0,2,0.0,CPU,34,u1
1,12,3,6.0,0.25,T4,15748,u1
2,1,5,6,1,MISC,84,u2
3,1,5,6,0.25,T4,46,u3
4,3,9,18,2,V100,80,u3
5,1,9,6,1.5,V100,80,u3
6,1,10,6,1,V100,0,u3"""
OF_PAI: tuple[dict[str, list[Any]], int, list[Any]] = (
    {
        "job_id": ["2", "3", "4"], "num_gpus": [1, 1, 6], "gpu_milli": [1000, 250, 1000],
        "cpu_milli": [6000, 6000, 54000], "submit_s": [0, 0, 4], "gpu_type": ["MISC", "T4", "V100"],
    },
    5,
    [
        ("num_gpu", "is zero: a job without GPU", 1, True),
        ("num_gpu", "is a fraction of several GPUs", 2, True),
        ("duration", "is zero: the job never ran", 1, True),
    ],
)  # fmt: skip
OPENB = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,\
scheduled_time
p-2,4000,8192,1,460,V100M16|V100M32,LS,Running,120,400,150
p-1,12000,16384,2,1000,,LS,Succeeded,100,200,110
p-0,500,0,0,0,G2,BE,Failed,120,121,120
p-3,500,0,1,1000,,BE,Pending,90,300,"""
AT = 1502172783  # 2017-08-08 06:13:03
PHILLY = "timestamp,duration,num_gpus,gpu_time,cluster" + "\n2017-08-09 06:13:03,5.0,1,5.0,b" * 12
READ: dict[str, tuple[TraceReader, str, dict[str, list[Any]], int, list[Any]]] = {
    # reader, text; what the jobs have, second 0, what is left out
    "itp": (  # sorts ids as texts
        ItpReader(), "job_id,submission_time,duration,num_gpu\n10,9,1,1\n9,9,2,1\n1,8,3,1",
        {"job_id": ["1", "10", "9"], "submit_s": [0, 1, 1], "duration_s": [3, 1, 2]}, 8, [],
    ),
    "philly": (  # rows are numbered
        PhillyReader(), f"{PHILLY}\n2017-08-08 06:13:03,5,2,10,a",
        {
            "job_id": ["12", *[str(row) for row in range(12)]], "submit_s": [0, *[86400] * 12],
            "queue": ["a", *"b" * 12],
        },
        AT, [],
    ),
    "helios": (  # ids as numbers
        HeliosReader(), HELIOS,
        {
            "job_id": ["999", "1000"], "duration_s": [36848, 249], "num_gpus": [1, 4],
            "cpu_milli": [1000, 16000], "user": ["u1", "u2"], "queue": ["vcA", "vcB"],
            "gpu_milli": [1000, 1000],
        },
        1591728087,
        [
            ("gpu_num", "is zero: a job without GPU", 1, True),
            ("duration", "is zero: the job never ran", 1, True),
        ],
    ),
    "acme": (  # times have offsets
        AcmeReader(), ACME,
        {
            "job_id": ["dlcB", "dlcA"], "submit_s": [0, 1], "num_gpus": [64, 8],
            "cpu_milli": [960_000, 128_000],
        },
        1684321258, [("gpu_num", "is zero: a job without GPU", 1, True)],
    ),
    "pai": (PaiReader(10), PAI, *OF_PAI),
    "pai_sample": (PaiReader(1000), IN_GPUS, *OF_PAI),
    "openb": (
        OpenbReader(), OPENB,
        {
            "job_id": ["p-1", "p-0", "p-2"], "submit_s": [0, 20, 20], "duration_s": [90, 1, 250],
            "num_gpus": [2, 0, 1], "gpu_milli": [1000, 1000, 460], "cpu_milli": [12_000, 500, 4000],
            "memory_mib": [16_384, 0, 8192], "gpu_type": [None, None, "V100M16|V100M32"],
        },
        100, [("scheduled_time", "was never scheduled", 1, True)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_what_columns_become(name: str, tmp_path: Path) -> None:
    reader, text, columns, origin_s, rejected = READ[name]
    path = tmp_path / f"{name}.csv.gz"
    path.write_bytes(gzip.compress(text.encode()))
    found = reader.read(path)
    holds(found.trace, **columns)
    assert (found.trace.name, found.origin_s) == (name, origin_s)
    assert [(r.field, r.reason, r.rows, r.excluded) for r in found.rejected] == rejected
    assert found.rows == text.count("\n") == len(found.trace) + found.num_rejected


@pytest.mark.parametrize(
    ("milli", "text", "told"),
    [(10, IN_GPUS, "'0.25'.*pai_sample"), (1000, PAI, "'25'.*format pai")],
)
@pytest.mark.parametrize("strict", [True, False])
def test_pai_in_the_other_unit_is_refused(
    milli: int, text: str, told: str, strict: bool, tmp_path: Path
) -> None:
    with refusal(f"row 2 .line 3.*{told}"):
        PaiReader(milli).read(table(tmp_path / "pai.csv", text), strict)


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
    holds(
        found.trace,
        job_id=["application_1", "application_2"],
        submit_s=[0, 1],
        num_gpus=[12, 12],
        duration_s=[74, 74 + 2 * 86400 + 5 * 3600 + 39 * 60 + 42],
        queue=["other", "ee9e8c"],
        user=["ce2f4c", "ce2f4c"],
    )
    assert (found.trace.name, found.rows) == ("cluster_job_log", 8)
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
    with refusal(words):
        PhillyJsonReader().read(table(tmp_path / "log", text))


@examples(40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(trace=traces(least=1))
def test_canonical_files_hold_the_trace(trace: Trace, tmp_path: Path) -> None:
    """CSV, CSV in gzip and Parquet are read to the same jobs in the same order."""
    paths = [tmp_path / name for name in ("t.csv", "t.csv.gz", "t.parquet", "foreign.parquet")]
    for path in paths[:2]:
        write_csv(trace, path)
    write_parquet(trace, paths[2])
    pl.read_parquet(paths[2]).write_parquet(paths[3])
    found = [CanonicalReader().read(path) for path in paths]
    ids = trace.job_id.tolist()
    key: Any = int if all(job.isascii() and job.isdigit() for job in ids) else str
    expected = sorted(trace, key=lambda job: (job.submit_s, key(job.job_id)))
    columns = {k: [getattr(job, k) for job in expected] for k in ("job_id", *NUMBERS, *LABELS)}
    columns["submit_s"] = [job.submit_s - trace.submit_s[0] for job in expected]
    for read in found:
        assert (read.origin_s, read.num_rejected) == (trace.submit_s[0], 0)
        holds(read.trace, **columns)
    assert (found[0].trace.name, found[2].trace.name) == ("t", trace.name)


def test_jobs_without_gpu_are_read_back(tmp_path: Path) -> None:
    trace = Trace.of("t", [0, 1], [5, 5], [0, 4])
    write_parquet(trace, tmp_path / "t.parquet")
    write_csv(trace, tmp_path / "t.csv")
    for name in ("t.parquet", "t.csv"):
        holds(CanonicalReader().read(tmp_path / name).trace, num_gpus=[0, 4])


@pytest.mark.parametrize("job", ["", " a"])
def test_what_would_not_be_read_back_is_not_written(job: str, tmp_path: Path) -> None:
    with refusal("read back"):
        write_csv(Trace.of("t", [0], [5], [1], job_id=[job]), tmp_path / "t.csv")
    assert not list(tmp_path.iterdir())
