"""The runner's environment does what `ClusterParallelEnv.step` does, and writes what it shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from numpy.random import default_rng
from numpy.testing import assert_allclose, assert_array_equal
from schedulers import environment

from agents.cluster.teachers import FirstFit
from agents.rllib.cluster.buffer import NO_BIN, NO_JOB, ClusterBuffer
from agents.rllib.cluster.scheduling import (
    SchedulingRunnerEnv,
    remaining_seconds,
    restored,
    snapshot,
)
from agents.rllib.task import Step
from envs.cluster.environment.instance import TERMS, ClusterReward, OwnCredit
from envs.cluster.environment.parallel_env import ClusterParallelEnv, toy_environment
from envs.cluster.simulation.cluster_state import NONE
from models.durations.network import bins_of
from tests.refusal import refusal

EVERYTHING = {
    "state_in_observation": True,
    "credit": OwnCredit(),
    "reward": ClusterReward(dict.fromkeys(TERMS, 1.0)),
    "forward_s": 60.0,
}


def attached(
    env: ClusterParallelEnv, index: int = 0, of: int = 1, times: int = 1
) -> tuple[SchedulingRunnerEnv, ClusterBuffer]:
    """Environment `index` of several in one buffer."""
    made, size = SchedulingRunnerEnv(env, per_gpu=False), env.schedulers
    space = env.observation_space(env.possible_agents[0])
    buffer = ClusterBuffer(env.observation, space, times, of * size)
    made.attach([(buffer, index * size + number) for number in range(size)])
    return made, buffer


def chosen(rng: np.random.Generator, buffer: ClusterBuffer) -> list[int]:
    """One allowed action of every scheduler in the buffer."""
    return [int(rng.choice(np.flatnonzero(mask))) for mask in buffer.masks[0]]


def played(
    made: SchedulingRunnerEnv, choose: Callable[[], list[int]], seed: int = 0, expert: Any = None
) -> Iterator[tuple[list[int], Step]]:
    """What is done in an episode, in which all is observed, and what comes of it."""
    made.reset(seed, expert=expert)
    over = False
    while not over:
        made.observe(0)
        joint = choose()
        step = made.step(joint)
        over = step.terminated or step.truncated
        yield joint, step


@pytest.mark.parametrize(
    "changes",
    [{}, EVERYTHING, {"horizon": 9}, {"schedulers": 1}],
    ids=["plain", "everything", "truncated", "alone"],
)
def test_it_steps_as_the_environment_does(changes: dict[str, Any]) -> None:
    rng, env = default_rng(0), environment(**changes)
    made, buffer = attached(environment(**changes), 1, 3)
    size, ended = env.schedulers, 0

    def choose() -> list[int]:
        written = buffer.at(0, np.arange(size, 2 * size))
        for number, agent in enumerate(env.possible_agents):
            assert set(written) == set(seen[agent])
            for key, array in seen[agent].items():
                assert_array_equal(written[key][number].numpy(), array)
                assert str(written[key].dtype).endswith(str(array.dtype))
        masks = written["action_mask"].numpy() | (rng.random((size, 1)) < 0.1)  # or anything
        return [int(rng.choice(np.flatnonzero(mask))) for mask in masks]

    for seed in range(4):
        seen, _ = env.reset(seed=seed)
        for joint, step in played(made, choose, seed):
            before = env.simulator.now
            seen, rewards, terminated, truncated, _ = env.step(
                dict(zip(env.possible_agents, joint, strict=True))
            )
            unit = env.simulator.trace.duration_s.mean()
            given = [reward / unit for reward in rewards.values()]
            assert step.rewards == pytest.approx(given, rel=1e-12)
            assert step.elapsed * unit == pytest.approx(env.simulator.now - before, abs=1e-6)
            assert {step.terminated} == set(terminated.values())
            assert {step.truncated} == set(truncated.values())
        ended += step.terminated
    assert ended == (0 if "horizon" in changes else 4)


def test_rows_of_a_buffer_do_not_touch_each_other() -> None:
    made, buffer = attached(environment(), 1, 3, times=2)
    for array in buffer.arrays.values():
        array[...] = 111
    made.reset(0)
    made.observe(1)
    untouched = np.array([[True] * 6, [True, True, False, False, True, True]])
    for array in buffer.arrays.values():
        same = (array == 111).reshape(2, 6, -1)
        assert_array_equal(same.all(axis=2), untouched)
        assert_array_equal(same.any(axis=2), untouched)
    buffer.move(1, 0)
    rows = np.array([2, 5])
    whole, some = buffer.at(1, np.arange(6)), buffer.at(1, rows)
    assert set(whole) == set(some) == set(buffer.arrays)
    for name, array in buffer.arrays.items():
        assert_array_equal(array[0], array[1])
        assert_array_equal(whole[name], array[1])
        assert_array_equal(some[name], array[1][rows])


def test_an_episode_goes_on_from_its_state_as_if_nothing_had_happened() -> None:
    (made, buffer), (other, second) = (attached(environment(jobs=12)) for _ in range(2))
    other.reset(3, expert=FirstFit())
    rng, steps = default_rng(1), 0
    for joint, step in played(made, lambda: chosen(rng, buffer), 3, FirstFit()):
        if steps >= 20:
            assert other.step(joint) == step
        steps += 1
        if steps == 60 or step.terminated or step.truncated:
            break
        if steps == 20:
            other.load(*made.state())
        if steps >= 20:
            made.observe(0)
            other.observe(0)
            assert other.expert_action(1) == made.expert_action(1)
            for name, array in buffer.arrays.items():
                assert_array_equal(array, second.arrays[name])
    assert steps > 26


def test_a_snapshot_of_another_instance_is_refused() -> None:
    made, other = attached(environment())[0], attached(toy_environment())[0]
    made.reset(0)
    other.reset(0)
    with refusal("is not of this run's episode"):
        restored(other.episode, snapshot(made.episode))


def test_a_running_job_ends_after_what_it_still_needs() -> None:
    made, buffer = attached(environment(jobs=14))
    rng, labels, met = default_rng(0), buffer.remaining[0], np.zeros(2, int)

    def choose() -> list[int]:
        simulator, book = made.episode.simulator, made.episode.book
        for scheduler in range(2):
            shown = np.append(book.window[scheduler], book.shown[scheduler])
            assert_array_equal(labels[scheduler] == NO_JOB, shown == NONE)
            jobs, running = simulator.state.jobs[shown], np.arange(9) >= 3
            left = np.where(  # every job runs at rate 1
                running, jobs["end"] - simulator.now, jobs["work"] - jobs["executed"]
            )
            known = shown != NONE
            assert_allclose(labels[scheduler][known], left[known], rtol=1e-5)
            met[:] += (known & running).sum(), (known & ~running).sum()
        bins = buffer.labels(1)[0]
        kept = bins != NO_BIN
        assert_array_equal(kept, labels != NO_JOB)
        assert_array_equal(bins[kept], bins_of(torch.from_numpy(labels[kept])))
        return chosen(rng, buffer)

    for seed in range(3):
        list(played(made, choose, seed))
    assert (met > [50, 20]).all()


def test_labels_change_nothing() -> None:
    env = environment()
    env.reset(seed=0)
    before = env.simulator.state.jobs.copy()
    env.episode.observe(0)
    remaining_seconds(env.episode, 0, np.zeros(9, np.float32))
    assert_array_equal(env.simulator.state.jobs, before)


def advised(made: SchedulingRunnerEnv) -> list[int]:
    return [made.expert_action(scheduler) for scheduler in range(2)]


def test_what_an_episode_came_to() -> None:
    """inf where jobs are left over."""
    for changes, finished in (({"jobs": 40}, 1.0), ({"horizon": 1}, 0.0)):
        made, _ = attached(environment(**changes))
        bounds = [made.lower_bound() for _ in played(made, partial(advised, made), 0, FirstFit())]
        assert made.metrics()["finished_share"] == finished
        if not finished:
            assert made.objective() == float("inf")
            continue
        mean = float(made.episode.simulator.schedule().jct.mean())
        assert made.objective() == made.metrics()["mean_jct_s"] == mean
        assert sorted(bounds) == bounds
        assert 0.0 == bounds[0] < bounds[-1] <= mean
