from __future__ import annotations

import csv
import math
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from identity_env import GROUPS, LAST, IdentityEnv, small_config, small_ppo

from agents.rllib.step.training import longer_horizon, train
from envs.errors import InputError
from envs.placement.env import toy_environment
from envs.placement.toy import OPTIMUM_S
from tests.models.random_observations import policy_config
from tests.paths import ROOT

ONLY = "default_policy"
CLOCKS = {"charts/seconds", "charts/SPS", "charts/sample_seconds", "charts/learn_seconds"}


def rows_of(run_folder: Path) -> list[dict[str, str]]:
    with (run_folder / "metrics.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def without_clocks(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    return [{k: v for k, v in row.items() if k not in CLOCKS} for row in rows]


def test_ppo_learns_the_identity_in_seconds(tmp_path: Path) -> None:
    ppo = small_ppo(num_envs=8, batch_episodes=16, minibatch_size=64)
    model = policy_config(initial_candidate_weights={0: -0.1})
    result = train(small_config(model=model, ppo=ppo, max_steps=4_000), IdentityEnv, tmp_path)
    assert result.trained == pytest.approx((1.0,) * 4)
    assert result.best_step_time == pytest.approx(1.0)
    assert len(result.untrained) == 4
    assert min(result.untrained) > 1.0
    first, last = rows_of(tmp_path)[0], rows_of(tmp_path)[-1]
    assert float(first["charts/episodic_return"]) < 0.5
    assert float(last["charts/episodic_return"]) > 0.9
    assert float(last["losses/entropy"]) < 0.6 * float(first["losses/entropy"])
    assert float(first["losses/entropy"]) <= math.log(3) + 1e-6


@pytest.mark.proof
def test_a_clear_reward_is_learned_where_mistakes_end_the_episode(tmp_path: Path) -> None:
    ppo = small_ppo(num_envs=8, batch_episodes=16, minibatch_size=64)
    config = small_config(ppo=ppo, max_steps=3_000)
    result = train(config, lambda: IdentityEnv(fragile=True), tmp_path)
    rows = rows_of(tmp_path)
    assert float(rows[0]["charts/feasible_share"]) < 0.2
    assert float(rows[-1]["charts/feasible_share"]) > 0.5
    assert result.best_step_time == pytest.approx(1.0)


def test_the_best_placement_is_the_one_the_environment_simulated(tmp_path: Path) -> None:
    result = train(small_config(max_steps=600), toy_environment, tmp_path)
    assert result.best_plan is not None
    assert result.best_step_time >= OPTIMUM_S
    env = toy_environment()
    env.reset(seed=0)
    info = {}
    for device in result.best_plan["device"]:
        *_, info = env.step(device)
    assert info["step_time_s"] == pytest.approx(result.best_step_time, rel=1e-12)
    assert info["feasible"]
    bests = [best for _, best in result.trajectory]
    assert bests == sorted(bests, reverse=True)
    assert bests[-1] == result.best_step_time


def test_two_runs_with_one_seed_are_equal_and_another_seed_differs(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        train(small_config(max_steps=96, seed=seed), IdentityEnv, tmp_path / name)
    a, b, c = (without_clocks(rows_of(tmp_path / name)) for name in "abc")
    assert a == b
    assert a != c


def test_training_ends_at_the_step_or_the_time_limit(tmp_path: Path) -> None:
    result = train(small_config(max_steps=100), IdentityEnv, tmp_path / "steps")
    assert result.env_steps == 128  # the iteration that passes the limit is the last
    assert result.iterations == 4
    assert result.episodes == 16
    start = time.perf_counter()
    config = small_config(max_steps=None, budget_s=1.0)
    result = train(config, IdentityEnv, tmp_path / "time")
    assert time.perf_counter() - start < 60.0
    assert 0.5 <= result.seconds < 60.0  # no iteration begins that would not end in time


def test_every_iteration_is_reported_and_on_the_disk(tmp_path: Path) -> None:
    seen: list[Mapping[str, float]] = []

    def on_iteration(row: Mapping[str, float]) -> None:
        assert len(rows_of(tmp_path)) == row["iteration"]
        seen.append(row)

    train(small_config(max_steps=96), IdentityEnv, tmp_path, on_iteration)
    assert [row["iteration"] for row in seen] == [1, 2, 3]
    assert seen[-1]["charts/env_steps"] == 3 * 4 * GROUPS
    assert any((tmp_path / "tensorboard").iterdir())


def test_a_run_killed_at_once_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    steps = 32 * 14
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    script = Path(__file__).with_name("identity_env.py")
    process = subprocess.Popen(
        [sys.executable, str(script), str(killed), str(steps)],
        env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    metrics = killed / "metrics.csv"
    deadline = time.monotonic() + 60.0
    while not metrics.exists() or metrics.read_text().count("\n") < LAST + 1:
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    with metrics.open("a", encoding="utf-8") as file:
        file.write("99,3")  # a row cut off while it was written
    before = len(rows_of(killed)) - 1
    assert before == LAST

    resumed = train(small_config(max_steps=steps), IdentityEnv, killed, resume=True)
    reference = train(small_config(max_steps=steps), IdentityEnv, whole)
    rows = rows_of(killed)
    assert [int(row["iteration"]) for row in rows] == list(range(1, 15))
    assert without_clocks(rows) == without_clocks(rows_of(whole))
    seconds = [float(row["charts/seconds"]) for row in rows]
    assert seconds == sorted(seconds)
    assert resumed.best_step_time == reference.best_step_time
    assert resumed.trained == reference.trained
    assert resumed.untrained == reference.untrained
    for name, value in reference.policies[ONLY].state_dict().items():
        torch.testing.assert_close(resumed.policies[ONLY].state_dict()[name], value, atol=0, rtol=0)


def test_a_finished_run_can_be_given_more_steps(tmp_path: Path) -> None:
    train(small_config(max_steps=96), IdentityEnv, tmp_path / "a")
    train(small_config(max_steps=192), IdentityEnv, tmp_path / "a", resume=True)
    train(small_config(max_steps=192), IdentityEnv, tmp_path / "b")
    assert without_clocks(rows_of(tmp_path / "a")) == without_clocks(rows_of(tmp_path / "b"))


def test_a_folder_with_a_run_is_not_overwritten(tmp_path: Path) -> None:
    train(small_config(max_steps=32), IdentityEnv, tmp_path)
    with pytest.raises(InputError, match="holds a run already"):
        train(small_config(max_steps=32), IdentityEnv, tmp_path)
    with pytest.raises(InputError, match="holds no checkpoint to resume from"):
        train(small_config(max_steps=32), IdentityEnv, tmp_path / "empty", resume=True)
    with pytest.raises(InputError, match="field 'seed': the checkpoint was written with 0"):
        train(small_config(max_steps=64, seed=1), IdentityEnv, tmp_path, resume=True)


@pytest.mark.parametrize(
    ("horizon", "ended", "cut", "expected"),
    [(60, [60] * 16, [], 60), (10, [4, 7], [3], 10), (10, [12], [2], 12), (10, [4], [10], 20)],
)
def test_the_horizon_is_the_longest_episode_met(
    horizon: int, ended: list[int], cut: list[int], expected: int
) -> None:
    assert longer_horizon(horizon, ended, cut) == expected
