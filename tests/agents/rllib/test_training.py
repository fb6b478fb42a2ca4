"""Training on a task whose optimum is proved: all guesses right, an objective of 1."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

from agents.rllib.algorithm import CHARTS, loss_columns
from agents.rllib.config import Cloning
from agents.rllib.module import modules_of
from agents.rllib.restore import BEST, UNTRAINED, load_best
from agents.rllib.vector import Evaluation
from envs.files import read_json
from experiments.learning.trainer import COLUMNS
from experiments.learning.training import train_policies
from tests.agents.rllib.toys import (
    GOES_ON,
    TEAM,
    Guess,
    GuessEnv,
    Linear,
    in_parts,
    rows_of,
    small_training,
    untrained,
)
from tests.refusal import refusal

pytestmark = pytest.mark.slow

PAIRS = {**GOES_ON, "group_size": 2}


@pytest.mark.parametrize(
    ("task", "ppo", "chosen"),
    [
        (Guess(), {}, {}),
        pytest.param(Guess(TEAM), PAIRS, {}, marks=pytest.mark.proof),
        (Guess(cuts=True), {"value_memory": 5.0, "normalise_rewards": True}, {}),
        pytest.param(
            Guess(), {"reference_kl": 0.01, "target_kl": 0.1}, {"max_steps": 4000},
            marks=pytest.mark.proof,
        ),
        (Guess(), {}, {"cloning": Cloning(5, 3e-2, 4), "max_steps": 320}),
    ],
    ids=["alone", "team", "truncated", "near its start", "cloned"],
)  # fmt: skip
def test_it_learns_to_the_optimum(task: Guess, ppo: Any, chosen: Any, tmp_path: Path) -> None:
    found = train_policies(small_training(ppo, **{"max_steps": 2500, **chosen}), task, tmp_path)
    assert found.outcomes == found.reference == (1.0,) * 4
    assert min(untrained(tmp_path)) > 1.0
    assert found.best_score == found.evaluations[-1][1] == 1.0
    assert found.best.objective == 1.0
    assert not ray.is_initialized()


@pytest.mark.proof
def test_real_numbers_get_near_to_what_is_wanted(tmp_path: Path) -> None:
    task = Guess(continuous=True, teacher=None, reference=None)
    training = small_training({"auxiliary_coefficient": 0.0}, max_steps=8000)
    found = train_policies(training, task, tmp_path)
    assert found.reference == ()
    first = np.mean(untrained(tmp_path))
    assert np.mean(found.outcomes) < 1.0 + 0.4 * (first - 1.0)
    assert found.evaluations[0][1] == pytest.approx(1.0)  # beside itself


def test_a_run_that_goes_on_is_the_run_that_did_not_stop(tmp_path: Path) -> None:
    training = small_training(
        {**PAIRS, "reference_kl": 0.1, "value_memory": 4.0, "normalise_rewards": True},
        cloning=Cloning(3, 1e-2, 1, 0.2, 0.8), curriculum_steps=300, evaluate_every=3,
        checkpoint_every=1,
    )  # fmt: skip
    parts, whole = in_parts(tmp_path, training, partial(Guess, TEAM), 200, 330, 640)
    assert whole.evaluations[0] == parts.evaluations[0]
    assert (whole.outcomes, whole.episodes) == (parts.outcomes, parts.episodes)


def test_rows_are_complete_and_named_as_promised(tmp_path: Path) -> None:
    train_policies(small_training(evaluate_every=2), Guess(TEAM), tmp_path)
    losses = loss_columns({"a": {}, "b": {}})
    assert {"losses/a/entropy", "losses/b/entropy"} <= set(losses)
    assert "losses/entropy" in loss_columns({"a": {}})
    columns = (*COLUMNS, *CHARTS, "charts/right", *losses)
    assert len(set(columns)) == len(columns)
    header, *lines = (tmp_path / "metrics.csv").read_text().splitlines()
    assert header == ",".join(columns)
    assert len(lines) == 10
    for k, row in enumerate(rows_of(tmp_path), 1):
        assert (row["iteration"], row["charts/global_step"]) == (str(k), str(64 * k))
        assert (row["evaluation/score"] == "nan") == (k % 2 == 1)
    assert float(row["charts/right"]) == pytest.approx(float(row["charts/episodic_return"]))


def test_the_best_policies_and_the_first_are_kept_and_the_best_returned(tmp_path: Path) -> None:
    rates = {"learning_rate": 3.0, "final_learning_rate": 3.0}  # evaluations go up and down
    found = train_policies(small_training(rates, evaluate_every=1), Guess(), tmp_path)
    scores = [score for _, score in found.evaluations]
    assert found.best_score == min(scores) < max(scores)
    modules = modules_of(Guess(), Linear())
    policies = {name: module.policy for name, module in modules.items()}
    for which, score in ((UNTRAINED, scores[0]), (BEST, found.best_score)):
        load_best(tmp_path, policies, which)
        outcomes = [one.objective for one in Evaluation(Guess(), 4).of(modules)]
        document = read_json(tmp_path / which / "score.json")
        assert document["outcomes"] == outcomes
        assert np.exp(np.log(outcomes).mean()) == pytest.approx(document["score"])
        assert document["score"] == score
    mine, theirs = (one["o"].state_dict() for one in (found.policies, policies))
    assert all((theirs[name] == value).all() for name, value in mine.items())


class Bounded(GuessEnv):
    def lower_bound(self) -> float:
        return 0.4 * self.decided  # 2.8 before the last step


def test_an_episode_of_an_evaluation_that_takes_too_long_is_given_up() -> None:
    task = Guess(env=Bounded)
    evaluation, modules = Evaluation(task, 4), modules_of(task, Linear())
    assert all(np.isfinite(one.objective) for one in evaluation.of(modules, [2.9] * 4))
    found = evaluation.of(modules, [2.9, 2.7, 0.5, 2.9])
    assert [np.isinf(one.objective) for one in found] == [False, True, True, False]
    assert [one.length for one in found] == [8, 7, 2, 8]


class Fails(GuessEnv):
    def objective(self) -> float:
        return np.inf


def test_what_cannot_be_is_said(tmp_path: Path) -> None:
    for field, task, chosen in (
        ("iterations", Guess(teacher=None), {"cloning": Cloning(1)}),
        ("reference", Guess(env=Fails), {}),
    ):
        with refusal(field):
            train_policies(small_training(**chosen), task, tmp_path)
    train_policies(small_training(max_steps=64), Guess(), tmp_path)
    with refusal("seed"):
        train_policies(small_training(seed=1), Guess(), tmp_path, resume=True)
