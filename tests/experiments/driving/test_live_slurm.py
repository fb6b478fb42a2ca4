"""A real Slurm of many nodes on this machine, driven; skipped where there is none, or no root."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
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


SQUEUE = "squeue", "--all", "--noheader", "--states=all", "--format=%T"


def nodes_wanted() -> int:
    return 64 if at_full_strength() else 8


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[LocalSlurm]:
    with LocalSlurm(tmp_path / "slurm", nodes_wanted()) as made:
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


def test_kills_of_driver_and_controller(tmp_path: Path) -> None:
    """Every job ends and none begins twice, whoever is killed when, and Slurm says so in the end.

    What was submitted in the last seconds of a killed controller is lost, and submitted again.
    """
    rng, jobs, kills = random.Random(os.getpid()), trials(200, 8), trials(20, 2)
    of_controller = rng.sample([True, False] * (kills // 2), kills)
    asked = {f"job{n}": (rng.choice([1, 2, 4, 8, 16]), rng.uniform(0.3, 4)) for n in range(jobs)}
    states, killed, submitted = dict[str, str](), 0, 0
    with LocalSlurm(
        tmp_path / "slurm", nodes_wanted(), settings=["MinJobAge=3600"], once=True
    ) as machine:
        machine.slurm.find_record()
        driver, begun = driven(machine, tmp_path), time.monotonic()
        next_kill = begun + 4.0
        while killed < kills or asked.keys() != states.keys() or {*states.values()} != {"OVER"}:
            assert time.monotonic() - begun < 60 + 12 * (jobs // 8 + kills)
            with suppress(SlurmError):
                states = {job.label: job.state for job in machine.slurm.jobs()}
                for name in [name for name in asked if name not in states][:8]:
                    machine.submit(name, *asked[name])
                    submitted += 1
            if killed < kills and time.monotonic() > next_kill:
                if of_controller[killed]:
                    machine.kill_controller()
                    time.sleep(rng.random())
                    machine.start_controller()
                else:
                    driver.kill()
                    driver.wait()
                    driver = driven(machine, tmp_path)
                killed, states = killed + 1, {}
                next_kill = time.monotonic() + rng.uniform(0.0, 10.0)
            time.sleep(0.1)
        seconds, said = time.monotonic() - begun, machine.slurm.call(*SQUEUE).decode().split()
        (tmp_path / "stop").touch()
        assert driver.wait(30) == 0
        last = {run.job: run.state for run in machine.slurm.runs()}
    print(f"{jobs} jobs, {submitted} submissions in {seconds:.0f} s, load {os.getloadavg()[0]:.1f}")
    assert said == jobs * ["COMPLETED"]
    assert [*last.values()] == jobs * ["COMPLETED"]
    for name, (_, work_s) in asked.items():
        assert len(machine.slept(name)) == 1, name
        assert slept_s(machine, name) > work_s - 0.01, name


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
