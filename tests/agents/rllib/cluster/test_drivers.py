"""Who decides: draws follow probabilities, and the teacher drives what it is to drive."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from schedulers import MODEL, SMALL, environment
from scipy import stats

from agents.rllib.cluster.drivers import FirstFit, PolicyDriver, ShownAdvice, TaughtDriver, drawn
from agents.rllib.cluster.runner import Fragment, LockStepRunner
from envs.errors import InputError
from models.cluster.hierarchical import HierarchicalPolicy


def policy() -> HierarchicalPolicy:
    env = environment()
    agent = env.possible_agents[0]
    return MODEL.policy(env.observation_space(agent), env.action_space(agent))


def test_draws_follow_their_probabilities() -> None:
    chances = torch.tensor([0.0, 0.5, 0.0, 0.2, 0.3, 0.0])
    places = drawn(chances.expand(20_000, -1)).numpy()
    counts = np.bincount(places, minlength=6)
    assert counts[[0, 2, 5]].sum() == 0
    found = stats.chisquare(counts[[1, 3, 4]], 20_000 * np.array([0.5, 0.2, 0.3]))
    assert found.pvalue > 1e-4


def test_what_is_impossible_is_never_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    chances = torch.tensor([[0.0, 1.0 / 3.0, 2.0 / 3.0, 0.0], [1.0, 0.0, 0.0, 0.0]])
    for level in (0.0, 1.0):  # the ends of what a generator can give
        monkeypatch.setattr(torch, "rand", lambda *_, level=level, **__: torch.tensor(level))
        places = drawn(chances)
        assert (chances.gather(1, places[:, None]) > 0).all()


@pytest.mark.parametrize("share", [0.0, 1.0, 0.5])
def test_the_pupil_drives_its_share(share: float) -> None:
    network = policy()
    runner = LockStepRunner([environment() for _ in range(4)], 32, seed=0, teacher=FirstFit())
    fragment = runner.sample(TaughtDriver(network, share), network)
    assert fragment.taught is not None
    decided = fragment.decides & (fragment.memory.masks[:32].sum(axis=2) > 1)
    same = (fragment.actions == fragment.taught)[decided].mean()
    assert (same == 1.0) == (share == 0.0)
    assert (fragment.actions == fragment.taught)[~decided].all()
    if share == 0.5:
        assert 0.3 < same < 0.95


def sampled(runner: LockStepRunner, network: HierarchicalPolicy) -> Fragment:
    return runner.sample(PolicyDriver(network), network)


def test_a_fragment_says_what_the_policy_did() -> None:
    network = policy()
    runner = LockStepRunner([environment(horizon=13) for _ in range(3)], 24, seed=1)
    cut = 0
    for _ in range(4):
        fragment = sampled(runner, network)
        shape = fragment.actions.shape
        numbers = torch.arange(fragment.actions.size)
        with torch.no_grad():
            logits, values = network.decide(fragment.memory.take(numbers))
        logs = torch.log_softmax(logits, -1).view(*shape, -1).numpy()
        taken = np.take_along_axis(logs, fragment.actions[..., None], axis=2)[..., 0]
        assert (np.isfinite(taken) & (taken > -100.0)).all()
        np.testing.assert_allclose(
            taken[fragment.decides], fragment.log_probabilities[fragment.decides], atol=1e-4
        )
        np.testing.assert_allclose(
            values.view(shape).numpy()[fragment.decides],
            fragment.scores[fragment.decides],
            atol=1e-4,
        )
        assert (fragment.decides[0]).all()
        choices = fragment.memory.masks[:24].sum(axis=2) > 1
        np.testing.assert_array_equal(fragment.decides[1:], choices[1:])
        assert (fragment.times >= 0).all()
        assert (
            np.diff(fragment.now, axis=0)[~(fragment.terminated | fragment.cut)[:-1]] >= 0
        ).all()
        cut += fragment.cut.sum()
        assert (fragment.after[fragment.cut] != 0).all()
    assert cut > 0
    assert len(fragment.ended) == (fragment.terminated | fragment.cut)[:, ::2].sum()


def test_environments_that_are_alike_meet_the_same_jobs() -> None:
    runner = LockStepRunner([environment() for _ in range(4)], 2, seed=0, alike=2)
    sampled(runner, policy())
    submits = [lane.episode.instance.trace.submit_s for lane in runner.lanes]
    np.testing.assert_array_equal(submits[0], submits[1])
    np.testing.assert_array_equal(submits[2], submits[3])
    assert not np.array_equal(submits[0], submits[2])


def test_rewards_per_gpu_are_those_divided_by_the_gpus() -> None:
    network, found = policy(), []
    for per_gpu in (False, True):
        torch.manual_seed(0)
        runner = LockStepRunner([environment()], 24, seed=0, per_gpu=per_gpu)
        found.append(sampled(runner, network))
    assert found[0].rewards.min() < 0
    np.testing.assert_allclose(found[0].rewards, 8 * found[1].rewards, rtol=1e-12)
    assert found[0].ended == found[1].ended


def test_time_and_rewards_are_counted_in_mean_durations() -> None:
    """A step's reward is minus the number of unfinished jobs times how long it takes."""
    runner = LockStepRunner([environment()], 24, seed=0)
    fragment = sampled(runner, policy())
    passes = fragment.times > 0
    unfinished = -fragment.rewards[passes] / fragment.times[passes]
    np.testing.assert_allclose(unfinished, np.round(unfinished), atol=1e-6)
    assert unfinished.max() > 1
    mean = runner.lanes[0].episode.simulator.trace.duration_s.mean()
    assert runner.units_s == [mean]
    goes_on = ~(fragment.terminated | fragment.cut)[:-1]
    np.testing.assert_allclose(np.diff(fragment.now, axis=0)[goes_on], fragment.times[:-1][goes_on])


def test_shown_advice_is_the_teacher_that_the_observation_has() -> None:
    """A pupil who is to do what it is shown can be told so."""
    shown = partial(SMALL, adviser=FirstFit())
    runner = LockStepRunner([environment(observation=shown)], 24, seed=0, teacher=ShownAdvice())
    env = environment(observation=shown)
    agent = env.possible_agents[0]
    network = MODEL.policy(env.observation_space(agent), env.action_space(agent))
    fragment = runner.sample(TaughtDriver(network, 0.0), network)
    advised = fragment.memory.take(torch.arange(48))["advised"].numpy().reshape(24, 2)
    np.testing.assert_array_equal(fragment.actions[fragment.decides], advised[fragment.decides])
    with pytest.raises(InputError, match="shows nobody's advice"):
        ShownAdvice().begin(runner_without_advice().lanes[0].episode)


def runner_without_advice() -> LockStepRunner:
    runner = LockStepRunner([environment()], 1, seed=0)
    sampled(runner, policy())
    return runner
