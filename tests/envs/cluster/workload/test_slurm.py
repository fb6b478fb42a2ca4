"""Slurm's logs: lines as Slurm 22.05 wrote them, newer forms by hand, and all forms at random."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from random_traces import holds, jobs_of, left_out, refuses_the_second, table

from envs.cluster.workload.readers.slurm import SlurmReader
from tests.refusal import refusal
from tests.strength import examples

SACCT = """\
JobID|JobName|User|Partition|State|Submit|Start|End|ElapsedRaw|AllocTRES|ReqTRES|TimelimitRaw
3|gang "x"|ann|main|COMPLETED|2026-11-28T20:16:53|2026-11-28T20:16:59|2026-11-28T20:17:04|5|\
billing=2,cpu=2,gres/gpu:v100=8,gres/gpu=8,node=2|cpu=2,gres/gpu=8,mem=1000M,node=2|60
3.batch|batch|||COMPLETED|2026-11-28T20:16:59|2026-11-28T20:16:59|2026-11-28T20:17:04|5|\
cpu=1,gres/gpu:v100=4,gres/gpu=4,mem=0,node=1||
5|cpu|ann|main|COMPLETED|2026-11-28T20:16:53|2026-11-28T20:17:05|2026-11-28T20:17:07|2|\
billing=1,cpu=1,node=1|billing=1,cpu=1,mem=1000M,node=1|60
8|moved|bob|main|REQUEUED|2026-11-28T20:16:53|2026-11-28T20:17:05|2026-11-28T20:17:08|3|\
cpu=1,gres/gpu:v100=1,mem=1.50G|cpu=1,gres/gpu:v100=1,mem=1.50G,node=1|60
4_0|arr|ann|main|FAILED|2026-11-28T20:16:53|2026-11-28T20:17:05|2026-11-28T20:17:07|2|\
cpu=1,gres/gpu=1|cpu=1,gres/gpu=1,mem=1000M|5
11|again|ann|main|REQUEUED|2026-11-28T20:17:08|2026-11-28T20:17:11|2026-11-28T20:17:12|1|\
cpu=1,gres/gpu=1|cpu=1,gres/gpu=1|60
8|moved|bob|main|CANCELLED by 0|2026-11-28T20:17:12|2026-11-28T20:18:00|2026-11-28T20:19:00|40|\
cpu=1,gres/gpu:v100=1|cpu=1,gres/gpu:v100=1,node=1|Partition_Limit
12|long|ann|main|RUNNING|2026-11-28T20:17:13|2026-11-28T20:17:14|Unknown|20|gres/gpu=3|gres/gpu=3|30
13|early|ann|main|CANCELLED by 0|2026-11-28T20:17:13|None|2026-11-28T20:22:36|0||gres/gpu=8|30
14_[5-9%2]|arr|ann|main|PENDING|2026-11-28T20:17:13|Unknown|Unknown|0||gres/gpu=8|30"""
READ = """job_id submit_s duration_s num_gpus cpu_milli memory_mib user queue gpu_type
          3      0        5          8        2000      1000       ann  main  None
          4_0    0        2          1        1000      1000       ann  main  None
          8      0        43         1        1000      1536       bob  main  v100"""


def test_the_table_of_sacct(tmp_path: Path) -> None:
    path = table(tmp_path / "sacct.txt", SACCT)
    found = SlurmReader().read(path)
    holds(found.trace, READ)
    assert found.origin_s == datetime(2026, 11, 28, 20, 16, 53, tzinfo=UTC).timestamp()
    assert left_out(found) == [
        "no job: 1 from row 2 (line 3): JobID is a step of a job",
        "no job: 1 from row 3 (line 4): AllocTRES names no gres/gpu: a job without GPU",
        "no job: 3 from row 6 (line 7): State is of a job that had not ended",
        "no job: 1 from row 7 (line 8): JobID is a further attempt, added to the first",
        "no job: 1 from row 9 (line 10): Start is none: it never ran",
    ]
    assert found.rows == len(found.trace) + found.num_rejected == 10


def number(value: int | None) -> dict[str, Any]:
    """As data_parser writes it."""
    return {"set": value is not None, "infinite": False, "number": value or 0}


SQUEUE = {
    "job_id": 9, "array_job_id": number(4), "array_task_id": number(0), "user_name": "ann",
    "partition": "main", "job_state": ["COMPLETED", "COMPLETING"], "submit_time": number(113),
    "start_time": number(125), "end_time": number(127), "tres_req_str": "cpu=1,mem=2G,gres/gpu=1",
    "tres_alloc_str": "cpu=2,gres/gpu:a100=1,gres/gpu=1", "time_limit": number(5),
}  # fmt: skip
OLD_SQUEUE = {
    "job_id": 7, "array_job_id": 0, "array_task_id": None, "user_name": "ann", "partition": "main",
    "job_state": "CANCELLED", "submit_time": 113, "start_time": 121, "end_time": 121,
    "tres_req_str": "gres/gpu=1", "tres_alloc_str": "",
}  # fmt: skip


def test_the_queue(tmp_path: Path) -> None:
    running = {"job_id": 8, "array_job_id": number(0), "job_state": ["RUNNING"]}
    waiting = {"job_id": 10, "array_task_id": {}, "job_state": ["NODE_FAIL", "REQUEUED"]}
    jobs = [SQUEUE, OLD_SQUEUE, SQUEUE | running, SQUEUE | waiting]
    found = SlurmReader().read(table(tmp_path / "squeue.json", json.dumps({"jobs": jobs})))
    holds(
        found.trace,
        """job_id submit_s duration_s num_gpus cpu_milli memory_mib user gpu_type
           4_0    0        2          1        2000      2048       ann  None""",
    )
    assert left_out(found) == [
        "no job: 1 from entry 2: end_time leaves no time: the job never ran",
        "no job: 2 from entry 3: job_state is of a job that had not ended",
    ]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"submit_time": number(None)}, "entry 2: field 'submit_time': is missing"),
        ({"submit_time": 0}, "entry 2: field 'submit_time': '0' is zero"),
        ({"start_time": 128}, "entry 2: field 'end_time': '127' is before start_time"),
        ({"tres_alloc_str": "gres/gpu=x"}, "field 'tres_alloc_str': 'gres/gpu=x' is unclear"),
        ({"tres_alloc_str": "gres/gpu=99999999999"}, "field 'tres_alloc_str': .* is too large"),
        ({"job_id": None, "array_job_id": 0}, "entry 2: field 'job_id': is missing"),
        ({"user_name": "a\x1fb"}, "field 'user': .*control character"),
    ],
)
def test_faults_in_json(edit: dict[str, Any], message: str, tmp_path: Path) -> None:
    second = SQUEUE | {"array_task_id": number(1)} | edit
    path = table(tmp_path / "squeue.json", json.dumps({"jobs": [SQUEUE, second]}))
    refuses_the_second(SlurmReader(), path, message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "no list 'jobs'"),
        ('{"jobs": []}', "no row"),
        ('{"jobs": [7]}', "entry 1: field 'submit_time': is missing"),
        ("JobID|Start\n1|2", "header: field 'Submit': is missing .*; sacct -D -P -o JobID,User"),
        ("JobID|Submit|Start|End\n1|2|3|4", "header: field 'AllocTRES': is missing"),
        ("JobId=1 UserId=a(7) Name=SubmitTime=5 JobState=x", "line 1: field 'SubmitTime': is miss"),
    ],
)
def test_files_that_are_none(text: str, message: str, tmp_path: Path) -> None:
    with refusal(message):
        SlurmReader().read(table(tmp_path / "log", text))


Row = dict[str, Any]  # an attempt at a job: what `sacct -P` has, with numbers for times
LINE = (
    "JobId={raw} UserId={User}(7) GroupId=g(7) Name=a Partition=b JobState={State} "
    "Partition={Partition} TimeLimit=60 StartTime={Start} EndTime={End} NodeList=n[0-1] NodeCnt=2 "
    "ProcCnt=1 WorkDir=/a b ReservationName= Tres={req} Account=x SubmitTime={Submit} "
    "EligibleTime=unknown{array} ExitCode=0:0 "
)


@st.composite
def attempts(draw: st.DrawFn) -> list[Row]:
    """The attempts at a few jobs, in the order in which they were submitted."""
    rows: list[Row] = []
    for job in range(draw(st.integers(1, 5))):
        task, kind = draw(st.sampled_from([None, 0, 7])), draw(st.sampled_from(["", "a100", "1g"]))
        gpus, cpus, memory = (draw(st.integers(least, 9000)) for least in (1, 1, 0))
        user, partition = draw(st.sampled_from(["ann", "bob"])), draw(st.sampled_from(["p", "q"]))
        runs = draw(st.lists(st.integers(1, 10**6), min_size=1, max_size=3))
        submit = draw(st.integers(10**9, 2 * 10**9))
        amount = f"{memory // 1024}G" if memory % 1024 == 0 else f"{memory}M"
        req = f"cpu={cpus},mem={amount},node=1,billing=9,gres/gpu={gpus}"
        for attempt, run in enumerate(runs):
            wait = draw(st.integers(0, 10**6))
            rows.append({
                "job": job, "raw": 10 + job, "task": task, "User": user, "Partition": partition,
                "JobID": 10 + job if task is None else f"{10 + job}_{task}",
                "State": "COMPLETED" if attempt == len(runs) - 1 else "REQUEUED",
                "Submit": submit, "Start": submit + wait, "End": submit + wait + run,
                "ElapsedRaw": run, "req": req + f",gres/gpu:{kind}={gpus}" * bool(kind),
                "alloc": f"cpu={cpus},energy=,gres/gpu:v100={gpus}", "gpus": gpus, "kind": kind,
                "cpus": cpus, "memory": memory,
            })  # fmt: skip
            submit += wait + run + 1
    return sorted(rows, key=lambda row: row["Submit"])


def clock(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def as_table(rows: list[Row], time: Callable[[int], object], elapsed: bool) -> str:
    names = ["JobID", "User", "Partition", "State", "Submit", "Start", "End"]
    lines = ["|".join(names + ["AllocTRES", "ReqTRES"] + ["ElapsedRaw"] * elapsed)]
    for row in rows:
        cells = [time(row[x]) if x in ("Submit", "Start", "End") else row[x] for x in names]
        cells += [row["alloc"], row["req"], *[row["ElapsedRaw"]] * elapsed]
        lines.append("|".join(map(str, cells)))
    return "\n".join(lines)


def as_lines(rows: list[Row]) -> str:
    """jobcomp/filetxt, for which a job that is requeued is PENDING."""
    lines = []
    for row in rows:
        times = {name: clock(row[name]) for name in ("Submit", "Start", "End")}
        state = row["State"].replace("REQUEUED", "PENDING")
        task = row["task"]
        array = "" if task is None else f" ArrayJobId={row['raw']} ArrayTaskId={task}"
        lines.append(LINE.format(**row | times | {"State": state, "array": array}))
    return "\n".join([*lines, ""])


def as_json(rows: list[Row], new: bool, squeue: bool = False) -> str:
    """Of sacct (before 22.05.1 with the eligible time as that of the start) or of squeue."""

    def resources(text: str) -> list[dict[str, Any]]:
        found = []
        for name, _, count in (part.partition("=") for part in text.split(",")):
            kind, _, rest = name.partition("/")
            scale = 1024 if count.endswith("G") else 1
            whole = scale * int(count.rstrip("GM")) if count else None
            found.append({"type": kind, "name": rest or None, "id": 1, "count": whole})
        return found

    def entry(row: Row) -> dict[str, Any]:
        state = [row["State"]] if new else row["State"]
        task = number(row["task"]) if new else row["task"]
        array, at = 0 if row["task"] is None else row["raw"], number if new and squeue else int
        same = {"job_id": row["raw"], "partition": row["Partition"]}
        if squeue:
            return same | {
                "array_job_id": at(array), "array_task_id": task, "user_name": row["User"],
                "job_state": state, "submit_time": at(row["Submit"]), "end_time": at(row["End"]),
                "start_time": at(row["Start"]), "tres_alloc_str": row["alloc"],
                "tres_req_str": row["req"],
            }  # fmt: skip
        start = row["Start"] if new else row["Submit"]
        return same | {
            "array": {"job_id": array, "task_id": task}, "user": row["User"],
            "state": {"current": state, "reason": "None"}, "steps": [{"state": "FAILED"}],
            "time": {
                "submission": row["Submit"], "start": start, "end": row["End"],
                "elapsed": row["ElapsedRaw"], "limit": number(60),
            },
            "tres": {"allocated": resources(row["alloc"]), "requested": resources(row["req"])},
        }  # fmt: skip

    return json.dumps({"meta": {}, "errors": [], "jobs": [entry(row) for row in rows]})


@examples(40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=attempts())
def test_every_form_says_the_same(rows: list[Row], tmp_path: Path) -> None:
    jobs: dict[str, list[Row]] = {}
    for row in rows:
        jobs.setdefault(str(row["JobID"]), []).append(row)
    firsts = {job: tries[0] for job, tries in jobs.items()}
    first = min(row["Submit"] for row in rows)
    expected = {
        f"{job} {row['Submit'] - first} {sum(x['ElapsedRaw'] for x in jobs[job])} {row['gpus']} "
        f"{1000 * row['cpus']} {row['memory']} {row['User']} {row['Partition']} "
        f"{row['kind'] or None}"
        for job, row in firsts.items()
    }
    texts = (
        as_table(rows, clock, True), as_table(rows, clock, False), as_table(rows, int, True),
        as_table(rows, lambda x: f"{clock(x + 3600)}+0100", True), as_lines(rows),
        *(as_json(rows, new, squeue) for new in (False, True) for squeue in (False, True)),
    )  # fmt: skip
    fields = "job_id submit_s duration_s num_gpus cpu_milli memory_mib user queue gpu_type"
    for text in texts:
        found = SlurmReader().read(table(tmp_path / "log", text))
        assert set(jobs_of(found.trace, fields)) == expected
        assert found.rows == len(rows) == len(found.trace) + found.num_rejected
        assert found.origin_s == first
