"""`PipesPolicy`: a level for every pipe of a server at once, for any number of pipes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.distributions import Categorical

from envs.bounds import Count, Positive, bounded
from envs.errors import InputError
from envs.joint.whole import LEVELS, PIPE, SERVER, TOP
from models.architecture import Appraisal, Architecture, Composed, Policy


@bounded
@dataclass(frozen=True)
class PipesConfig:
    """Everything a person chooses about the policy.

    Attributes:
        hidden: width of the states.
        initial_root: first weight of the level that goes with the square root of the bytes; at 0
            all levels are 0, and weights equal.
        initial_spread: first standard deviation of a level.
    """

    hidden: Count = 64
    initial_root: float = 1.0
    initial_spread: Positive = 1.5

    def policy(
        self, observation_space: spaces.Dict, action_space: spaces.Space[Any]
    ) -> PipesPolicy:
        """A fresh policy for servers of `envs.joint.whole`.

        Raises:
            InputError: the spaces are others.
        """
        if "pipe_mask" not in observation_space.spaces:
            raise InputError("an allocator of whole problems reads pipes", field="model")
        return PipesPolicy(self)


@dataclass(frozen=True)
class TeamConfig:
    """What a person chooses about the policies of a team for whole problems.

    Attributes:
        placer: decides where the groups of the step run.
        allocator: decides on bandwidth, for each server the same weights.
    """

    placer: Architecture
    allocator: Architecture = PipesConfig()


class PipesPolicy(Policy):
    """The distribution of a level is a normal one at the levels, round a centre of its own.

    One network reads every pipe in use beside its server and the mean and the largest of them all.
    """

    def __init__(self, config: PipesConfig) -> None:
        super().__init__()
        self.config, hidden = config, config.hidden
        self.row = nn.Linear(PIPE, hidden)
        self.context = nn.Linear(2 * hidden + SERVER, hidden)
        self.both = nn.Linear(2 * hidden, hidden)
        self.level = nn.Linear(hidden, 2)
        self.root = nn.Parameter(torch.tensor(config.initial_root))
        with torch.no_grad():
            self.level.weight.zero_()
            self.level.bias[:] = torch.tensor([0.0, math.log(config.initial_spread)])

    def forward(self, pipes: Tensor, server: Tensor, mask: Tensor) -> Tensor:
        """(B, E, LEVELS) logits; of (B, E, PIPE), (B, SERVER) and (B, E) bool."""
        real = mask.unsqueeze(-1).to(pipes.dtype)
        states = torch.relu(self.row(pipes)) * real
        mean = states.sum(dim=1) / real.sum(dim=1).clamp(min=1.0)
        around = torch.relu(self.context(torch.cat([mean, states.amax(dim=1), server], dim=-1)))
        beside = around.unsqueeze(1).expand_as(states)
        own, spread = self.level(torch.relu(self.both(torch.cat([states, beside], dim=-1)))).chunk(
            2, dim=-1
        )
        centre = TOP * (self.root * pipes[..., :1] + own)
        levels = torch.arange(LEVELS, device=pipes.device, dtype=pipes.dtype) - TOP
        off = (levels - centre.clamp(-TOP, TOP)) / spread.clamp(-2.0, 2.0).exp()
        logits: Tensor = -0.5 * off.square()
        return logits

    def compose(self, observation: Mapping[str, Tensor], greedy: bool = False) -> Composed:
        """A level for each pipe of (n, ...) observations, by torch's global generator."""
        levels, mask = self._levels(observation)
        actions = levels.logits.argmax(dim=-1) if greedy else levels.sample()
        return Composed(actions * mask, levels.log_prob(actions) * mask, torch.zeros(len(mask)))

    def appraise(
        self, observation: Mapping[str, Tensor], actions: Tensor, asked: Tensor | None = None
    ) -> Appraisal:
        """What the policy says of (n, E) `actions`, with gradients."""
        levels, mask = self._levels(observation)
        logs = levels.log_prob(actions if asked is None else asked)
        return Appraisal(logs, levels.entropy(), mask, logs.new_zeros(len(mask)))

    def _levels(self, observation: Mapping[str, Tensor]) -> tuple[Categorical, Tensor]:
        mask = observation["pipe_mask"] > 0
        logits = self(observation["pipe_features"], observation["server_features"], mask)
        return Categorical(logits=logits, validate_args=False), mask
