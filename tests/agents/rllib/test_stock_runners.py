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

SCHEDULER = HierarchicalConfig(hidden=8, rounds=1, heads=1)


def config_of(name: str, architecture: Architecture) -> PPOConfig:
    register()
    config = PPOConfig().environment(f"meshwright/{name}").debugging(seed=0)
    config.env_runners(num_env_runners=0, num_envs_per_env_runner=2)
    return config.rl_module(rl_module_spec=module_spec(architecture))


@pytest.mark.parametrize("name", ["Cluster-v0", "ClusterToy-v0", "ClusterParallel-v0"])
def test_actions_are_allowed(name: str) -> None:
    config, kind = config_of(name, SCHEDULER), SingleAgentEnvRunner
    if "Parallel" in name:
        kind = MultiAgentEnvRunner
        config.multi_agent(policies=["shared"], policy_mapping_fn=lambda *_, **__: "shared")
    for episode in kind(config=config).sample(num_timesteps=80):
        whole: Any = episode.to_numpy()
        for own in getattr(whole, "agent_episodes", {"": whole}).values():
            masks = own.get_observations()["action_mask"][:-1]
            assert (masks[np.arange(len(masks)), own.get_actions()] == 1).all()


@pytest.mark.parametrize("name", ["BandwidthToy-v0", "BandwidthToyContinuous-v0"])
def test_actions_are_in_their_space(name: str) -> None:
    runner = SingleAgentEnvRunner(config=config_of(name, ChannelPolicyConfig(8, 1, 0.1, 0.1)))
    shape = runner.env.single_action_space.shape
    for episode in runner.sample(num_timesteps=10):
        assert all(np.shape(action) == shape for action in episode.get_actions())
