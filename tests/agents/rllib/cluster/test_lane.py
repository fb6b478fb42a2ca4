"""A lane does what `ClusterParallelEnv.step` does, and writes what it shows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.random import default_rng
from numpy.testing import assert_allclose, assert_array_equal
from schedulers import environment

from agents.cluster.teachers import FirstFit
from agents.rllib.cluster.lane import SchedulingLane, remaining_seconds, restored, snapshot
from agents.rllib.cluster.memory import NO_BIN, NO_JOB, ObservationMemory
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


def memory_of(env: ClusterParallelEnv, rows: int, times: int = 1) -> ObservationMemory:
    space = env.observation_space(env.possible_agents[0])
    return ObservationMemory(env.observation, space, times, rows)


def seated(
    env: ClusterParallelEnv, index: int = 0, of: int = 1, times: int = 1
) -> tuple[SchedulingLane, ObservationMemory]:
    """Lane `index` of several in one memory."""
    lane, size = SchedulingLane(env, per_gpu=False), env.schedulers
    memory = memory_of(env, of * size, times)
    lane.attach([(memory, index * size + number) for number in range(size)])
    return lane, memory


@pytest.mark.parametrize(
    "changes",
    [{}, EVERYTHING, {"horizon": 9}, {"schedulers": 1}],
    ids=["plain", "everything", "cut", "alone"],
)
def test_a_lane_steps_as_the_environment_does(changes: dict[str, Any]) -> None:
    rng = default_rng(0)
    env = environment(**changes)
    lane, memory = seated(environment(**changes), 1, 3)
    size = env.schedulers
    ended = 0
    for seed in range(4):
        seen, _ = env.reset(seed=seed)
        lane.reset(seed)
        over = False
        while not over:
            lane.observe(0)
            written = memory.at(0, np.arange(3 * size))
            for number, agent in enumerate(env.possible_agents):
                assert set(written) == set(seen[agent])
                for key, array in seen[agent].items():
                    assert_array_equal(written[key][size + number].numpy(), array)
                    assert str(written[key].dtype).endswith(str(array.dtype))
            masks = memory.masks[0, size : 2 * size]
            joint = [
                int(rng.integers(masks.shape[1]))
                if rng.random() < 0.1  # mostly not allowed
                else int(rng.choice(np.flatnonzero(mask)))
                for mask in masks
            ]
            before = env.simulator.now
            seen, rewards, terminated, truncated, _ = env.step(
                dict(zip(env.possible_agents, joint, strict=True))
            )
            step = lane.step(joint)
            unit = env.simulator.trace.duration_s.mean()
            given = [reward / unit for reward in rewards.values()]
            assert step.rewards == pytest.approx(given, rel=1e-12)
            assert step.elapsed * unit == pytest.approx(env.simulator.now - before, abs=1e-6)
            assert {step.terminated} == set(terminated.values())
            assert {step.truncated} == set(truncated.values())
            over = step.terminated or step.truncated
        ended += step.terminated
    assert ended == (0 if "horizon" in changes else 4)


def test_rows_of_memory_do_not_touch_each_other() -> None:
    lane, memory = seated(environment(), 1, 3, times=2)
    for array in memory.arrays.values():
        array[...] = 111
    lane.reset(0)
    lane.observe(1)
    for array in memory.arrays.values():
        assert (array[0] == 111).all()
        assert (array[1, :2] == 111).all()
        assert (array[1, 4:] == 111).all()
        assert not (array[1, 2:4] == 111).any()
    memory.move(1, 0)
    for array in memory.arrays.values():
        assert_array_equal(array[0], array[1])
    whole, some = memory.at(1, np.arange(6)), memory.at(1, np.array([2, 5]))
    flat = memory.observations(2)
    assert set(flat) == set(whole)
    for name, seen in whole.items():
        assert_array_equal(some[name], seen[[2, 5]])
        assert_array_equal(flat[name][6:], seen)


def test_an_episode_goes_on_from_a_snapshot_as_if_nothing_had_happened() -> None:
    rng = default_rng(1)
    (lane, memory), (other, second) = seated(environment(jobs=12)), seated(environment(jobs=12))
    lane.reset(3, adviser=FirstFit())
    other.reset(3, adviser=FirstFit())
    for step in range(60):
        lane.observe(0)
        if step == 20:
            other.restore(*lane.document())
        if step >= 20:
            other.observe(0)
            assert other.advice(1) == lane.advice(1)
            for name, array in memory.arrays.items():
                assert_array_equal(array, second.arrays[name])
            assert_array_equal(memory.masks, second.masks)
        joint = [int(rng.choice(np.flatnonzero(mask))) for mask in memory.masks[0]]
        made = lane.step(joint)
        if step >= 20:
            assert other.step(joint) == made
        if made.terminated or made.truncated:
            break
    assert step > 25


def test_a_snapshot_of_another_instance_is_refused() -> None:
    lane, other = seated(environment())[0], seated(toy_environment())[0]
    lane.reset(0)
    other.reset(0)
    with refusal("is not of this run's episode"):
        restored(other.episode, snapshot(lane.episode))


def test_a_running_job_ends_after_what_it_still_needs() -> None:
    lane, memory = seated(environment(jobs=14))
    labels = memory.remaining[0]
    rng = default_rng(0)
    running = waiting = 0
    for seed in range(3):
        lane.reset(seed)
        over = False
        while not over:
            lane.observe(0)
            episode = lane.episode
            jobs = episode.simulator.state.jobs
            for scheduler in range(2):
                shown = episode.book.shown[scheduler]
                window = episode.book.window[scheduler]
                assert ((labels[scheduler] == NO_JOB) == (np.append(window, shown) == NONE)).all()
                for place in np.flatnonzero(shown != NONE):  # every job runs at rate 1
                    left = jobs["end"][shown[place]] - episode.simulator.now
                    assert_allclose(labels[scheduler, 3 + place], left, rtol=1e-5)
                    running += 1
                for place in np.flatnonzero(window != NONE):
                    job = jobs[window[place]]
                    assert_allclose(
                        labels[scheduler, place], job["work"] - job["executed"], rtol=1e-5
                    )
                    waiting += 1
            masks = memory.masks[0]
            joint = [int(rng.choice(np.flatnonzero(mask))) for mask in masks]
            bins = memory.labels(1)
            assert_array_equal(bins == NO_BIN, labels == NO_JOB)
            kept = bins != NO_BIN
            assert_array_equal(bins[kept], bins_of(torch.from_numpy(labels[kept])))
            step = lane.step(joint)
            over = step.terminated or step.truncated
    assert running > 50
    assert waiting > 20


def test_labels_change_nothing() -> None:
    env = environment()
    env.reset(seed=0)
    before = env.simulator.state.jobs.copy()
    env.episode.observe(0)
    remaining_seconds(env.episode, 0, np.zeros(9, np.float32))
    assert_array_equal(env.simulator.state.jobs, before)


def test_what_an_episode_came_to() -> None:
    lane, _ = seated(environment(jobs=40))
    lane.reset(0, adviser=FirstFit())
    bounds, over = [], False
    while not over:
        lane.observe(0)
        step = lane.step([lane.advice(0), lane.advice(1)])
        bounds.append(lane.at_least())
        over = step.terminated or step.truncated
    mean = float(lane.episode.simulator.schedule().jct.mean())
    assert lane.outcome() == mean
    assert lane.ended() == {"mean_jct_s": mean, "finished_share": 1.0}
    assert sorted(bounds) == bounds
    assert 0.0 == bounds[0] < bounds[-1] <= mean


def test_jobs_left_over_make_an_outcome_infinite() -> None:
    lane, _ = seated(environment(horizon=1))
    lane.reset(0, adviser=FirstFit())
    lane.observe(0)
    assert lane.step([lane.advice(0), lane.advice(1)]).truncated
    assert lane.outcome() == float("inf")
    assert lane.ended()["finished_share"] == 0.0
