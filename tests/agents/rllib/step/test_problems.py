"""Whole plans as actions: what is sampled, and what is learned token by token."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.training_data import TrainingData
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.evaluation.postprocessing import Postprocessing
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch

from agents.rllib.advantages import PerStep, ranked
from agents.rllib.batch import BatchMaker
from agents.rllib.config import TRAINING, Cloning
from agents.rllib.module import TAUGHT
from agents.rllib.ppo import Instruction, PPOLearner
from agents.rllib.runner import SUBJECT, LockStepRunner, Order, Part, Shared, policies, specs
from agents.rllib.step.problems import PLANNER, Problems
from agents.rllib.training import train
from tests.agents.rllib.composing import CHOICES, TOKENS, ChainConfig, Guesses
from tests.agents.rllib.toys import small_ppo, small_training
from tests.refusal import refusal

ALIKE = 4
ONE_STEP = Instruction(seed=0, num_epochs=1, parts=1, learning_rate=1e-2, entropy_coefficient=0.01)


@pytest.fixture(autouse=True)
def generators() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def training(cloning: int = 0, **ppo: Any) -> Any:
    chosen = {
        "num_envs": 16,
        "alike": ALIKE,
        "discounting": PerStep(1.0, 1.0),
        "value_coefficient": 0.0,
        "auxiliary_coefficient": 0.0,
        **ppo,
    }
    return small_training(
        model=ChainConfig(),
        ppo=small_ppo(**chosen),
        cloning=Cloning(cloning, 3e-2, 2, 0.0, 0.0),
    )


def sampled(source: Guesses, pupil: float | None = None, steps: int = 2, **ppo: Any) -> Any:
    chosen = training(int(pupil is not None), **ppo)
    subject = Problems(source, chosen)
    config = PPOConfig().environment(
        env_config={SUBJECT: Shared(subject), TRAINING: Shared(chosen)}
    )
    runner = LockStepRunner(config=config, worker_index=0)
    runner.modules = policies(subject, ChainConfig())
    return runner, runner.sample(Order(0, 0.25, steps, pupil))


def learner(**ppo: Any) -> PPOLearner:
    chosen = training(**ppo)
    config = PPOConfig().learners(learner_config_dict={TRAINING: Shared(chosen)})
    spec = MultiRLModuleSpec(rl_module_specs=specs(Problems(Guesses(), chosen), ChainConfig()))
    made = PPOLearner(config=config, module_spec=spec)
    made.build()
    return made


def updated(made: PPOLearner, columns: Mapping[str, Any], **chosen: Any) -> dict[str, float]:
    data = TrainingData(batch=MultiAgentBatch({PLANNER: SampleBatch(dict(columns))}, 1))
    instruction = Instruction(**{**vars(ONE_STEP), **chosen})
    return made.update(training_data=data, instruction=instruction)[PLANNER]


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


def test_alike_lanes_meet_one_problem_and_every_token_has_its_probability() -> None:
    source = Guesses()
    runner, fragment = sampled(source)
    part: Part = fragment.parts[PLANNER]
    assert part.actions.shape == part.log_probabilities.shape == (2, 16, TOKENS)
    assert len(source.draws) == 2 * 16 // ALIKE
    assert {stage for _, stage in source.draws} == {0.25}
    for seen in part.observations.values():
        by_problem = seen.reshape(2, -1, ALIKE, *seen.shape[1:])
        assert (by_problem == by_problem[:, :, :1]).all()
    assert fragment.terminated.all()
    assert not fragment.cut.any()
    actions = part.actions.reshape(-1, TOKENS)
    policy = runner.modules[PLANNER].policy
    expected = taken(logs_of(policy.state_dict(), part.observations, actions), actions)
    known = part.observations["known"] == 1
    found = part.log_probabilities.reshape(-1, TOKENS)
    assert_allclose(found, np.where(known, expected, 0.0), atol=1e-6)
    assert not known.all()


def test_advantages_are_against_the_other_samples_of_the_problem() -> None:
    _, fragment = sampled(Guesses())
    part = fragment.parts[PLANNER]
    maker = BatchMaker(training().ppo, {PLANNER: 1})
    rows = maker.ready([fragment], 1).batches[0].policy_batches[PLANNER]
    returns = part.rewards.reshape(-1, ALIKE)
    expected = np.empty_like(returns)
    for of_problem, gains in zip(returns, expected, strict=True):
        for k, own in enumerate(of_problem):
            gains[k] = own - np.delete(of_problem, k).mean()
    flat = expected.reshape(-1)
    assert_allclose(
        rows[Postprocessing.ADVANTAGES], (flat - flat.mean()) / flat.std(), rtol=1e-5, atol=1e-6
    )
    assert rows[Columns.ACTION_LOGP].shape == (32, TOKENS)


def test_ranks_are_places_among_the_plans_of_a_problem() -> None:
    returns = np.array([[-1.0, -9.0, -2.0, -2.0, 3.0, 3.0, 3.0, 3.0]])
    found = ranked(returns, ALIKE, ALIKE)
    places = np.array([3.0, -3.0, 0.0, 0.0])
    assert_allclose(found[0, :4], places / places.std())
    assert_array_equal(found[0, 4:], 0.0)
    _, fragment = sampled(Guesses(), normalise_advantages="rank")
    maker = BatchMaker(training(normalise_advantages="rank").ppo, {PLANNER: 1})
    rows = maker.ready([fragment], 1).batches[0].policy_batches[PLANNER]
    expected = ranked(fragment.parts[PLANNER].rewards, ALIKE, ALIKE)
    assert_allclose(rows[Postprocessing.ADVANTAGES], expected.reshape(-1), rtol=1e-6)


def test_of_alike_plans_those_with_the_largest_advantages_are_learned_from() -> None:
    _, fragment = sampled(Guesses(), learned=2)
    fragment.parts[PLANNER].decides.flags.writeable = False  # as it comes from another process
    maker = BatchMaker(training(learned=2).ppo, {PLANNER: 1})
    rows = maker.ready([fragment], 1).batches[0].policy_batches[PLANNER]
    beside = np.abs(rows[Postprocessing.ADVANTAGES]).reshape(-1, ALIKE)
    kept = np.asarray(rows[Columns.LOSS_MASK]).reshape(-1, ALIKE)
    assert (kept.sum(axis=1) == 2).all()
    for size, chosen in zip(beside, kept, strict=True):
        assert size[chosen].min() >= size[~chosen].max()


def test_the_loss_of_plans_is_what_numpy_says_token_by_token() -> None:
    _, fragment = sampled(Guesses(), reference_kl=2.0)
    made = learner(reference_kl=2.0)
    columns = dict(
        BatchMaker(made.training.ppo, {PLANNER: 1})
        .ready([fragment], 1)
        .batches[0]
        .policy_batches[PLANNER]
    )
    start = {name: x.clone() for name, x in made.weights()[PLANNER].items()}
    updated(made, columns, num_epochs=5)  # the reference stays where it was
    weights = made.weights()[PLANNER]
    weights = {name: x.clone() for name, x in weights.items()}
    found = updated(made, columns)
    seen, actions = columns[Columns.OBS], columns[Columns.ACTIONS]
    known = seen["known"] == 1
    logs = logs_of(weights, seen, actions)
    moved = (taken(logs, actions) - columns[Columns.ACTION_LOGP])[known]
    gains = np.broadcast_to(columns[Postprocessing.ADVANTAGES][:, None], known.shape)[known]
    ratio = np.exp(moved)
    back = (taken(logs_of(start, seen, actions), actions) - taken(logs, actions))[known]
    expected = {
        "policy_loss": -np.minimum(ratio * gains, np.clip(ratio, 0.8, 1.2) * gains).mean(),
        "entropy": -(np.exp(logs) * logs).sum(axis=2)[known].mean(),
        "approx_kl": (ratio - 1.0 - moved).mean(),
        "old_approx_kl": -moved.mean(),
        "clipfrac": (np.abs(ratio - 1.0) > 0.2).mean(),
        "reference_kl": (np.exp(back) - 1.0 - back).mean(),
    }
    expected["total_loss"] = (
        expected["policy_loss"] - 0.01 * expected["entropy"] + 2.0 * expected["reference_kl"]
    )
    assert expected["reference_kl"] > 1e-4
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name


@pytest.mark.parametrize("pupil", [0.0, 0.5])
def test_what_is_taught_is_asked_for_after_what_was_done(pupil: float) -> None:
    _, fragment = sampled(Guesses(labelled=True), pupil, steps=8)
    part = fragment.parts[PLANNER]
    known = part.observations["known"].reshape(part.actions.shape) == 1
    wanted = part.observations["shown"].argmax(axis=2).reshape(part.actions.shape)
    assert_array_equal(part.taught[known], wanted[known])
    same = (part.actions == part.taught)[known].mean()
    assert same == 1.0 if pupil == 0.0 else 0.5 < same < 0.9
    made = learner()
    ready = BatchMaker(made.training.ppo, {PLANNER: 1}).ready([fragment], 1)
    columns = dict(ready.batches[0].policy_batches[PLANNER])
    columns[TAUGHT] = columns[TAUGHT].copy()
    columns[TAUGHT][:, 1] = -1  # nobody says anything about the second token
    logs = logs_of(made.weights()[PLANNER], columns[Columns.OBS], columns[Columns.ACTIONS])
    kept = (columns[Columns.OBS]["known"] == 1) & (columns[TAUGHT] >= 0)
    expected = -taken(logs, np.maximum(columns[TAUGHT], 0))[kept].mean()
    assert updated(made, columns)["cross_entropy"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("labelled", [pytest.param(True, marks=pytest.mark.proof), False])
def test_plans_are_learned_to_the_optimum(labelled: bool, tmp_path: Path) -> None:
    chosen = training(25 if labelled else 0, episodes=4)
    subject = Problems(Guesses(labelled), chosen)
    chosen = small_training(**{**vars(chosen), "max_steps": 64 * 25, "exam_episodes": 16})
    result = train(chosen, subject, tmp_path)
    assert np.mean(result.untrained) > 1.2
    assert_allclose(result.trained, 1.0, atol=1e-6)
    assert result.best is not None
    assert result.best.objective == 0.0


@pytest.mark.proof
def test_a_run_about_problems_that_goes_on_is_the_run_that_did_not_stop(tmp_path: Path) -> None:
    whole = small_training(**{**vars(training(episodes=2)), "max_steps": 32 * 6})
    half = small_training(**{**vars(whole), "max_steps": 32 * 3})
    train(whole, Problems(Guesses(), whole), tmp_path / "whole")
    train(half, Problems(Guesses(), half), tmp_path / "half")
    train(whole, Problems(Guesses(), whole), tmp_path / "half", resume=True)
    for name in ("weights", "optimizer"):
        last = f"checkpoints/iteration_000006/{name}.safetensors"
        assert (tmp_path / "whole" / last).read_bytes() == (tmp_path / "half" / last).read_bytes()


def test_what_whole_plans_cannot_do_is_said() -> None:
    with refusal("field 'steps'"):
        Problems(Guesses(), training(steps=2, episodes=None))
