"""What every multi-agent environment promises."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence
from numpy.random import default_rng
from pettingzoo.test import parallel_api_test, parallel_seed_test

from envs import PARALLEL, make_parallel
from experiments.config.papers import register_environments

register_environments()
MultiAgentEnv = Any  # PettingZoo is untyped


@pytest.fixture(params=sorted(PARALLEL))
def make(request: pytest.FixtureRequest) -> Callable[[], MultiAgentEnv]:
    return partial(make_parallel, PARALLEL[request.param], render_mode="rgb_array")


def test_at_least_these_environments_are_there() -> None:
    named = ("Joint", "JointToy", "ClusterParallel", "ClusterParallelToy")
    assert {f"meshwright/{name}-v0" for name in named} <= set(PARALLEL)


def masked_actions(
    observations: dict[str, dict[str, Any]], rng: np.random.Generator
) -> dict[str, int]:
    """A random allowed action for every agent."""
    return {
        agent: int(rng.choice(np.flatnonzero(seen["action_mask"])))
        for agent, seen in observations.items()
    }


def rollout(env: MultiAgentEnv, seed: int, steps: int) -> list[Any]:
    """Everything `env` returns under masked random actions from `seed`."""
    rng = default_rng(seed)
    observations, infos = env.reset(seed=seed)
    seen: list[Any] = [(observations, infos)]
    for _ in range(steps):
        result = env.step(masked_actions(observations, rng))
        observations = result[0]
        seen.append(result)
        if not env.agents:
            observations, infos = env.reset()
            seen.append((observations, infos))
    return seen


def test_pettingzoo_finds_nothing_to_complain_about(make: Callable[[], MultiAgentEnv]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parallel_api_test(make(), num_cycles=60)
        parallel_seed_test(make, num_cycles=30)


def test_equal_seeds_give_equal_episodes(make: Callable[[], MultiAgentEnv]) -> None:
    assert data_equivalence(rollout(make(), 3, 30), rollout(make(), 3, 30))


def test_a_pickled_and_a_copied_environment_go_on_identically(
    make: Callable[[], MultiAgentEnv],
) -> None:
    env = make()
    rollout(env, 5, 3)
    twins = [pickle.loads(pickle.dumps(env)), copy.deepcopy(env)]
    expected = rollout(env, 6, 20)
    for twin in twins:
        assert data_equivalence(rollout(twin, 6, 20), expected)


def test_a_copy_in_mid_episode_does_not_disturb_the_original(
    make: Callable[[], MultiAgentEnv],
) -> None:
    env = make()
    observations, _ = env.reset(seed=1)
    actions = masked_actions(observations, default_rng(0))
    observations = env.step(actions)[0]
    actions = masked_actions(observations, default_rng(1))
    twins = [pickle.loads(pickle.dumps(env)), copy.deepcopy(env)]
    expected = env.step(actions)
    for twin in twins:
        assert data_equivalence(twin.step(actions), expected)
        rollout(twin, 9, 10)
    again, _ = env.reset(seed=1)
    repeated = env.step(masked_actions(again, default_rng(0)))[0]
    assert data_equivalence(repeated, observations)


def test_all_agents_act_in_every_step_and_end_together(make: Callable[[], MultiAgentEnv]) -> None:
    env, rng = make(), default_rng(0)
    observations, infos = env.reset(seed=0)
    ended = False
    while not ended:
        assert env.agents == env.possible_agents == list(observations) == list(infos)
        observations, rewards, terminations, truncations, infos = env.step(
            masked_actions(observations, rng)
        )
        assert list(rewards) == list(terminations) == list(truncations) == env.possible_agents
        shared = len(set(rewards.values())) == 1
        assert shared or sum(rewards.values()) == 0.0  # opponents
        assert len(set(terminations.values())) == 1
        assert not any(truncations.values())
        ended = all(terminations.values())
    assert env.agents == []


def test_observations_stay_in_their_space_and_one_action_is_always_allowed(
    make: Callable[[], MultiAgentEnv],
) -> None:
    env = make()
    for seed in range(2):
        for observations, *_, infos in rollout(env, seed, 40):
            for agent, seen in observations.items():
                for key, space in env.observation_space(agent).items():
                    assert space.contains(seen[key]), (agent, key)
                assert seen["action_mask"].any()
                assert len(seen["action_mask"]) == env.action_space(agent).n
                np.testing.assert_array_equal(infos[agent]["action_mask"], seen["action_mask"])


def test_observations_are_fresh_arrays(make: Callable[[], MultiAgentEnv]) -> None:
    env = make()
    observations, _ = env.reset(seed=2)
    kept = copy.deepcopy(observations)
    following, *_ = env.step(masked_actions(observations, default_rng(0)))
    assert data_equivalence(observations, kept)
    for agent, seen in observations.items():
        for key in seen:
            assert not np.shares_memory(seen[key], following[agent][key])


def test_info_is_flat(make: Callable[[], MultiAgentEnv]) -> None:
    for *_, infos in rollout(make(), 0, 10):
        for info in infos.values():
            for key, value in info.items():
                assert key == "action_mask" or np.isscalar(value), key


def test_rendering_gives_a_picture(make: Callable[[], MultiAgentEnv]) -> None:
    env = make()
    rollout(env, 0, 3)
    frame = env.render()
    assert frame.dtype == np.uint8
    assert frame.ndim == 3
    assert frame.shape[2] == 3
    assert frame.std() > 0
