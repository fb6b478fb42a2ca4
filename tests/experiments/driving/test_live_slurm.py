"""A real Slurm of many nodes on this machine, driven; skipped where there is none, or no root."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from envs.cluster.slurm.commands import SlurmError
from envs.cluster.slurm.machine import LocalSlurm, missing_programs
from tests.paths import ROOT
from tests.strength import at_full_strength, trials

pytestmark = [
    pytest.mark.skipif(bool(missing_programs()), reason="Slurm is not installed"),
    pytest.mark.skipif(os.geteuid() != 0, reason="GPUs that are none can only be made by root"),
]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[LocalSlurm]:
    with LocalSlurm(tmp_path / "slurm", nodes=64 if at_full_strength() else 8) as made:
        made.slurm.find_record()
        yield made


def driven(machine: LocalSlurm, folder: Path) -> subprocess.Popen[bytes]:
    words = [str(machine.config), str(folder / "audit.jsonl"), str(folder / "stop")]
    script = Path(__file__).with_name("driver_process.py")
    return subprocess.Popen(
        [sys.executable, str(script), *words], cwd=ROOT, stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def ended(machine: LocalSlurm) -> set[str]:
    return {run.job for run in machine.slurm.runs() if run.state == "COMPLETED"}


def slept_s(machine: LocalSlurm, name: str) -> float:
    return sum(end - start for start, end in machine.slept(name))


def test_kills_of_driver_and_controller(machine: LocalSlurm, tmp_path: Path) -> None:
    """All work is done, and none twice, whoever is killed when.

    A controller that is killed may forget that a job began, and begin it again, or that it ended,
    and list it as running. The driver does not know of it; the job's script does, and goes on where
    it was.
    """
    rng, jobs, kills = random.Random(os.getpid()), trials(200, 8), trials(20, 2)
    of_controller = rng.sample([True, False] * (kills // 2), kills)
    driver, submitted, begun = driven(machine, tmp_path), dict[str, float](), time.monotonic()
    killed, next_kill = 0, time.monotonic() + 4.0
    while (
        killed < kills
        or len(submitted) < jobs
        or not all(slept_s(machine, name) > seconds - 0.01 for name, seconds in submitted.items())
    ):
        assert time.monotonic() - begun < 60 + 6 * (jobs // 8 + kills)
        try:
            if len(submitted) < jobs:
                gpus, seconds = rng.choice([1, 2, 4, 8, 16]), rng.uniform(0.3, 4.0)
                name = f"job{len(submitted)}"
                submitted[name] = seconds
                machine.submit(name, gpus, seconds)
        except SlurmError:
            del submitted[name]
        if killed < kills and time.monotonic() > next_kill:
            killed += 1
            if of_controller[killed - 1]:
                time.sleep(6.0)  # what Slurm was told before is in its files by then
                machine.kill_controller()
                time.sleep(rng.random())
                machine.start_controller()
            else:
                driver.kill()
                driver.wait()
                driver = driven(machine, tmp_path)
            next_kill = time.monotonic() + rng.uniform(0.0, 4.0)
        time.sleep(0.1)
    (tmp_path / "stop").touch()
    assert driver.wait(30) == 0
    again = 0
    for name, seconds in submitted.items():
        spans = machine.slept(name)
        again += len(spans) > 1
        assert all(before[1] <= after[0] for before, after in pairwise(spans)), name
        assert slept_s(machine, name) < seconds + 0.5, name
    print("begun again by Slurm:", again)


def test_a_decision_is_applied_within_a_second(machine: LocalSlurm, tmp_path: Path) -> None:
    driver = driven(machine, tmp_path)
    audit = tmp_path / "audit.jsonl"
    while not audit.exists() or "decided" not in audit.read_text():
        time.sleep(0.2)
    sent = dict[str, float]()
    for number in range(trials(50, 4)):
        sent[machine.submit(f"job{number}", 1, 0.5)] = time.time()
        time.sleep(0.3)
    while len(ended(machine)) < len(sent):
        time.sleep(0.2)
    (tmp_path / "stop").touch()
    assert driver.wait(30) == 0
    rows = [json.loads(line) for line in audit.read_text().splitlines()]
    done = {row["job"]: row["time"] for row in rows if row["event"] == "done"}
    late = sorted(done[job] - at for job, at in sent.items())
    print("applied after", late[len(late) // 2], late[-1])
    assert late[int(0.99 * (len(late) - 1))] < 1.0


def test_hostile_states(machine: LocalSlurm, tmp_path: Path) -> None:
    """Drained and dead nodes, a job larger than the cluster, an array: the rest goes on."""
    slurm = machine.slurm
    slurm.call("scontrol", "update", "NodeName=n0", "State=DRAIN", "Reason=test")
    slurm.call("scontrol", "update", "NodeName=n1", "State=DOWN", "Reason=test")
    machine.submit("job0", 8, 0.5)
    script = b"#!/bin/bash\nsleep 0.3\n"
    slurm.call("sbatch", "--hold", "--array=0-3%2", "--gres=gpu:4", "-o/dev/null", stdin=script)
    lost = machine.submit("lost", 8 * machine.nodes, 0.5)  # two of its nodes are not there
    driver = driven(machine, tmp_path)
    begun = time.monotonic()
    while len(ended(machine)) < 5 and time.monotonic() - begun < 40:
        time.sleep(0.2)
    assert len(ended(machine)) == 5
    (waits,) = [job for job in slurm.jobs() if job.name == lost]
    assert waits.state == "PENDING"
    slurm.call("scontrol", "update", "NodeName=n[0-1]", "State=RESUME")
    while lost not in ended(machine) and time.monotonic() - begun < 60:
        time.sleep(0.2)
    (tmp_path / "stop").touch()
    assert driver.wait(30) == 0
    assert lost in ended(machine)


def test_with_it_end_its_jobs(tmp_path: Path) -> None:
    with LocalSlurm(tmp_path / "slurm", nodes=1) as machine:
        machine.submit("job", 1, 600.0, held=False)
        begun = time.monotonic()
        while machine.slurm.jobs()[0].state != "RUNNING":
            assert time.monotonic() - begun < 30
            time.sleep(0.1)
        time.sleep(1.0)
    assert len(machine.slept("job")) == 1  # it has written down that it was stopped
