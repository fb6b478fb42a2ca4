"""Schedulers through the core's runner and update: what is sampled is what the environment gave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.testing import assert_allclose, assert_array_equal
from schedulers import MODEL, SMALL, environment, schedulers, training

from agents.cluster.teachers import FirstFit, ShownExpert
from agents.rllib.algorithm import algorithm
from agents.rllib.cluster.scheduling import SchedulingRunnerEnv
from agents.rllib.config import Cloning
from agents.rllib.module import modules_of
from agents.rllib.runner import ModuleRollout, Rollout, SampleRequest, VectorRunner
from envs.cluster.environment.episode import SchedulingEpisode
from tests.agents.rllib.toys import runner_of
from tests.refusal import refusal

CLONING = Cloning(9, 2e-3, 4, last_share=0.0)
ONE = {"num_envs": 1, "steps": 24}


def sampled(
    ppo: Mapping[str, Any] = ONE, student_share: float | None = None, **task: Any
) -> tuple[VectorRunner, Rollout, ModuleRollout]:
    chosen = training(ppo, cloning=CLONING)
    own = schedulers(**task)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        modules = modules_of(own, MODEL)
    runner = runner_of(own, chosen, modules)
    steps = chosen.ppo.steps
    rollout = runner.sample(SampleRequest(0, 1.0, steps, student_share))
    (of_module,) = rollout.modules.values()
    return runner, rollout, of_module


def test_environments_of_a_group_meet_the_same_jobs() -> None:
    runner, _, _ = sampled({"group_size": 2, "steps": 2})
    envs: Any = runner.envs
    first, second, third, fourth = (env.episode.instance.trace.submit_s for env in envs)
    assert_array_equal(first, second)
    assert_array_equal(third, fourth)
    assert not np.array_equal(first, third)


def test_time_and_rewards_are_counted_in_mean_durations_and_gpus() -> None:
    """A step's reward is minus the number of unfinished jobs times how long it takes."""
    _, rollout, own = sampled(per_gpu=False)
    passes = rollout.elapsed[:, 0] > 0
    unfinished = -own.rewards[passes] / rollout.elapsed[passes]
    assert_allclose(unfinished, np.round(unfinished), atol=1e-6)
    assert unfinished.max() > 1
    goes_on = ~(rollout.terminated | rollout.truncated)[:-1]
    passed = np.diff(rollout.time, axis=0)[goes_on]
    assert_allclose(passed, rollout.elapsed[:-1][goes_on], atol=1e-9)
    assert own.rewards.min() < 0
    assert_allclose(own.rewards, 8 * sampled(per_gpu=True)[2].rewards, rtol=1e-12)


def test_the_shown_expert_is_the_one_that_the_observation_has() -> None:
    """A student who is to do what it is shown can be told so."""
    shown = partial(environment, observation=partial(SMALL, expert=FirstFit()))
    _, _, own = sampled(student_share=0.0, make=shown, teacher=ShownExpert())
    assert_array_equal(own.actions[own.decides], own.observations["advised"][own.decides, 0])
    with refusal("shows no expert's action"):
        SchedulingRunnerEnv(environment(), per_gpu=True).reset(0, expert=ShownExpert())


def test_cloning_takes_the_experts_ways_and_its_prospects() -> None:
    ppo, model = {"steps": 64, "minibatch_size": 64}, replace(MODEL, hidden=16)
    chosen = training(ppo, cloning=CLONING, model=model, seed=2)
    made = algorithm(chosen, schedulers(partial(environment, jobs=40)))
    found = []
    for _ in range(9):
        made.training_step()
        assert made.row["charts/learning_rate"] == 2e-3
        found.append({name.partition("/")[2]: value for name, value in made.row.items()})
    first, last = found[0], found[-1]
    assert last["cross_entropy"] < 0.5 * first["cross_entropy"]
    assert last["agreement"] > 0.9
    assert last["auxiliary_loss"] < first["auxiliary_loss"]
    explained = [row["explained_variance"] for row in found]
    assert np.mean(explained[-4:]) > max(explained[0], 0.2)
    assert not made.cloning


class Forbidden(FirstFit):
    """Starts jobs that are not there."""

    def begin(self, episode: SchedulingEpisode) -> Forbidden:
        return self

    def action(self, episode: SchedulingEpisode, scheduler: int) -> int:
        return 0


def test_what_cannot_be_is_refused() -> None:
    with refusal("field 'teacher': does what is not allowed"):
        sampled(student_share=0.0, teacher=Forbidden())
    with refusal("field 'model': int describes no policy"):
        schedulers().architectures(3)
