"""What each format's columns become; rows made by hand after the published descriptions."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, example, given
from random_traces import holds, left_out, refuses_the_second, table, traces

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
from envs.cluster.workload.trace import Trace
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
OF_PAI = """\
job_id submit_s num_gpus gpu_milli cpu_milli gpu_type
2      0        1        1000      6000      MISC
3      0        1        250       6000      T4
4      4        6        1000      54000     V100"""
NOT_OF_PAI = [
    "no job: 1 from row 1 (line 2): num_gpu is zero: a job without GPU",
    "no job: 2 from row 2 (line 3): num_gpu is a fraction of several GPUs",
    "no job: 1 from row 7 (line 8): duration is zero: the job never ran",
]
OPENB = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,\
scheduled_time
p-2,4000,8192,1,460,V100M16|V100M32,LS,Running,120,400,150
p-1,12000,16384,2,1000,,LS,Succeeded,100,200,110
p-0,500,0,0,0,G2,BE,Failed,120,121,120
p-3,500,0,1,1000,,BE,Pending,90,300,"""
PHILLY = "timestamp,duration,num_gpus,gpu_time,cluster" + "\n2017-08-09 06:13:03,5.0,1,5.0,b" * 12
READ: dict[str, tuple[TraceReader, str, str, int, list[str]]] = {
    # reader, text; the jobs, second 0, what is left out
    "itp": (  # sorts ids as texts
        ItpReader(), "job_id,submission_time,duration,num_gpu\n10,9,1,1\n9,9,2,1\n1,8,3,1",
        "job_id submit_s duration_s\n 1 0 3\n 10 1 1\n 9 1 2", 8, [],
    ),
    "philly": (  # rows are numbered
        PhillyReader(), f"{PHILLY}\n2017-08-08 06:13:03,5,2,10,a",
        "\n".join(["job_id submit_s queue", "12 0 a", *(f"{row} 86400 b" for row in range(12))]),
        1502172783, [],  # 2017-08-08 06:13:03
    ),
    "helios": (  # ids as numbers
        HeliosReader(), HELIOS,
        """job_id submit_s duration_s num_gpus cpu_milli user queue gpu_milli
           999    0        36848      1        1000      u1   vcA   1000
           1000   0        249        4        16000     u2   vcB   1000""",
        1591728087,
        [
            "no job: 1 from row 3 (line 4): gpu_num is zero: a job without GPU",
            "no job: 1 from row 4 (line 5): duration is zero: the job never ran",
        ],
    ),
    "acme": (  # times have offsets
        AcmeReader(), ACME,
        """job_id submit_s num_gpus cpu_milli
           dlcB   0        64       960000
           dlcA   1        8        128000""",
        1684321258, ["no job: 1 from row 3 (line 4): gpu_num is zero: a job without GPU"],
    ),
    "pai": (PaiReader(10), PAI, OF_PAI, 5, NOT_OF_PAI),
    "pai_sample": (PaiReader(1000), IN_GPUS, OF_PAI, 5, NOT_OF_PAI),
    "openb": (
        OpenbReader(), OPENB,
        """job_id submit_s duration_s num_gpus gpu_milli cpu_milli memory_mib gpu_type
           p-1    0        90         2        1000      12000     16384      None
           p-0    20       1          0        1000      500       0          None
           p-2    20       250        1        460       4000      8192       V100M16|V100M32""",
        100, ["no job: 1 from row 4 (line 5): scheduled_time was never scheduled"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_what_columns_become(name: str, tmp_path: Path) -> None:
    reader, text, jobs, origin_s, rejected = READ[name]
    path = tmp_path / f"{name}.csv.gz"
    path.write_bytes(gzip.compress(text.encode()))
    found = reader.read(path)
    holds(found.trace, jobs)
    assert (found.trace.name, found.origin_s, left_out(found)) == (name, origin_s, rejected)
    assert found.rows == text.count("\n") == len(found.trace) + found.num_rejected


@pytest.mark.parametrize("strict", [True, False])
def test_pai_in_the_other_unit_is_refused(strict: bool, tmp_path: Path) -> None:
    for milli, text, message in (
        (10, IN_GPUS, "'0.25'.*pai_sample"),
        (1000, PAI, "'25'.*format pai"),
    ):
        with refusal(f"row 2 .line 3.*{message}"):
            PaiReader(milli).read(table(tmp_path / "pai.csv", text), strict)


def attempt(start: str | None, end: str | None, *gpus: int) -> dict[str, Any]:
    detail = [{"ip": f"m{i}", "gpus": [f"gpu{g}" for g in range(n)]} for i, n in enumerate(gpus)]
    return {"start_time": start, "end_time": end, "detail": detail}


FIRST = attempt("2017-10-07 01:12:09", "2017-10-07 01:13:23", 8, 4)
SECOND = attempt("2017-10-07 01:13:30", "2017-10-09 06:53:12", 8)


def entry(job: str, *attempts: dict[str, Any], **edits: Any) -> dict[str, Any]:
    whole = {
        "status": "Pass", "vc": "ee9e8c", "jobid": job, "user": "ce2f4c",
        "submitted_time": "2017-10-07 01:11:39", "attempts": attempts,
    }  # fmt: skip
    return whole | edits


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
    second_s = 2 * 86400 + 5 * 3600 + 39 * 60 + 42
    holds(
        found.trace,
        f"""job_id        submit_s num_gpus duration_s      queue  user
            application_1 0        12       74              other  ce2f4c
            application_2 1        12       {74 + second_s} ee9e8c ce2f4c""",
    )
    assert (found.trace.name, found.rows) == ("cluster_job_log", 8)
    assert left_out(found) == [
        "no job: 1 from entry 3: attempts is empty: the job never ran",
        "no job: 1 from entry 4: end_time of an attempt is not recorded",
        "no job: 1 from entry 5: start_time of an attempt is not recorded",
        "no job: 1 from entry 6: gpus is empty: a job without GPU",
        "no job: 1 from entry 7: attempts took no second: the job never ran",
        "no job: 1 from entry 8: submitted_time is not recorded",
    ]


SOUND = entry("b", FIRST)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("text", "is no object"),
        (SOUND | {"jobid": "a"}, "field 'jobid': 'a' stands twice"),
        (SOUND | {"jobid": ""}, "field 'jobid': is missing"),
        (SOUND | {"submitted_time": "yesterday"}, "field 'submitted_time': is no time"),
        (SOUND | {"submitted_time": "2017-10-07"}, "field 'submitted_time': is no time"),
        (SOUND | {"submitted_time": [7]}, "field 'submitted_time': is no time"),
        (SOUND | {"attempts": None}, "field 'attempts': is no list"),
        (entry("b", FIRST | {"detail": 5}), "field 'detail': is no list"),
        (entry("b", FIRST | {"detail": [{}]}), "field 'gpus': is no list"),
        (entry("b", FIRST | {"end_time": "2017-10-07 01:12:08"}), "field 'end_time': .*before"),
    ],
)
def test_a_faulty_entry(bad: object, message: str, tmp_path: Path) -> None:
    path = table(tmp_path / "log", json.dumps([entry("a", FIRST), bad]))
    refuses_the_second(PhillyJsonReader(), path, f"^{path}: record entry 2: {message}")


@pytest.mark.parametrize(
    ("text", "words"),
    [("", "line 1.*not JSON"), ("[\n{]", "line 2"), ("{}", "no list"), ("[]", "no job")],
)
def test_a_log_that_is_none(text: str, words: str, tmp_path: Path) -> None:
    with refusal(words):
        PhillyJsonReader().read(table(tmp_path / "log", text))


@examples(40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(trace=traces(least=1))
@example(trace=Trace.of("without GPU", [0, 1], [5, 5], [0, 4]))
def test_canonical_files_hold_the_trace(trace: Trace, tmp_path: Path) -> None:
    """CSV, CSV in gzip and Parquet are read to the same jobs in the same order."""
    for name in ("t.csv", "t.csv.gz"):
        write_csv(trace, tmp_path / name)
    write_parquet(trace, tmp_path / "t.parquet")
    pl.read_parquet(tmp_path / "t.parquet").write_parquet(tmp_path / "foreign.parquet")
    numbers = all(job.job_id.isascii() and job.job_id.isdigit() for job in trace)
    key: Any = int if numbers else str
    by_time = sorted(trace, key=lambda job: (job.submit_s, key(job.job_id)))
    first = trace[0].submit_s
    expected = [replace(job, submit_s=job.submit_s - first) for job in by_time]
    names = {"t.csv": "t", "t.csv.gz": "t", "t.parquet": trace.name, "foreign.parquet": "foreign"}
    for file, name in names.items():
        found = CanonicalReader().read(tmp_path / file)
        assert (found.trace.name, found.origin_s, found.num_rejected) == (name, first, 0)
        assert list(found.trace) == expected


@pytest.mark.parametrize("job", ["", " a"])
def test_what_would_not_be_read_back_is_not_written(job: str, tmp_path: Path) -> None:
    with refusal("read back"):
        write_csv(Trace.of("t", [0], [5], [1], job_id=[job]), tmp_path / "t.csv")
    assert not list(tmp_path.iterdir())
