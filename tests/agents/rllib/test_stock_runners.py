"""RLlib's own runners sample with our policies, and draw allowed actions alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner

from agents.rllib.module import module_spec
from agents.rllib.registration import register
from models.architecture import Architecture
from models.cluster.hierarchical import HierarchicalConfig
from models.step.channels import ChannelPolicyConfig

SCHEDULER = HierarchicalConfig(8, 1, 1, True, False, 0.1, 0.0, 0.0, 0.0)
CHANNELS = ChannelPolicyConfig(8, 1, 0.1, 0.1)


def config_of(name: str, architecture: Architecture) -> PPOConfig:
    register()
    config = PPOConfig().environment(f"meshwright/{name}").debugging(seed=0)
    config.env_runners(num_env_runners=0, num_envs_per_env_runner=2)
    return config.rl_module(rl_module_spec=module_spec(architecture))


def allowed(episode: Any) -> np.ndarray[Any, Any]:
    """Whether each action of an episode of one agent was."""
    masks = episode.get_observations()["action_mask"][:-1]
    return masks[np.arange(len(masks)), episode.get_actions()] == 1


@pytest.mark.parametrize(
    ("name", "architecture"),
    [("Cluster-v0", SCHEDULER), ("ClusterToy-v0", SCHEDULER)],
)
def test_actions_are_allowed(name: str, architecture: Architecture) -> None:
    runner = SingleAgentEnvRunner(config=config_of(name, architecture))
    episodes = runner.sample(num_timesteps=80)
    assert all(allowed(episode.to_numpy()).all() for episode in episodes)


def test_actions_of_several_agents_are_allowed() -> None:
    config = config_of("ClusterParallel-v0", SCHEDULER).multi_agent(
        policies=["shared"], policy_mapping_fn=lambda *_, **__: "shared"
    )
    runner = MultiAgentEnvRunner(config=config)
    for episode in runner.sample(num_timesteps=80):
        for own in episode.to_numpy().agent_episodes.values():
            assert allowed(own).all()


@pytest.mark.parametrize("name", ["BandwidthToy-v0", "BandwidthToyContinuous-v0"])
def test_actions_are_in_their_space(name: str) -> None:
    runner = SingleAgentEnvRunner(config=config_of(name, CHANNELS))
    space = runner.env.single_action_space
    episodes = runner.sample(num_timesteps=10)
    for episode in episodes:
        for action in episode.get_actions():
            assert np.shape(action) == space.shape
