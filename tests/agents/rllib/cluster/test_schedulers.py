"""Schedulers through the core's runner and update: what is sampled is what the environment gave."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.testing import assert_allclose, assert_array_equal
from schedulers import MODEL, SMALL, environment, schedulers, training

from agents.cluster.teachers import FirstFit, ShownAdvice
from agents.rllib.algorithm import LockStepPPO, algorithm
from agents.rllib.cluster.lane import SchedulingLane
from agents.rllib.config import Cloning
from agents.rllib.runner import Fragment, Order
from envs.cluster.environment.episode import SchedulingEpisode
from tests.refusal import refusal

CLONING = Cloning(iterations=9, learning_rate=2e-3, num_epochs=4, first_share=0.0, last_share=0.0)


def built(ppo: dict[str, Any], chosen: dict[str, Any] | None = None, **changes: Any) -> LockStepPPO:
    return algorithm(training(ppo, **(chosen or {})), schedulers(**changes))


def sampled(made: LockStepPPO, pupil: float | None = None) -> Fragment:
    assert made.runner is not None
    steps = made.training.ppo.steps
    assert steps is not None
    return made.runner.sample(Order(0, 1.0, steps, pupil))


def lanes(made: LockStepPPO) -> list[SchedulingLane]:
    assert made.runner is not None
    return list(made.runner.lanes)  # type: ignore[arg-type]


def test_environments_that_are_alike_meet_the_same_jobs() -> None:
    made = built({"alike": 2, "steps": 2})
    sampled(made)
    submits = [lane.episode.instance.trace.submit_s for lane in lanes(made)]
    assert_array_equal(submits[0], submits[1])
    assert_array_equal(submits[2], submits[3])
    assert not np.array_equal(submits[0], submits[2])


def test_rewards_per_gpu_are_those_divided_by_the_gpus() -> None:
    found = [
        sampled(built({"num_envs": 1, "steps": 24}, per_gpu=per_gpu)) for per_gpu in (False, True)
    ]
    (whole,), (divided,) = (fragment.parts.values() for fragment in found)
    assert whole.rewards.min() < 0
    assert_allclose(whole.rewards, 8 * divided.rewards, rtol=1e-12)


def test_time_and_rewards_are_counted_in_mean_durations() -> None:
    """A step's reward is minus the number of unfinished jobs times how long it takes."""
    made = built({"num_envs": 1, "steps": 24}, per_gpu=False)
    fragment = sampled(made)
    (part,) = fragment.parts.values()
    passes = fragment.elapsed[:, 0] > 0
    unfinished = -part.rewards[passes] / fragment.elapsed[passes]
    assert_allclose(unfinished, np.round(unfinished), atol=1e-6)
    assert unfinished.max() > 1
    goes_on = ~(fragment.terminated | fragment.cut)[:-1]
    assert_allclose(
        np.diff(fragment.now, axis=0)[goes_on], fragment.elapsed[:-1][goes_on], atol=1e-9
    )


def test_shown_advice_is_the_teacher_that_the_observation_has() -> None:
    """A pupil who is to do what it is shown can be told so."""
    shown = partial(environment, observation=partial(SMALL, adviser=FirstFit()))
    chosen = {"cloning": CLONING}
    made = built({"num_envs": 1, "steps": 24}, chosen, make=shown, teacher=ShownAdvice())
    (part,) = sampled(made, pupil=0.0).parts.values()
    advised = part.observations["advised"].reshape(24, 2)
    assert_array_equal(part.actions[part.decides], advised[part.decides])
    lane = SchedulingLane(environment(), per_gpu=True)
    with refusal("shows nobody's advice"):
        lane.reset(0, adviser=ShownAdvice())


def test_cloning_takes_the_teachers_ways_and_its_prospects() -> None:
    ppo = {"steps": 64, "minibatch_size": 64}
    chosen = {"cloning": CLONING, "model": replace(MODEL, hidden=16), "seed": 2}
    made = built(ppo, chosen, make=partial(environment, jobs=40))
    found = []
    for _ in range(9):
        made.training_step()
        assert made.row["charts/learning_rate"] == 2e-3
        found.append(made.row)
    first, last = found[0], found[-1]
    assert last["losses/cross_entropy"] < 0.5 * first["losses/cross_entropy"]
    assert last["losses/agreement"] > 0.9
    assert last["losses/auxiliary_loss"] < first["losses/auxiliary_loss"]
    explained = [row["losses/explained_variance"] for row in found]
    assert np.mean(explained[-4:]) > max(explained[0], 0.2)
    assert not made.cloning


class Forbidden(FirstFit):
    """Starts jobs that are not there."""

    def begin(self, episode: SchedulingEpisode) -> Forbidden:  # type: ignore[override]
        return self

    def action(self, episode: SchedulingEpisode, scheduler: int) -> int:  # type: ignore[override]
        return 0


def test_a_teacher_that_does_what_is_not_allowed_is_refused() -> None:
    made = built({}, {"cloning": CLONING}, teacher=Forbidden())
    with refusal("field 'teacher': does what is not allowed"):
        sampled(made, pupil=0.0)


def test_no_policy_is_refused() -> None:
    with refusal("field 'model': int describes no policy"):
        schedulers().architectures(3)
