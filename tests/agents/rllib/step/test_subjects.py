"""A team of several modules, and training that starts from plans."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from team_env import AGENTS, DEVICES, GROUPS, SERVERS, TeamIdentityEnv, team_training

from agents.rllib.config import Restarts
from agents.rllib.step.subjects import JointSubject
from agents.rllib.subject import Solution
from agents.rllib.training import Trained, train
from envs.errors import InputError
from envs.placement.env import toy_environment
from tests.agents.rllib.step.stepwise import PlacementSubject
from tests.agents.rllib.toys import small_ppo, small_training
from tests.models.random_observations import policy_config

CLOCKS = {"charts/seconds", "charts/SPS", "charts/sample_seconds", "charts/learn_seconds"}
NEAR = Restarts(0.5, 2, 3)


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open(encoding="utf-8", newline="") as file:
        return [{k: v for k, v in row.items() if k not in CLOCKS} for row in csv.DictReader(file)]


def solution(step_time: float, device: int = 0) -> Solution:
    decisions = {
        "device": np.full(GROUPS, device, dtype=np.int64),
        "levels": np.zeros((SERVERS, SERVERS), dtype=np.int64),
    }
    return Solution(step_time, decisions)


def run(
    folder: Path, start: Solution | None = None, spent_s: float = 0.0, resume: bool = False,
    **chosen: Any,
) -> Trained:  # fmt: skip
    training = team_training(**{"restarts": NEAR, **chosen})
    subject = JointSubject(TeamIdentityEnv(), training)
    if start is not None:
        subject.archive.offer(0, start)
    return train(training, subject, folder, resume=resume, start=start, spent_s=spent_s)


def test_allocators_share_a_module_or_have_one_each() -> None:
    training = team_training()
    shared = JointSubject(TeamIdentityEnv(), training)
    assert list(shared.architectures(training.model)) == ["placer", "allocator"]
    assert {shared.module_of(agent) for agent in AGENTS} == {"placer", "allocator"}
    separate = JointSubject(TeamIdentityEnv(), replace(training, parameters="separate"))
    assert list(separate.architectures(training.model)) == AGENTS
    assert [separate.module_of(agent) for agent in AGENTS] == AGENTS
    assert separate.memory(AGENTS[1], 2, 3).arrays["pipe_features"].shape[:2] == (2, 3)


@pytest.mark.parametrize("parameters", ["shared", "separate"])
def test_a_team_learns_what_is_wanted_of_each(parameters: Any, tmp_path: Path) -> None:
    ppo = replace(team_training().ppo, num_envs=8, episodes=2, minibatch_size=64)
    found = run(tmp_path, ppo=ppo, parameters=parameters, max_steps=4_000, restarts=None)
    rows = rows_of(tmp_path)
    assert float(rows[0]["charts/episodic_return"]) < 0.6
    assert float(rows[-1]["charts/episodic_return"]) > 0.75
    assert np.mean(found.trained) < np.mean(found.untrained) - 0.3
    assert found.best is not None
    assert set(found.best.decisions) == {"device", "levels"}
    for name in found.policies:
        assert float(rows[-1][f"losses/{name}/entropy"]) < float(rows[0][f"losses/{name}/entropy"])


def test_two_runs_are_equal_and_a_resumed_one_too(tmp_path: Path) -> None:
    run(tmp_path / "whole", max_steps=160)
    run(tmp_path / "again", max_steps=160)
    run(tmp_path / "other", max_steps=160, seed=1)
    run(tmp_path / "parts", max_steps=96)
    run(tmp_path / "parts", max_steps=160, resume=True)
    whole = rows_of(tmp_path / "whole")
    assert rows_of(tmp_path / "again") == whole
    assert rows_of(tmp_path / "other") != whole
    assert rows_of(tmp_path / "parts") == whole


def test_warm_runs_are_equal_and_a_resumed_one_too(tmp_path: Path) -> None:
    start = solution(1.5)
    run(tmp_path / "whole", start, max_steps=160)
    run(tmp_path / "cold", max_steps=160)
    run(tmp_path / "parts", start, max_steps=96)
    run(tmp_path / "parts", start, max_steps=160, resume=True)
    whole = rows_of(tmp_path / "whole")
    assert rows_of(tmp_path / "parts") == whole
    assert rows_of(tmp_path / "cold") != whole
    for other in (None, solution(1.5, device=1)):
        with pytest.raises(InputError, match="field 'start'"):
            run(tmp_path / "parts", other, max_steps=192, resume=True)


def test_the_first_solution_is_the_plan_and_its_seconds_are_the_runs(tmp_path: Path) -> None:
    unbeaten = run(tmp_path / "fast", solution(0.5, DEVICES - 1), 1000.0, max_steps=64)
    assert unbeaten.best is not None
    assert unbeaten.best.objective == 0.5
    assert set(unbeaten.best.decisions["device"].tolist()) == {DEVICES - 1}
    assert unbeaten.trajectory == [(1000.0, 0.5)]
    assert unbeaten.seconds > 1000.0
    beaten = run(tmp_path / "slow", solution(9.0), 1000.0, max_steps=64)
    assert beaten.best is not None
    assert beaten.best.objective <= 2.0
    assert beaten.trajectory[0] == (1000.0, 9.0)
    assert beaten.trajectory[-1][0] > 1000.0
    spent = run(tmp_path / "spent", solution(0.5), 30.0, max_steps=None, budget_s=20.0)
    assert spent.iterations == 0


def test_episodes_start_from_the_plan() -> None:
    subject = JointSubject(TeamIdentityEnv(), team_training(restarts=Restarts(1.0, 0, 1)))
    subject.archive.offer(0, solution(0.5, device=1))
    lane = subject.lane(0)
    lane.reset(0, explorer=np.random.default_rng(0))
    anew, start = lane.env.started
    assert anew is None
    assert (start["start"] == 1).any()  # a crossing with itself may rename some devices
    assert not start["levels"].any()


def test_a_policy_learns_to_place_at_the_optimum_of_the_toy(tmp_path: Path) -> None:
    ppo = small_ppo(learning_rate=3e-3, final_learning_rate=3e-3, auxiliary_coefficient=0.0)
    training = small_training(model=policy_config(), ppo=ppo, max_steps=2_000, exam_episodes=1)
    found = train(training, PlacementSubject(toy_environment(), training), tmp_path)
    assert list(found.policies) == ["placer"]
    assert found.best is not None
    assert found.best.objective <= found.reference[0]
    assert found.trained[0] < found.untrained[0]


def test_what_is_not_the_subjects_is_refused() -> None:
    alone, team = small_training(model=policy_config()), team_training()
    with pytest.raises(InputError, match="is no team: take model=joint"):
        JointSubject(TeamIdentityEnv(), alone).architectures(alone.model)
    with pytest.raises(InputError, match="TeamConfig is no policy of a single agent"):
        PlacementSubject(toy_environment(), team).architectures(team.model)
    with pytest.raises(InputError, match="field 'steps'"):
        PlacementSubject(toy_environment(), small_training(ppo=small_ppo(steps=5, episodes=None)))
