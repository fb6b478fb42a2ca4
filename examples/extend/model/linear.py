"""A learned model: one linear layer that decides, and one for the critic.

python -m experiments.train task=environment task.id=meshwright/PlacementToy-v0 \
    model=examples.extend.model.linear.LinearConfig training.budget_s=20

In the project: `models/linear.py`, and a row of the group `model` in
`experiments/config/registry.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from models.architecture import MASKED_LOGIT, Policy


class LinearPolicy(Policy):
    """Masked logits of a `Discrete` action and a value, each one layer over all arrays."""

    def __init__(self, seen: spaces.Dict, actions: int) -> None:
        super().__init__()
        self.names = [name for name in seen.spaces if name != "action_mask"]
        width = sum(int(np.prod(seen[name].shape or ())) for name in self.names)
        self.actor, self.critic = nn.Linear(width, actions), nn.Linear(width, 1)

    def decide(self, observation: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        flat = torch.cat([observation[name].flatten(1).float() for name in self.names], dim=1)
        logits = self.actor(flat).masked_fill(observation["action_mask"] == 0, MASKED_LOGIT)
        return logits, self.critic(flat).squeeze(1)


@dataclass(frozen=True)
class LinearConfig:
    """What `model=` names: it makes the policy of any spaces that it fits."""

    def policy(self, observation_space: spaces.Dict, action_space: spaces.Space[Any]) -> Policy:
        assert isinstance(action_space, spaces.Discrete)
        return LinearPolicy(observation_space, int(action_space.n))
