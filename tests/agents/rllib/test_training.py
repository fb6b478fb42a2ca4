"""The training loop on a task whose optimum is proved: all guesses right, an outcome of 1."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from safetensors.torch import load_file

from agents.rllib.config import Cloning
from agents.rllib.metrics import CHARTS, columns
from agents.rllib.restore import UNTRAINED, load_best
from agents.rllib.runner import policies
from agents.rllib.training import Exam, train
from envs.files import read_json
from tests.agents.rllib.toys import Guess, GuessLane, Linear, small_ppo, small_training
from tests.refusal import refusal

pytestmark = pytest.mark.slow

TEAM = ("a1", "a2", "b1")
GOING_ON = small_ppo(steps=5, episodes=None, alike=2)
TIMES = ("charts/seconds", "charts/SPS", "charts/sample_seconds", "charts/learn_seconds")


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def without_times(folder: Path) -> list[dict[str, str]]:
    return [{k: v for k, v in row.items() if k not in TIMES} for row in rows_of(folder)]


def last_weights(folder: Path) -> dict[str, Any]:
    newest = max((folder / "checkpoints").iterdir())
    return load_file(newest / "weights.safetensors")


@pytest.mark.parametrize(
    ("subject", "chosen"),
    [
        (Guess(), {}),
        pytest.param(Guess(TEAM), {"ppo": GOING_ON}, marks=pytest.mark.proof),
        (Guess(cuts=True), {"ppo": small_ppo(value_memory=5.0, normalise_rewards=True)}),
        pytest.param(
            Guess(),
            {"ppo": small_ppo(reference_kl=0.01, most_kl=0.1), "max_steps": 4000},
            marks=pytest.mark.proof,
        ),
        (Guess(), {"cloning": Cloning(5, 3e-2, 4, 0.0, 0.5), "max_steps": 320}),
    ],
    ids=["alone", "team", "cut", "near its start", "cloned"],
)
def test_it_learns_to_the_optimum(subject: Guess, chosen: dict[str, Any], tmp_path: Path) -> None:
    training = small_training(**{"max_steps": 2500, **chosen})
    trained = train(training, subject, tmp_path)
    assert trained.trained == (1.0,) * 4
    assert min(trained.untrained) > 1.0
    assert trained.reference == (1.0,) * 4
    assert trained.best_score == trained.exams[-1][1] == 1.0
    assert trained.best is not None
    assert trained.best.objective == 1.0
    assert not ray.is_initialized()


@pytest.mark.proof
def test_real_numbers_get_near_to_what_is_wanted(tmp_path: Path) -> None:
    subject = Guess(continuous=True, teacher=None, reference=None)
    ppo = small_ppo(auxiliary_coefficient=0.0)
    trained = train(small_training(max_steps=8000, ppo=ppo), subject, tmp_path)
    assert trained.reference == ()
    assert np.mean(trained.trained) < 1.0 + 0.4 * (np.mean(trained.untrained) - 1.0)
    assert trained.exams[0][1] == pytest.approx(1.0)  # beside itself


def test_a_run_that_goes_on_is_the_run_that_did_not_stop(tmp_path: Path) -> None:
    training = small_training(
        ppo=replace(GOING_ON, reference_kl=0.1, value_memory=4.0, normalise_rewards=True),
        cloning=Cloning(3, 1e-2, 1, 0.2, 0.8),
        curriculum_steps=300,
        exam_every=3,
        checkpoint_every=1,
    )
    whole = train(training, Guess(TEAM), tmp_path / "whole")
    train(replace(training, max_steps=200), Guess(TEAM), tmp_path / "parts")
    train(replace(training, max_steps=330), Guess(TEAM), tmp_path / "parts", resume=True)
    parts = train(training, Guess(TEAM), tmp_path / "parts", resume=True)
    assert without_times(tmp_path / "whole") == without_times(tmp_path / "parts")
    assert whole.exams[0] == parts.exams[0]
    assert whole.trained == parts.trained
    assert whole.episodes == parts.episodes
    mine, theirs = last_weights(tmp_path / "whole"), last_weights(tmp_path / "parts")
    assert mine.keys() == theirs.keys()
    for name in mine:
        assert (mine[name] == theirs[name]).all()


def test_rows_are_complete_and_named_as_promised(tmp_path: Path) -> None:
    train(small_training(exam_every=2), Guess(TEAM), tmp_path)
    rows = rows_of(tmp_path)
    assert tuple(rows[0]) == columns(("right",), ("a", "b"))
    assert set(CHARTS) <= set(rows[0])
    assert [int(row["iteration"]) for row in rows] == list(range(1, 11))
    assert [int(row["charts/global_step"]) for row in rows] == [64 * k for k in range(1, 11)]
    assert [row["exam/score"] == "nan" for row in rows] == [True, False] * 5
    assert float(rows[-1]["charts/right"]) == pytest.approx(
        float(rows[-1]["charts/episodic_return"])
    )


def test_the_best_policies_are_kept_and_returned(tmp_path: Path) -> None:
    training = small_training(
        exam_every=1, ppo=small_ppo(learning_rate=3.0, final_learning_rate=3.0)
    )
    trained = train(training, Guess(), tmp_path)  # far too long steps: exams go up and down
    scores = [score for _, score in trained.exams]
    assert trained.best_score == min(scores) < max(scores)
    document = read_json(tmp_path / "best/score.json")
    assert document["score"] == trained.best_score
    modules = policies(Guess(), Linear())
    load_best(tmp_path, {name: module.policy for name, module in modules.items()})
    outcomes = [one.outcome for one in Exam(Guess(), 4).of_policies(modules)]
    assert np.exp(np.log(outcomes).mean()) == pytest.approx(trained.best_score)
    for name, policy in trained.policies.items():
        for mine, theirs in zip(
            policy.parameters(), modules[name].policy.parameters(), strict=True
        ):
            assert (mine == theirs).all()


class NeverEnding(GuessLane):
    def at_least(self) -> float:
        return 0.4 * self.decided  # 2.8 before the last step


class Slow(Guess):
    def exam_lane(self, number: int) -> GuessLane:
        return NeverEnding(self)


def test_an_episode_of_an_exam_that_takes_too_long_is_given_up() -> None:
    exam, modules = Exam(Slow(), 4), policies(Slow(), Linear())
    assert all(np.isfinite(one.outcome) for one in exam.of_policies(modules, [2.9] * 4))
    found = exam.of_policies(modules, [2.9, 2.7, 0.5, 2.9])
    assert [np.isinf(one.outcome) for one in found] == [False, True, True, False]
    assert [one.length for one in found] == [8, 7, 2, 8]


class Fails(GuessLane):
    def outcome(self) -> float:
        return np.inf


class Hopeless(Guess):
    def exam_lane(self, number: int) -> GuessLane:
        return Fails(self)


def test_a_reference_that_always_fails_is_none(tmp_path: Path) -> None:
    with refusal("reference"):
        train(small_training(), Hopeless(), tmp_path)


@pytest.mark.usefixtures("ticking")
def test_the_budget_is_kept(tmp_path: Path) -> None:
    spent = train(small_training(max_steps=None, budget_s=2.0), Guess(), tmp_path).seconds
    assert 1.8 < spent < 2.2


def test_iterations_that_are_wanted_are_done_when_the_budget_is_over(tmp_path: Path) -> None:
    training = small_training(max_steps=None, budget_s=1e-9, min_iterations=3)
    trained = train(training, Guess(), tmp_path)
    assert trained.iterations == 3
    assert [iteration for iteration, _ in trained.exams] == [0, 3]
    document = read_json(tmp_path / UNTRAINED / "score.json")
    assert tuple(document["outcomes"]) == trained.untrained
    modules = policies(Guess(), Linear())
    load_best(tmp_path, {name: module.policy for name, module in modules.items()}, UNTRAINED)
    assert tuple(one.outcome for one in Exam(Guess(), 4).of_policies(modules)) == trained.untrained


def test_what_cannot_be_is_said(tmp_path: Path) -> None:
    with refusal("iterations"):
        train(small_training(cloning=Cloning(1, 1e-2, 1, 0.0, 0.0)), Guess(teacher=None), tmp_path)
    with refusal("no checkpoint"):
        train(small_training(), Guess(), tmp_path, resume=True)
    train(small_training(max_steps=64), Guess(), tmp_path)
    with refusal("holds a run already"):
        train(small_training(), Guess(), tmp_path)
    with refusal("seed"):
        train(small_training(seed=1), Guess(), tmp_path, resume=True)
