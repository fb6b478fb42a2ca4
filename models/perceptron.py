"""A policy for any environment: all arrays of an observation side by side, then a perceptron."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from envs.bounds import Count, bounded
from envs.errors import InputError
from models.architecture import MASKED_LOGIT, Policy, perceptron

MASK = "action_mask"
LOG_STD = (-5.0, 1.0)  # of a continuous action: beyond, ratios of probabilities overflow


@bounded
@dataclass(frozen=True)
class PerceptronConfig:
    """`models.architecture.Architecture`: two hidden layers, which the actor and the critic share.

    Args:
        hidden: their width.
    """

    hidden: Count = 64

    def policy(self, observation_space: spaces.Dict, action_space: spaces.Space[Any]) -> Policy:
        return PerceptronPolicy(self, observation_space, action_space)


class PerceptronPolicy(Policy):
    """Actions of `Discrete`, `MultiDiscrete` or `Box`; where there is an `action_mask`, by it.

    Raises:
        InputError: the action space is another.
    """

    def __init__(
        self,
        config: PerceptronConfig,
        observation_space: spaces.Dict,
        action_space: spaces.Space[Any],
    ) -> None:
        super().__init__()
        if isinstance(action_space, spaces.Discrete):
            outputs = int(action_space.n)
        elif isinstance(action_space, spaces.MultiDiscrete):
            outputs = int(action_space.nvec.sum())
        elif isinstance(action_space, spaces.Box):
            outputs = 2 * int(np.prod(action_space.shape))
        else:
            raise InputError(f"{action_space} is no space of a perceptron's", field="action_space")
        self.config, self.continuous = config, isinstance(action_space, spaces.Box)
        self.names = tuple(name for name in observation_space.spaces if name != MASK)
        self.masked = MASK in observation_space.spaces
        inputs = sum(int(np.prod(observation_space[name].shape or ())) for name in self.names)
        self.body = perceptron(inputs, config.hidden, config.hidden)
        self.actor = nn.Linear(config.hidden, outputs)
        self.critic = nn.Linear(config.hidden, 1)
        with torch.no_grad():
            self.actor.weight.mul_(0.01)  # the first policy is nearly uniform

    def decide(self, observation: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        seen = [observation[name].flatten(1).float() for name in self.names]
        state = torch.relu(self.body(torch.cat(seen, dim=1)))
        inputs = self.actor(state)
        if self.continuous:
            mean, log_std = inputs.chunk(2, dim=1)
            inputs = torch.cat([mean, log_std.clamp(*LOG_STD)], dim=1)
        if self.masked:
            allowed = observation[MASK].flatten(1) != 0
            inputs = inputs.masked_fill(~allowed, MASKED_LOGIT)
        return inputs, self.critic(state).squeeze(1)
