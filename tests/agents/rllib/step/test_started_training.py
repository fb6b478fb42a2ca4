"""Training that goes on from a plan somebody else has found."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from identity_env import DEVICES, GROUPS
from team_env import SERVERS, TeamIdentityEnv, team_config

from agents.rllib.step.environment import Record, WarmStart
from agents.rllib.step.tasks import JointTask
from agents.rllib.step.training import TrainingResult, train
from envs.errors import InputError

CLOCKS = {"charts/seconds", "charts/SPS", "charts/sample_seconds", "charts/learn_seconds"}


def start(step_time: float, seconds: float, device: int = 0) -> WarmStart:
    plan = {
        "device": np.full(GROUPS, device, dtype=np.int64),
        "levels": np.zeros((SERVERS, SERVERS), dtype=np.int64),
    }
    return WarmStart(Record(plan, step_time), seconds)


def run(
    folder: Path, steps: int | None, warm: WarmStart | None, *, resume: bool = False, **chosen: Any
) -> TrainingResult:
    config = team_config(max_steps=steps, restart_share=0.5, kick=2, draws=3, **chosen)
    return train(
        config, TeamIdentityEnv, folder, resume=resume, task=JointTask(2, 3), warm_start=warm
    )


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open(encoding="utf-8", newline="") as file:
        return [{k: v for k, v in row.items() if k not in CLOCKS} for row in csv.DictReader(file)]


def test_the_first_record_is_the_plan_and_its_seconds_are_the_runs(tmp_path: Path) -> None:
    unbeaten = run(tmp_path / "fast", 64, start(0.5, 1000.0, device=DEVICES - 1))
    assert unbeaten.best_step_time == 0.5
    assert unbeaten.trajectory == [(1000.0, 0.5)]
    assert unbeaten.best_plan is not None
    assert set(unbeaten.best_plan["device"].tolist()) == {DEVICES - 1}
    assert unbeaten.seconds > 1000.0
    beaten = run(tmp_path / "slow", 64, start(9.0, 1000.0))
    assert beaten.best_step_time <= 2.0
    assert beaten.trajectory[0] == (1000.0, 9.0)
    assert beaten.trajectory[-1][0] > 1000.0


def test_a_budget_that_the_plan_has_used_leaves_nothing_to_learn(tmp_path: Path) -> None:
    result = run(tmp_path, None, start(0.5, 30.0), budget_s=20.0)
    assert (result.iterations, result.best_step_time) == (0, 0.5)


def test_episodes_start_from_the_plan(tmp_path: Path) -> None:
    made: list[TeamIdentityEnv] = []

    def make() -> TeamIdentityEnv:
        made.append(TeamIdentityEnv())
        return made[-1]

    config = team_config(max_steps=32, restart_share=1.0, kick=0)
    task, warm = JointTask(0), start(0.5, 0.0, device=1)
    train(config, make, tmp_path, task=task, warm_start=warm)
    first = next(options for env in made for options in env.started if options)
    assert (first["start"] == 1).any()  # a crossing with itself may rename some devices
    assert not first["levels"].any()


def test_warm_runs_are_equal_and_a_resumed_one_too(tmp_path: Path) -> None:
    warm = start(1.5, 3.0)
    run(tmp_path / "whole", 160, warm)
    run(tmp_path / "again", 160, warm)
    run(tmp_path / "cold", 160, None)
    run(tmp_path / "parts", 96, warm)
    run(tmp_path / "parts", 160, warm, resume=True)
    whole = rows_of(tmp_path / "whole")
    assert rows_of(tmp_path / "again") == whole
    assert rows_of(tmp_path / "parts") == whole
    assert rows_of(tmp_path / "cold") != whole


@pytest.mark.parametrize("other", [None, start(1.5, 3.0, device=1)])
def test_a_resumed_run_has_the_start_it_had(tmp_path: Path, other: WarmStart | None) -> None:
    run(tmp_path, 32, start(1.5, 3.0))
    with pytest.raises(InputError, match="warm_start"):
        run(tmp_path, 64, other, resume=True)


def test_a_checkpoint_from_before_warm_starts_is_one_without(tmp_path: Path) -> None:
    run(tmp_path, 32, None)
    (path,) = sorted((tmp_path / "checkpoints").glob("*/state.json"))[-1:]
    state = json.loads(path.read_text())
    del state["identity"]["warm_start"]
    path.write_text(json.dumps(state))
    assert run(tmp_path, 64, None, resume=True).env_steps == 64


def test_the_identity_is_that_of_the_decisions() -> None:
    assert start(1.0, 2.0).identity == start(3.0, 4.0).identity
    assert start(1.0, 2.0).identity != start(1.0, 2.0, device=1).identity
