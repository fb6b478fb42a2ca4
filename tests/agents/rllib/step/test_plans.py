"""Whole plans as actions: what is sampled, and what is learned token by token."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from ray.rllib.core.columns import Columns
from ray.rllib.evaluation.postprocessing import Postprocessing

from agents.rllib.advantages import group_ranks
from agents.rllib.config import Cloning
from agents.rllib.connector import LearnerConnector
from agents.rllib.module import EXPERT_ACTIONS, module_specs
from agents.rllib.runner import SampleRequest
from agents.rllib.step.plans import PLANNER, PlanRLTask
from experiments.learning.training import train_policies
from tests.agents.rllib.autoregressive import CHOICES, TOKENS, ChainConfig, Guesses
from tests.agents.rllib.toys import (
    GOES_ON,
    ONE_PLAN,
    copied,
    in_parts,
    learner_of,
    runner_of,
    small_training,
    terms_of_ppo,
    untrained,
    update,
)
from tests.refusal import refusal

GROUP = 4
OPTIMIZER = "checkpoints/iteration_000006/optimizer.safetensors"
GAINS = Postprocessing.ADVANTAGES


@pytest.fixture(autouse=True)
def generators() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def training(cloning: int = 0, **ppo: Any) -> Any:
    chosen = {"num_envs": 16, **ONE_PLAN, **ppo}
    return small_training(chosen, model=ChainConfig(), cloning=Cloning(cloning, 3e-2))


def task_of(source: Guesses | None = None, **ppo: Any) -> PlanRLTask:
    return PlanRLTask(source or Guesses(), training(**ppo))


def sampled(
    source: Guesses | None = None, student_share: float | None = None, steps: int = 2, **ppo: Any
) -> tuple[Any, Any, Any, Any]:
    """A runner, its rollout, that of the planner, and what a learner is given of it."""
    chosen = training(int(student_share is not None), **ppo)
    runner = runner_of(task_of(source, **ppo), chosen)
    rollout = runner.sample(SampleRequest(0, 0.25, steps, student_share))
    own = rollout.modules[PLANNER]
    own.decides.flags.writeable = "group_kept" not in ppo  # False: of another process
    batch = LearnerConnector(chosen.ppo, {PLANNER: 1})([rollout], 1).batches[0]
    return runner, rollout, own, dict(batch.policy_batches[PLANNER])


def learner(**ppo: Any) -> Any:
    chosen = training(**ppo)
    return learner_of(chosen, module_specs(task_of(**ppo), chosen.model))


def logs_of(weights: Mapping[str, Any], observations: Mapping[str, Any], actions: Any) -> Any:
    """(n, A, C) log probabilities of every choice, in numpy."""
    before = np.zeros((*actions.shape, CHOICES))
    before[:, 1:] = np.eye(CHOICES)[actions[:, :-1]]
    own = {name: x.double().numpy() for name, x in weights.items()}
    logits = observations["shown"] @ own["of_shown.weight"].T + own["of_shown.bias"]
    logits = logits + before @ own["of_last.weight"].T
    return logits - np.log(np.exp(logits).sum(axis=2, keepdims=True))


def taken(logs: Any, actions: Any) -> Any:
    return np.take_along_axis(logs, actions[..., None], axis=2)[..., 0]


def test_groups_meet_one_problem_and_every_token_has_its_probability() -> None:
    source = Guesses()
    runner, rollout, own, columns = sampled(source)
    assert own.actions.shape == own.log_probabilities.shape == (2, 16, TOKENS)
    assert len(source.draws) == 2 * 16 // GROUP
    assert {progress for _, progress in source.draws} == {0.25}
    for seen in own.observations.values():
        by_problem = seen.reshape(2, -1, GROUP, *seen.shape[2:])
        assert (by_problem == by_problem[:, :, :1]).all()
    assert rollout.terminated.all()
    assert not rollout.truncated.any()
    seen, actions = columns[Columns.OBS], columns[Columns.ACTIONS]
    expected = taken(logs_of(runner.modules[PLANNER].policy.state_dict(), seen, actions), actions)
    known = seen["known"] == 1
    assert_allclose(columns[Columns.ACTION_LOGP], np.where(known, expected, 0.0), atol=1e-6)
    assert not known.all()


def test_advantages_are_against_the_other_samples_of_the_problem() -> None:
    _, _, own, columns = sampled()
    returns = own.rewards.reshape(-1, GROUP)
    others = [[np.delete(one, k).mean() for k in range(GROUP)] for one in returns]
    expected = (returns - others).reshape(-1)
    expected = (expected - expected.mean()) / expected.std()
    assert_allclose(columns[GAINS], expected, rtol=1e-5, atol=1e-6)


def test_ranks_are_places_among_the_plans_of_a_problem() -> None:
    returns = np.array([[-1.0, -9.0, -2.0, -2.0, 3.0, 3.0, 3.0, 3.0]])
    found = group_ranks(returns, GROUP, GROUP)
    places = np.array([3.0, -3.0, 0.0, 0.0])
    assert_allclose(found[0, :4], places / places.std())
    assert_array_equal(found[0, 4:], 0.0)
    _, _, own, columns = sampled(normalise_advantages="rank")
    assert_allclose(columns[GAINS], group_ranks(own.rewards, GROUP, GROUP).reshape(-1), rtol=1e-6)


def test_of_a_group_those_with_the_largest_advantages_are_learned_from() -> None:
    *_, columns = sampled(group_kept=2)
    sizes = np.abs(columns[GAINS]).reshape(-1, GROUP)
    kept = columns[Columns.LOSS_MASK].reshape(-1, GROUP)
    assert (kept.sum(axis=1) == 2).all()
    least = np.where(kept, sizes, np.inf).min(axis=1)
    assert (least >= np.where(kept, 0.0, sizes).max(axis=1)).all()


def test_the_loss_of_plans_is_what_numpy_says_token_by_token() -> None:
    *_, columns = sampled(reference_kl=2.0)
    made, batch = learner(reference_kl=2.0), {PLANNER: columns}
    start = copied(made.weights()[PLANNER])
    update(made, batch, num_epochs=5)  # the reference stays where it was
    weights = copied(made.weights()[PLANNER])
    found = update(made, batch)[PLANNER]
    seen, actions = columns[Columns.OBS], columns[Columns.ACTIONS]
    known = seen["known"] == 1
    logs, past = (logs_of(one, seen, actions) for one in (weights, start))
    moved = (taken(logs, actions) - columns[Columns.ACTION_LOGP])[known]
    back = taken(past - logs, actions)[known]
    gains = np.broadcast_to(columns[GAINS][:, None], known.shape)[known]
    entropy = -(np.exp(logs) * logs).sum(axis=2)[known].mean()
    divergence = (np.exp(back) - 1.0 - back).mean()
    expected = {**terms_of_ppo(moved, gains), "entropy": entropy, "reference_kl": divergence}
    expected["total_loss"] = expected["policy_loss"] - 0.01 * entropy + 2.0 * divergence
    assert divergence > 1e-4
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name


@pytest.mark.parametrize("student_share", [0.0, 0.5])
def test_the_experts_token_is_asked_for_after_what_was_done(student_share: float) -> None:
    *_, columns = sampled(Guesses(labelled=True), student_share, steps=8)
    seen, actions = columns[Columns.OBS], columns[Columns.ACTIONS]
    known, expert = seen["known"] == 1, columns[EXPERT_ACTIONS].copy()
    assert_array_equal(expert[known], seen["shown"].argmax(axis=2)[known])
    same = (actions == expert)[known].mean()
    assert same == 1.0 if student_share == 0.0 else 0.5 < same < 0.9
    expert[:, 1] = -1  # nobody says anything about the second token
    made = learner()
    logs = logs_of(made.weights()[PLANNER], seen, actions)
    expected = -taken(logs, np.maximum(expert, 0))[known & (expert >= 0)].mean()
    found = update(made, {PLANNER: {**columns, EXPERT_ACTIONS: expert}})[PLANNER]
    assert found["cross_entropy"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("labelled", [pytest.param(True, marks=pytest.mark.proof), False])
def test_plans_are_learned_to_the_optimum(labelled: bool, tmp_path: Path) -> None:
    chosen = training(25 if labelled else 0, episodes=4)
    chosen = replace(chosen, max_steps=64 * 25, evaluation_episodes=16)
    result = train_policies(chosen, task_of(Guesses(labelled)), tmp_path)
    assert np.mean(untrained(tmp_path)) > 1.2
    assert_allclose(result.outcomes, 1.0, atol=1e-6)
    assert result.best.objective == 0.0


@pytest.mark.proof
def test_a_run_about_problems_that_goes_on_is_the_run_that_did_not_stop(tmp_path: Path) -> None:
    in_parts(tmp_path, training(episodes=2), task_of, 32 * 3, 32 * 6)
    paths = [tmp_path / name / OPTIMIZER for name in ("whole", "parts")]
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_what_whole_plans_cannot_do_is_said() -> None:
    with refusal("field 'steps'"):
        task_of(**GOES_ON)
