"""Runners and learners as actors of a Ray cluster of two nodes, both on this machine."""

from __future__ import annotations

import csv
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch
from ray import cloudpickle
from ray.cluster_utils import Cluster
from safetensors.torch import load_file

from agents.rllib.config import Learner, Training
from agents.rllib.training import Trained, train
from envs.files import read_json
from tests.agents.rllib.toys import HERE, Guess, GuessLane, small_ppo, small_training
from tests.refusal import refusal

pytestmark = [pytest.mark.slow, pytest.mark.proof]

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # actors cannot import a test
TEAM = ("a1", "a2", "b1")
TIMES = {"charts/seconds", "charts/SPS", "charts/sample_seconds", "charts/learn_seconds"}
ROOT = Path(__file__).resolve().parents[3]


class SeededLane(GuessLane):
    def ended(self) -> Mapping[str, float]:
        return {"right": float(self.resets[-1][0] % 4096)}  # sums are exact


@dataclass
class Seeded(Guess):
    """Whose chart says which episodes were met, and a file which process a lane is in."""

    folder: Path | None = None

    def lane(self, index: int) -> SeededLane:
        if self.folder is not None:
            (self.folder / f"{index}.pid").write_text(str(os.getpid()))
        return SeededLane(self)


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


def learned(folder: Path, address: str | None, runners: int, learners: int, **ppo: Any) -> Trained:
    # 8 environments of 3 agents: 39 decisions of one module and 77 of the other, not 40 and 80
    training = small_training(
        ppo=small_ppo(steps=5, episodes=None, most_kl=0.02, num_epochs=3, **ppo),
        learner=Learner(runners, learners, 0.0, "cpu", address),
        max_steps=240,
    )
    return train(training, Seeded(TEAM), folder)


def wanting(runners: int, address: str) -> Training:
    """A run with so many runners."""
    learner = Learner(runners, 0, 0.0, "cpu", address)
    return small_training(ppo=small_ppo(num_envs=runners), learner=learner)


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open(newline="") as file:
        return [{k: v for k, v in row.items() if k not in TIMES} for row in csv.DictReader(file)]


def weights_of(folder: Path) -> dict[str, list[float]]:
    newest = max((folder / "checkpoints").iterdir())
    found = load_file(newest / "weights.safetensors")
    return {name: tensor.flatten().tolist() for name, tensor in found.items()}


def test_actors_of_a_cluster_meet_the_episodes_of_one_process(address: str, tmp_path: Path) -> None:
    far = learned(tmp_path / "far", address, runners=2, learners=2)
    assert not ray.is_initialized()
    near = learned(tmp_path / "near", None, runners=0, learners=0)
    assert far.untrained == near.untrained
    for name in ("charts/global_step", "charts/episodes", "charts/right"):
        rows = zip(rows_of(tmp_path / "far"), rows_of(tmp_path / "near"), strict=True)
        assert all(mine[name] == theirs[name] for mine, theirs in rows)
    with refusal(r"ask for 50 CPUs, Ray has 4") as refused:
        train(wanting(50, address), Guess(), tmp_path / "refused")
    assert refused.value.field == "learner.num_env_runners"
    assert not ray.is_initialized()


@pytest.mark.proof
@pytest.mark.parametrize(("runners", "learners"), [(1, 2), (2, 0), (2, 2)])
def test_what_actors_learn_is_the_same_twice(
    runners: int, learners: int, address: str, tmp_path: Path
) -> None:
    for folder in (tmp_path / "once", tmp_path / "again"):
        learned(folder, address, runners, learners)
    assert rows_of(tmp_path / "once") == rows_of(tmp_path / "again")
    assert weights_of(tmp_path / "once") == weights_of(tmp_path / "again")


@pytest.mark.proof
def test_one_runner_samples_and_teaches_what_this_process_does(
    address: str, tmp_path: Path
) -> None:
    learned(tmp_path / "far", address, runners=1, learners=0)
    learned(tmp_path / "near", None, runners=0, learners=0)
    assert rows_of(tmp_path / "far") == rows_of(tmp_path / "near")
    assert weights_of(tmp_path / "far") == weights_of(tmp_path / "near")


STARTS_RAY = """
import os, subprocess, sys
from pathlib import Path
import ray
from agents.rllib.config import Learner
from agents.rllib.training import train
from tests.agents.rllib.toys import Guess, small_training

def raylets():
    own = subprocess.run(["pgrep", "-P", str(os.getpid()), "raylet"], stdout=-1)
    return len(own.stdout.split())

running = []
training = small_training(learner=Learner(1, 0, 0.0, "cpu", None), max_steps=128)
train(training, Guess(), Path(sys.argv[1]), lambda row: running.append(raylets()))
assert running == [1, 1], running
assert not ray.is_initialized() and not raylets()
"""


@pytest.mark.proof
def test_a_ray_that_a_run_started_ends_with_it(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", STARTS_RAY, str(tmp_path)], cwd=ROOT, check=True)


@pytest.mark.proof
def test_a_killed_runner_is_replaced_and_goes_on_where_it_was(address: str, tmp_path: Path) -> None:
    def kill(row: Mapping[str, float]) -> None:
        if row["iteration"] == 2:
            process = int((tmp_path / "7.pid").read_text())
            assert process != os.getpid()
            os.kill(process, signal.SIGKILL)
        time.sleep(0.5 * (row["iteration"] > 2))

    training = small_training(
        learner=Learner(2, 0, 0.0, "cpu", address), max_steps=64 * 20, checkpoint_every=1
    )
    trained = train(training, Seeded(TEAM, folder=tmp_path), tmp_path, kill)
    steps = [float(row["charts/global_step"]) for row in rows_of(tmp_path)]
    gained = np.diff([0.0, *steps])
    assert set(gained) == {32.0, 64.0}  # one runner alone for a while, then both again
    assert gained[-1] == 64.0
    assert trained.steps == steps[-1]
    newest = max((tmp_path / "checkpoints").iterdir())
    state = read_json(newest / "state.json")["state"]
    started = [own["started"] for own in state["sampling"]["runners"]]
    assert sum(sum(own) for own in started) == trained.episodes  # none is met twice


def test_nothing_of_ray_runs_where_all_is_in_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a process or a cluster is started")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    monkeypatch.setattr(ray, "init", refuse)
    train(small_training(), Guess(), tmp_path)
    assert not multiprocessing.active_children()
    assert not ray.is_initialized()


def test_what_the_machine_does_not_have_is_named(tmp_path: Path) -> None:
    if not torch.cuda.is_available():
        training = small_training(learner=replace(HERE, device="cuda"))
        with refusal("no GPU") as refused:
            train(training, Guess(), tmp_path)
        assert refused.value.field == "device"
    with refusal(r"127\.0\.0\.1:1") as refused:
        train(wanting(1, "127.0.0.1:1"), Guess(), tmp_path)
    assert refused.value.field == "ray.address"
    assert "\n" not in str(refused.value)


@pytest.mark.proof
def test_the_console_says_in_one_line_what_ray_does_not_have(tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "experiments.train", "learner.num_env_runners=64",
        "agent.num_envs=64", "agent.alike=1", "agent.learned=null",
        "agent.normalise_advantages=batch", f"hydra.run.dir={tmp_path / 'run'}",
    ]  # fmt: skip
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 2, ended.stderr
    lines = ended.stderr.strip().splitlines()
    (line,) = (line for line in lines if not line.startswith("loading: "))
    assert "learner.num_env_runners" in line
