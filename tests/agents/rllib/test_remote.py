"""Runners and learners as actors of a Ray cluster of two nodes, both on this machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch
from ray import cloudpickle
from ray.cluster_utils import Cluster

from agents.rllib.config import Learner
from envs.files import read_json
from experiments.learning.training import train_policies
from tests.agents.rllib.toys import (
    GOES_ON,
    TEAM,
    Guess,
    GuessEnv,
    rows_of,
    same_run,
    small_training,
    untrained,
)
from tests.refusal import refusal

pytestmark = [pytest.mark.slow, pytest.mark.proof]

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # actors cannot import a test
ROOT = Path(__file__).resolve().parents[3]


class SeededEnv(GuessEnv):
    def metrics(self) -> Mapping[str, float]:
        return {"right": float(self.resets[-1][0] % 4096)}  # sums are exact


@dataclass
class Seeded(Guess):
    """Its metric says which episodes were met, and a file which process an environment is in."""

    folder: Path | None = None

    def make_env(self, index: int) -> SeededEnv:
        if self.folder is not None:
            (self.folder / f"{index}.pid").write_text(str(os.getpid()))
        return SeededEnv(self)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Of a cluster of two nodes with two CPUs each."""
    nodes = {"num_cpus": 2, "object_store_memory": 100_000_000, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=nodes)
    try:
        cluster.add_node(**nodes)
        yield cluster.address
    finally:
        cluster.shutdown()


def learned(folder: Path, runners: int = 0, learners: int = 0, address: str | None = None) -> None:
    # 8 environments of 3 agents: 39 decisions of one module and 77 of the other, not 40 and 80
    training = small_training(
        {**GOES_ON, "target_kl": 0.02, "num_epochs": 3},
        learner=Learner(runners, learners, ray_address=address),
        max_steps=240,
    )
    train_policies(training, Seeded(TEAM), folder)


def refused(message: str, folder: Path, learner: Learner) -> str:
    """The field of the config that is named, in one line."""
    training = small_training({"num_envs": max(learner.num_env_runners, 1)}, learner=learner)
    with refusal(message) as found:
        train_policies(training, Guess(), folder)
    assert "\n" not in str(found.value)
    assert not ray.is_initialized()
    return str(found.value.field)


def test_actors_of_a_cluster_meet_the_episodes_of_one_process(address: str, tmp_path: Path) -> None:
    far, near = tmp_path / "far", tmp_path / "near"
    learned(far, 2, 2, address)
    assert not ray.is_initialized()
    learned(near)
    assert untrained(far) == untrained(near)
    for name in ("charts/global_step", "charts/episodes", "charts/right"):
        first, second = ([row[name] for row in rows_of(one)] for one in (far, near))
        assert first == second
    field = refused(r"ask for 50 CPUs, Ray has 4", tmp_path, Learner(50, ray_address=address))
    assert field == "learner.num_env_runners"


@pytest.mark.parametrize(
    ("runners", "learners", "beside"), [(1, 2, (1, 2)), (2, 0, (2, 0)), (2, 2, (2, 2)), (1, 0, ())]
)
def test_actors_learn_the_same_twice_and_one_runner_what_this_process_does(
    runners: int, learners: int, beside: tuple[int, ...], address: str, tmp_path: Path
) -> None:
    learned(tmp_path / "far", runners, learners, address)
    learned(tmp_path / "other", *beside, **{"address": address} if beside else {})
    same_run(tmp_path / "far", tmp_path / "other")


STARTS_RAY = """
import os, subprocess, sys
from pathlib import Path
import ray
from agents.rllib.config import Learner
from experiments.learning.training import train_policies
from tests.agents.rllib.toys import Guess, small_training

def raylets():
    own = subprocess.run(["pgrep", "-P", str(os.getpid()), "raylet"], stdout=-1)
    return len(own.stdout.split())

running = []
training = small_training(learner=Learner(1), max_steps=128)
train_policies(training, Guess(), Path(sys.argv[1]), lambda row: running.append(raylets()))
assert running == [1, 1], running
assert not ray.is_initialized() and not raylets()
"""


def test_a_ray_that_a_run_started_ends_with_it(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", STARTS_RAY, str(tmp_path)], cwd=ROOT, check=True)


def test_a_killed_runner_is_replaced_and_goes_on_where_it_was(address: str, tmp_path: Path) -> None:
    def kill(row: Mapping[str, float]) -> None:
        if row["iteration"] == 2:
            process = int((tmp_path / "7.pid").read_text())
            assert process != os.getpid()
            os.kill(process, signal.SIGKILL)
        time.sleep(0.5 * (row["iteration"] > 2))

    learner = Learner(2, ray_address=address)
    training = small_training(learner=learner, max_steps=64 * 20, checkpoint_every=1)
    found = train_policies(training, Seeded(TEAM, folder=tmp_path), tmp_path, kill)
    steps = [float(row["charts/global_step"]) for row in rows_of(tmp_path)]
    gained = np.diff([0.0, *steps])
    assert set(gained) == {32.0, 64.0}  # one runner alone for a while, then both again
    assert gained[-1] == 64.0
    assert found.steps == steps[-1]
    newest = max((tmp_path / "checkpoints").iterdir())
    runners = read_json(newest / "state.json")["state"]["task"]["sampling"]["runners"]
    assert sum(sum(own["started"]) for own in runners) == found.episodes  # none is met twice


def test_nothing_of_ray_runs_where_all_is_in_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a process or a cluster is started")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    monkeypatch.setattr(ray, "init", refuse)
    train_policies(small_training(), Guess(), tmp_path)
    assert not multiprocessing.active_children()
    assert not ray.is_initialized()


def test_what_the_machine_does_not_have_is_named(tmp_path: Path) -> None:
    if not torch.cuda.is_available():
        assert refused("no GPU", tmp_path, Learner(device="cuda")) == "device"
    nowhere = Learner(1, ray_address="127.0.0.1:1")
    assert refused(r"127\.0\.0\.1:1", tmp_path, nowhere) == "ray.address"


def test_the_console_says_in_one_line_what_ray_does_not_have(tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "experiments.train", "learner.num_env_runners=64",
        "agent.num_envs=64", "agent.group_size=1", "agent.group_kept=null",
        "agent.normalise_advantages=batch", f"hydra.run.dir={tmp_path / 'run'}",
    ]  # fmt: skip
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 2, ended.stderr
    lines = ended.stderr.strip().splitlines()
    (line,) = (line for line in lines if not line.startswith("loading: "))
    assert "learner.num_env_runners" in line
