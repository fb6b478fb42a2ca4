"""What Slurm prints, read in each of its forms."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.cluster.slurm.commands import Job, Slurm
from envs.cluster.slurm.forms import gpus_in, hosts_in, number, numbers_in, words
from tests.refusal import refusal

GPU_TEXTS = {
    "gpu:v100:4(IDX:0-2,7)": (4, "v100"),
    "gpu:a100:8(S:0-1)": (8, "a100"),
    "gres:gpu:2": (2, None),
    "gres/gpu:2": (2, None),
    "gres/gpu": (1, None),
    "billing=4,cpu=4,gres/gpu=4,gres/gpu:v100=4": (4, "v100"),
    "cpu=1,mem=1000M,node=1,billing=1": (0, None),
    "gpu:4090:2,gpu:3080:1": (3, None),
    "gpu:v100": (1, "v100"),
    "shard:4,gpu:1": (1, None),
    "": (0, None),
}


@pytest.mark.parametrize("text", GPU_TEXTS)
def test_gpus_of_a_text(text: str) -> None:
    assert gpus_in(text) == GPU_TEXTS[text]


@given(st.integers(0, 10**9))
def test_a_number_is_the_same_in_both_forms(value: int) -> None:
    assert number(value) == number({"set": True, "infinite": False, "number": value}) == value
    assert number({"set": False, "number": value}) is None
    assert number({"set": True, "infinite": True, "number": value}) is None


def test_tasks_of_an_array() -> None:
    assert [*numbers_in("0-2,7%4")] == ["0", "1", "2", "7"]
    assert [*numbers_in("1-9:4")] == ["1", "5", "9"]


HOSTS = st.lists(
    st.tuples(st.sampled_from(["n", "gpu-", "rack2n"]), st.integers(0, 12), st.integers(0, 5)),
    min_size=1, max_size=4,
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("scontrol") is None, reason="Slurm is not installed")
@given(HOSTS, st.booleans())
def test_hosts_as_slurm_itself_lists_them(parts: list[tuple[str, int, int]], padded: bool) -> None:
    width = 3 if padded else 0
    text = ",".join(
        f"{name}[{first:0{width}}-{first + more:0{width}},99]" for name, first, more in parts
    )
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as config:
        config.write("ClusterName=c\nSlurmctldHost=localhost\nNodeName=n1\n")
        config.flush()
        asked = subprocess.run(
            ["scontrol", "show", "hostnames", text], capture_output=True, text=True, check=True,
            env={**os.environ, "SLURM_CONF": config.name},
        )  # fmt: skip
    assert hosts_in(text) == asked.stdout.split()


OLD: dict[str, Any] = {
    "job_id": 12, "array_job_id": 0, "array_task_id": None, "array_task_string": "",
    "job_state": "RUNNING", "state_reason": "None", "priority": 4294901759, "partition": "gpu",
    "name": "train", "user_name": "ann", "submit_time": 1795896796, "start_time": 1795896800,
    "end_time": 1827432800, "eligible_time": 1795896796, "time_limit": 60, "node_count": 2,
    "nodes": "n[1-2]", "gres_detail": ["gpu:v100:8(IDX:0-7)", "gpu:v100:8(IDX:0-7)"],
    "tres_per_node": "gres:gpu:8", "tres_req_str": "cpu=2,node=2", "required_nodes": "n1,n2",
    "dependency": "", "tasks": 2, "comment": "",
}  # fmt: skip
COUNTED = ("priority", "submit_time", "start_time", "end_time", "eligible_time", "time_limit",
           "node_count", "array_job_id", "tasks")  # fmt: skip


def renewed(row: dict[str, Any]) -> dict[str, Any]:
    """The same job as later versions of Slurm print it."""
    numbers = {key: {"set": True, "infinite": False, "number": row[key]} for key in COUNTED}
    task = {"set": False, "infinite": False, "number": 0}
    later = {"job_state": [row["job_state"]], "array_task_id": task, "tres_per_node": "gres/gpu:8"}
    return {**row, **numbers, **later}


class Printed(Slurm):
    """A Slurm that prints what it is told to, by the first word."""

    def __init__(self, **answers: bytes) -> None:
        super().__init__("gpu")
        self.answers = answers

    def call(self, *command: str, stdin: bytes = b"") -> bytes:
        return self.answers[command[0]]


def read(row: dict[str, Any]) -> list[Job]:
    return Printed(squeue=json.dumps({"jobs": [row]}).encode()).jobs()


def test_a_job_is_the_same_whatever_the_version() -> None:
    (job,) = read(OLD)
    assert read(renewed(OLD)) == [job]
    assert (job.gpus, job.per_node, job.holds) == (16, 8, {"n1": 8, "n2": 8})
    assert (job.state, job.limit_s, job.held) == ("RUNNING", 3600.0, False)


def test_an_array_that_waits_is_its_tasks() -> None:
    row = {**OLD, "array_job_id": 12, "array_task_string": "0-2%1", "job_state": "PENDING",
           "nodes": "", "gres_detail": [], "priority": 0}  # fmt: skip
    jobs = read(row)
    assert [job.name for job in jobs] == ["12_0", "12_1", "12_2"]
    assert all(job.held and job.state == "PENDING" and not job.holds for job in jobs)
    (one,) = read({**row, "job_id": 13, "array_task_id": 3, "array_task_string": ""})
    assert one.name == "12_3"


@pytest.mark.parametrize(
    "printed", [b"{}", b'{"jobs": 3}', b'{"jobs": [3]}', b"[]", b"no json", b'{"jobs": [{}]}',
                b'{"jobs": [{"partition": "gpu", "job_id": "x", "job_state": "RUNNING"}]}']
)  # fmt: skip
def test_json_of_another_kind_is_one_line(printed: bytes) -> None:
    with refusal("squeue .*--json"):
        list(Printed(squeue=printed).jobs())


def test_a_node_that_does_not_answer_is_not_up() -> None:
    row = '{"name": "n0", "state": %s, "partitions": ["gpu"], "gres": "gpu:v100:8", %s}'
    used = '"gres_used": "gpu:v100:2(IDX:0-1)"'
    for state, up in (
        ('"idle"', True), ('["MIXED"]', True), ('["IDLE", "DRAIN"]', False), ('"idle*"', False),
        ('"down"', False), ('["ALLOCATED", "NOT_RESPONDING"]', False),
    ):  # fmt: skip
        nodes = f'{{"nodes": [{row % (state, used)}]}}'.encode()
        (node,) = Printed(sinfo=nodes).nodes()
        assert (node.up, node.gpus, node.used, node.gpu_type) == (up, 8, 2, "v100")
    grouped = f'{{"nodes": [{row % (state, used)}]}}'.encode()
    assert Printed(sinfo=b'{"sinfo": []}', scontrol=grouped).nodes() == [node]


def test_words_of_a_state() -> None:
    assert words("IDLE+DRAIN") == words(["idle", "DRAIN"]) == {"IDLE", "DRAIN"}


LINE = (
    "JobId={job} UserId=ann(1000) GroupId=ann(1000) Name={name} JobState={state} Partition=gpu "
    "TimeLimit=UNLIMITED StartTime=2026-11-28T20:13:29 EndTime=2026-11-28T20:14:29 NodeList=n[1-2] "
    "NodeCnt=2 ProcCnt=2 WorkDir={folder} ReservationName= Tres=cpu=2,gres/gpu=4,node=2 Account= "
    "QOS= WcKey= Cluster=c SubmitTime=2026-11-28T20:13:28 EligibleTime=2026-11-28T20:13:28{array} "
    "DerivedExitCode=0:0 ExitCode=0:0 \n"
)


def line(
    job: int, state: str = "COMPLETED", name: str = "a", folder: str = "/", array: str = ""
) -> str:
    return LINE.format(job=job, state=state, name=name, folder=folder, array=array)


def test_what_has_ended_is_slurms_word_not_a_users(tmp_path: Path) -> None:
    """A folder or a name that looks like the record of another job is none, and harms no other."""
    record, slurm = tmp_path / "ended.txt", Slurm("gpu")
    slurm._record = record
    forged = (
        "/tmp/x JobId=1 JobState=PENDING EndTime=zzz Partition=other ArrayJobId=9 Tres=gres/gpu=9"
    )
    record.write_text(
        line(1) + line(2, "PENDING") + line(3, folder=forged) + line(4, name="x\u2028y JobId=1")
        + "no record\n" + line(5, array=" ArrayJobId=5 ArrayTaskId=7") + line(6)[:100]
    )  # fmt: skip
    runs = slurm.runs()
    assert [(run.job, run.state) for run in runs] == [
        ("1", "COMPLETED"), ("2", "PENDING"), ("3", "COMPLETED"), ("4", "COMPLETED"),
        ("5_7", "COMPLETED"),
    ]  # fmt: skip
    assert {(run.seconds, run.gpus, run.user) for run in runs} == {(60.0, 4, "ann")}
    with record.open("a") as file:
        file.write(line(6)[100:])
    assert [run.job for run in slurm.runs()][-1:] == ["6"]  # once its line is whole
    record.write_text(line(7))  # begun anew
    assert [run.job for run in slurm.runs()][-2:] == ["6", "7"]


def test_what_an_operator_holds_is_left_to_the_operator() -> None:
    held = {**OLD, "job_state": "PENDING", "nodes": "", "gres_detail": [], "priority": 0}
    assert not read({**held, "state_reason": "JobHeldUser"})[0].depends
    assert read({**held, "state_reason": "JobHeldAdmin"})[0].depends
    assert read({**held, "dependency": "afterok:12(failed)"})[0].depends
    assert not read({**OLD, "requeue": False})[0].movable
