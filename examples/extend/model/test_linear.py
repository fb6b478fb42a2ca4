"""Forbidden actions have probability 0."""

import numpy as np
import torch

from envs.placement.env import toy_environment
from examples.extend.model.linear import LinearConfig
from models.architecture import Architecture


def test_forbidden_actions_are_never_chosen() -> None:
    env, config = toy_environment(), LinearConfig()
    assert isinstance(config, Architecture)
    policy = config.policy(env.observation_space, env.action_space)
    seen, _ = env.reset(seed=0)
    batch = {name: torch.from_numpy(np.asarray(array)[None]) for name, array in seen.items()}
    batch["action_mask"][0, 0] = 0
    logits, value = policy.decide(batch)
    assert logits.softmax(1)[0, 0] == 0.0
    assert value.shape == (1,)
