"""`AllocatorPolicy`: from one server's pipes to the next change of their weights, and its team."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from envs.bounds import Count, NonNegative, bounded
from envs.errors import InputError
from models.architecture import MASKED_LOGIT, Architecture, Policy, width_of

RAISE, LOWER = 8, 9  # the look-aheads among the features of a pipe


@bounded
@dataclass(frozen=True)
class AllocatorConfig:
    """Everything a person chooses about an allocator's policy; the spaces fix the rest.

    Attributes:
        hidden: width of the state of a change.
        initial_scale: factor on the last layer's first weights; small means a start near
            indifference between all changes.
        initial_keep: first logit of keeping all weights over that of a change. Levels that change
            in every step wander off before anything is learned.
        initial_look_ahead: first weight, in the logit of a change, of its look-ahead, which is
            below 0 where the step gets shorter; 0: a start that ignores it.
    """

    hidden: Count
    initial_scale: NonNegative
    initial_keep: float
    initial_look_ahead: float

    def policy(
        self, observation_space: spaces.Dict, action_space: spaces.Space[Any]
    ) -> AllocatorPolicy:
        """A fresh policy for an agent that changes the weights of a server's pipes.

        Raises:
            InputError: the agent does not.
        """
        pipe = width_of(observation_space, "pipe_features")
        server = width_of(observation_space, "server_features")
        if not isinstance(action_space, spaces.Discrete) or pipe <= LOWER:
            raise InputError(f"an allocator's policy chooses a change, not from {action_space}")
        return AllocatorPolicy(self, pipe, server)


class AllocatorPolicy(Policy):
    """A pointer over keeping all weights, raising each pipe and lowering each pipe.

    Every change is a row: the features of its pipe with the look-ahead of this change before that
    of the other way, and which way it is. One network reads every row beside the server and the
    mean and the largest of all rows, so that any number of pipes in any order will do.
    """

    def __init__(self, config: AllocatorConfig, pipe: int, server: int) -> None:
        super().__init__()
        self.config, self.pipe, self.server = config, pipe, server
        hidden = config.hidden
        self.row = nn.Linear(pipe + 1, hidden)
        self.context = nn.Linear(2 * hidden + server, hidden)
        self.change = nn.Sequential(nn.Linear(2 * hidden, hidden), nn.ReLU())
        self.logit = nn.Linear(hidden, 1, bias=False)
        self.direct = nn.Linear(pipe + 1, 1, bias=False)
        self.keep = nn.Linear(hidden, 1)
        self.value = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1))
        with torch.no_grad():
            self.logit.weight.mul_(config.initial_scale)
            self.keep.weight.mul_(config.initial_scale)
            self.keep.bias.fill_(config.initial_keep)
            self.direct.weight.zero_()
            self.direct.weight[0, RAISE] = config.initial_look_ahead

    def decide(self, observation: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """(B, 1 + 2 E) masked logits of an agent with E pipes, and (B,) values."""
        rows = changes(observation["pipe_features"])  # (B, 2 E, pipe + 1)
        states = torch.relu(self.row(rows))
        pooled = [states.mean(dim=1), states.amax(dim=1), observation["server_features"]]
        context = torch.relu(self.context(torch.cat(pooled, dim=-1)))  # (B, H)
        beside = context.unsqueeze(1).expand_as(states)
        change = self.change(torch.cat([states, beside], dim=-1))
        logits = (self.logit(change) + self.direct(rows)).squeeze(-1)
        logits = torch.cat([self.keep(context), logits], dim=1)
        masked = logits.masked_fill(observation["action_mask"] == 0, MASKED_LOGIT)
        value: Tensor = self.value(context).squeeze(-1)
        return masked, value


def changes(pipes: Tensor) -> Tensor:
    """(B, 2 E, F + 1) rows of all changes, raises before lowerings, from (B, E, F) pipes."""
    order = list(range(pipes.shape[-1]))
    order[RAISE], order[LOWER] = LOWER, RAISE
    up = torch.cat([pipes, torch.ones_like(pipes[..., :1])], dim=-1)
    down = torch.cat([pipes[..., order], -torch.ones_like(pipes[..., :1])], dim=-1)
    return torch.cat([up, down], dim=1)


@dataclass(frozen=True)
class TeamConfig:
    """What a person chooses about the policies of `meshwright/Joint-v0`.

    Attributes:
        placer: decides where the groups of the step run.
        allocator: decides on bandwidth, for each server the same weights.
    """

    placer: Architecture
    allocator: Architecture
