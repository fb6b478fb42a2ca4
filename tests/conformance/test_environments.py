"""What every registered Gymnasium environment promises."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env, data_equivalence
from numpy.random import default_rng

from experiments.config.papers import register_environments
from tests.refusal import refusal
from tests.slurm_here import LIVE, LIVE_HERE

register_environments()
IDS = sorted(spec.id for spec in gym.registry.values() if spec.id.startswith("meshwright/"))
SIMULATED = [one for one in IDS if one != LIVE]
repeatable = pytest.mark.parametrize("env", SIMULATED, indirect=True)


@pytest.fixture(scope="module")
def live() -> Iterator[gym.Env[Any, Any]]:
    """The only one that takes real time: a millisecond for a second."""
    made = gym.make(LIVE, render_mode="rgb_array", scale=1000.0).unwrapped
    yield made
    made.close()


@pytest.fixture(params=[*SIMULATED, LIVE_HERE])
def env(request: pytest.FixtureRequest) -> gym.Env[Any, Any]:
    made: gym.Env[Any, Any] = (
        request.getfixturevalue("live")
        if request.param == LIVE
        else gym.make(request.param, render_mode="rgb_array").unwrapped
    )
    made.action_space.seed(0)
    return made


def masked_action(
    env: gym.Env[Any, Any], observation: dict[str, Any], rng: np.random.Generator
) -> Any:
    """A random action that the mask allows; any action of a space that has no mask."""
    space = env.action_space
    if isinstance(space, gym.spaces.Box):
        return rng.uniform(space.low, space.high).astype(space.dtype)
    if isinstance(space, gym.spaces.MultiDiscrete):
        rows = [rng.choice(np.flatnonzero(row)) for row in observation["action_mask"]]
        return np.array(rows)
    return rng.choice(np.flatnonzero(observation["action_mask"]))


def rollout(env: gym.Env[Any, Any], seed: int, steps: int) -> list[Any]:
    """Everything `env` returns under masked random actions from `seed`."""
    rng = default_rng(seed)
    observation, info = env.reset(seed=seed)
    seen: list[Any] = [(observation, info)]
    for _ in range(steps):
        action = masked_action(env, observation, rng)
        observation, reward, terminated, truncated, info = env.step(action)
        seen.append((observation, reward, terminated, truncated, info))
        if terminated or truncated:
            observation, info = env.reset()
            seen.append((observation, info))
    return seen


def test_at_least_these_environments_are_registered() -> None:
    kinds = {"Placement", "PlacementToy"} | {
        f"Bandwidth{toy}{kind}" for toy in ("", "Toy") for kind in ("", "Continuous")
    }
    kinds |= {f"Cluster{kind}" for kind in ("", "Preemptive", "Toy")}
    kinds |= {"Allocation", "SlurmCluster"}
    assert {f"meshwright/{kind}-v0" for kind in kinds} <= set(IDS)


@pytest.mark.slow
def test_importing_envs_is_cheap() -> None:
    heavy = (
        "{'torch', 'ray', 'transformers', 'torch_geometric', 'matplotlib', 'numba', 'pettingzoo'}"
    )
    check = f"import sys, envs; print({heavy} & set(sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "set()"


def test_gymnasium_finds_nothing_to_warn_about(env: gym.Env[Any, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env)


@repeatable
def test_equal_seeds_give_equal_episodes(env: gym.Env[Any, Any]) -> None:
    assert data_equivalence(rollout(env, 3, 40), rollout(env, 3, 40))


@repeatable
def test_a_pickled_and_a_copied_environment_go_on_identically(env: gym.Env[Any, Any]) -> None:
    rollout(env, 5, 3)
    twins = [pickle.loads(pickle.dumps(env)), copy.deepcopy(env)]
    expected = rollout(env, 6, 30)
    for twin in twins:
        assert data_equivalence(rollout(twin, 6, 30), expected)


@repeatable
def test_a_copy_in_mid_episode_does_not_disturb_the_original(env: gym.Env[Any, Any]) -> None:
    observation, _ = env.reset(seed=1)
    action = masked_action(env, observation, default_rng(0))
    twin = copy.deepcopy(env)
    expected = env.step(action)
    assert data_equivalence(twin.step(action), expected)
    rollout(twin, 9, 10)
    assert data_equivalence(env.reset(seed=1)[0], observation)


def test_observations_stay_in_their_space_and_one_action_is_always_allowed(
    env: gym.Env[Any, Any],
) -> None:
    episodes, steps = (3, 60) if env.spec is None or env.spec.id != LIVE else (1, 20)
    for seed in range(episodes):
        for observation, *_, info in rollout(env, seed, steps):
            for key, space in env.observation_space.items():
                assert space.contains(observation[key]), key
            if isinstance(env.action_space, gym.spaces.Box):
                assert "action_mask" not in observation
                continue
            allowed = observation["action_mask"].any(axis=-1).all()
            assert allowed, "an action is allowed in every observation, the last one too"
            np.testing.assert_array_equal(info["action_mask"], observation["action_mask"])


def test_action_masks_are_the_mask_of_the_observation_flat(env: gym.Env[Any, Any]) -> None:
    observation, _ = env.reset(seed=4)
    rng = default_rng(1)
    for _ in range(4):
        if isinstance(env.action_space, gym.spaces.Box):
            with refusal("no masks"):
                env.get_wrapper_attr("action_masks")()
            return
        masks = env.get_wrapper_attr("action_masks")()
        assert masks.dtype == np.bool_
        np.testing.assert_array_equal(masks, observation["action_mask"].ravel() == 1)
        action = masked_action(env, observation, rng)
        observation, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            return


def test_observations_are_fresh_arrays(env: gym.Env[Any, Any]) -> None:
    observation, _ = env.reset(seed=2)
    kept = copy.deepcopy(observation)
    following, *_ = env.step(masked_action(env, observation, default_rng(0)))
    assert data_equivalence(observation, kept)
    for key in observation:
        assert not np.shares_memory(observation[key], following[key])


def test_info_is_flat(env: gym.Env[Any, Any]) -> None:
    for *_, info in rollout(env, 0, 10):
        for key, value in info.items():
            assert key == "action_mask" or np.isscalar(value), key


def test_rendering_gives_a_picture(env: gym.Env[Any, Any]) -> None:
    rollout(env, 0, 3)
    frame = env.render()
    assert frame.dtype == np.uint8
    assert frame.ndim == 3
    assert frame.shape[2] == 3
    assert frame.std() > 0
