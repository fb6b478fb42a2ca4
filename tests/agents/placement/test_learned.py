from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from agents.placement.learned import LearnedAgent
from envs.errors import InputError
from envs.placement.env import toy_environment
from models.export.exporter import ModelCard, export_policy
from models.layout import widths_of
from models.step.policy import GraphBatch, PlacementPolicy
from tests.models.random_observations import policy_config

pytestmark = pytest.mark.slow

CARD = ModelCard("Toy", "meshwright/PlacementToy-v0", (-1.0, 4.0), "{}\n", "make run")


def test_an_exported_policy_plays_an_episode_as_the_policy_itself(tmp_path: Path) -> None:
    env = toy_environment()
    observation, _ = env.reset(seed=0)
    torch.manual_seed(0)
    config = policy_config(operator_rounds=2, initial_scale=1.0)
    policy = PlacementPolicy(config, widths_of(observation))
    agent = LearnedAgent(export_policy(policy, tmp_path / "scheduler", CARD))
    terminated = False
    while not terminated:
        with torch.inference_mode():
            expected = policy(GraphBatch.stack([observation]))[0][0].numpy()
        np.testing.assert_allclose(agent.logits(observation), expected, atol=1e-5, rtol=0)
        action = agent.act(observation)
        assert action == expected.argmax()
        assert observation["action_mask"][action] == 1
        observation, _, terminated, _, _ = env.step(action)


def test_a_folder_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"spec\.json: no such file"):
        LearnedAgent(tmp_path)
