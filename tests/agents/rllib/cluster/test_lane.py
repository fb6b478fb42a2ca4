"""A lane does what `ClusterParallelEnv.step` does, and writes what it shows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from schedulers import environment

from agents.rllib.cluster.lane import NO_JOB, Lane, remaining_seconds, restored, snapshot
from agents.rllib.cluster.memory import ObservationMemory
from envs.cluster.environment.parallel_env import ClusterParallelEnv, toy_environment
from envs.cluster.environment.reward import TERMS, ClusterReward, OwnCredit
from envs.cluster.simulation.cluster_state import NONE
from envs.errors import InputError

EVERYTHING = {
    "state_in_observation": True,
    "credit": OwnCredit(),
    "reward": ClusterReward(dict.fromkeys(TERMS, 1.0)),
    "forward_s": 60.0,
}


def memory_of(env: ClusterParallelEnv, rows: int, times: int = 1) -> ObservationMemory:
    space = env.observation_space(env.possible_agents[0])
    return ObservationMemory(env.observation, space, times, rows)


@pytest.mark.parametrize(
    "changes",
    [{}, EVERYTHING, {"horizon": 9}, {"schedulers": 1}],
    ids=["plain", "everything", "cut", "alone"],
)
def test_a_lane_steps_as_the_environment_does(changes: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    env, lane = environment(**changes), Lane(environment(**changes), 1)
    size = env.schedulers
    memory = memory_of(env, 3 * size)
    ended = 0
    for seed in range(4):
        seen, _ = env.reset(seed=seed)
        lane.reset(seed)
        over = False
        while not over:
            lane.observe(memory, 0)
            written = memory.at(0, np.arange(3 * size))
            for number, agent in enumerate(env.possible_agents):
                assert set(written) == set(seen[agent])
                for key, array in seen[agent].items():
                    np.testing.assert_array_equal(written[key][size + number].numpy(), array)
                    assert str(written[key].dtype).endswith(str(array.dtype))
            masks = memory.masks[0, lane.rows]
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
            step = lane.step(joint, masks)
            assert step.rewards == pytest.approx(list(rewards.values()), rel=1e-12)
            assert step.seconds == env.simulator.now - before
            assert {step.terminated} == set(terminated.values())
            assert {step.truncated} == set(truncated.values())
            over = step.terminated or step.truncated
        ended += step.terminated
    assert ended == (0 if "horizon" in changes else 4)


def test_rows_of_memory_do_not_touch_each_other() -> None:
    env = environment()
    memory = memory_of(env, 6, times=2)
    for array in (memory.floats, memory.indices, memory.flags, memory.masks):
        array[...] = 1
    lane = Lane(env, 1)
    lane.reset(0)
    lane.observe(memory, 1)
    for array in (memory.floats, memory.indices, memory.flags, memory.masks):
        assert (array[0] == 1).all()
        assert (array[1, :2] == 1).all()
        assert (array[1, 4:] == 1).all()
        assert not (array[1, 2:4] == 1).all()
    memory.move(1, 0)
    np.testing.assert_array_equal(memory.floats[0], memory.floats[1])
    taken = memory.take(torch.tensor([6 + 2, 3]))
    whole = memory.at(1, np.arange(6))
    np.testing.assert_array_equal(taken["running_mask"][0], whole["running_mask"][2])
    np.testing.assert_array_equal(taken["action_mask"][1], memory.masks[0, 3])


def test_an_episode_goes_on_from_a_snapshot_as_if_nothing_had_happened() -> None:
    rng = np.random.default_rng(1)
    lane, other = Lane(environment(jobs=12), 0), Lane(environment(jobs=12), 0)
    memory, second = memory_of(lane.env, 2), memory_of(lane.env, 2)
    lane.reset(3)
    other.reset(3)
    for step in range(60):
        lane.observe(memory, 0)
        if step == 20:
            restored(other.episode, snapshot(lane.episode))
        if step >= 20:
            other.observe(second, 0)
            np.testing.assert_array_equal(memory.floats, second.floats)
            np.testing.assert_array_equal(memory.masks, second.masks)
        joint = [int(rng.choice(np.flatnonzero(mask))) for mask in memory.masks[0]]
        made = lane.step(joint, memory.masks[0])
        if step >= 20:
            assert other.step(joint, second.masks[0]) == made
        if made.terminated or made.truncated:
            break
    assert step > 25


def test_a_snapshot_of_another_instance_is_refused() -> None:
    lane, other = Lane(environment(), 0), Lane(toy_environment(), 0)
    lane.reset(0)
    other.reset(0)
    with pytest.raises(InputError, match="is not of this run's episode"):
        restored(other.episode, snapshot(lane.episode))


def test_a_running_job_ends_after_what_it_still_needs() -> None:
    env = environment(jobs=14)
    lane = Lane(env, 0)
    space = env.observation_space(env.possible_agents[0])
    memory = ObservationMemory(env.observation, space, 1, 2)
    labels = np.zeros((2, 9), np.float32)
    rng = np.random.default_rng(0)
    running = waiting = 0
    for seed in range(3):
        lane.reset(seed)
        over = False
        while not over:
            lane.observe(memory, 0, labels)
            episode = lane.episode
            jobs = episode.simulator.state.jobs
            for scheduler in range(2):
                shown = episode.book.shown[scheduler]
                window = episode.book.window[scheduler]
                assert ((labels[scheduler] == NO_JOB) == (np.append(window, shown) == NONE)).all()
                for place in np.flatnonzero(shown != NONE):  # every job runs at rate 1
                    left = jobs["end"][shown[place]] - lane.now
                    np.testing.assert_allclose(labels[scheduler, 3 + place], left, rtol=1e-5)
                    running += 1
                for place in np.flatnonzero(window != NONE):
                    job = jobs[window[place]]
                    np.testing.assert_allclose(
                        labels[scheduler, place], job["work"] - job["executed"], rtol=1e-5
                    )
                    waiting += 1
            masks = memory.masks[0]
            joint = [int(rng.choice(np.flatnonzero(mask))) for mask in masks]
            step = lane.step(joint, masks)
            over = step.terminated or step.truncated
    assert running > 50
    assert waiting > 20


def test_labels_change_nothing() -> None:
    env = environment()
    env.reset(seed=0)
    before = env.simulator.state.jobs.copy()
    env.episode.observe(0)
    remaining_seconds(env.episode, 0, np.zeros(9, np.float32))
    np.testing.assert_array_equal(env.simulator.state.jobs, before)
