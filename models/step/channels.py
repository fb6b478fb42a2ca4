"""`ChannelPolicy`: from a bipartite graph of channels and links to the weights of the channels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from annotated_types import Ge
from gymnasium import spaces
from torch import Tensor, nn
from torch.distributions import Categorical

from envs.bounds import Count, NonNegative, Positive, bounded
from envs.errors import InputError
from envs.joint.piped import LEVELS, PIPE, SERVER, TOP
from models.architecture import (
    MASKED_LOGIT,
    Appraisal,
    Architecture,
    Composed,
    Policy,
    perceptron,
    width_of,
)


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
        """A fresh policy for servers of `envs.joint.piped`.

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


@bounded
@dataclass(frozen=True)
class ChannelPolicyConfig:
    """Everything a person chooses about a channel policy; the spaces fix the rest.

    Attributes:
        hidden: width of channel and link states.
        rounds: rounds of message passing from channels to links and back.
        initial_scale: factor on the last layer's first weights; small means a start near equal
            weights for all channels.
        initial_deviation: standard deviation of a continuous weight's action at the start; of a
            level, the width of the bell over all levels, whose ends are 1 and -1.
    """

    hidden: Count = 32
    rounds: Annotated[int, Ge(0)] = 1
    initial_scale: NonNegative = 0.1
    initial_deviation: Positive = 0.1

    def policy(
        self, observation_space: spaces.Dict, action_space: spaces.Space[Any]
    ) -> ChannelPolicy:
        """A fresh policy for an agent that sees channels and gives each a weight.

        Raises:
            InputError: the agent does not.
        """
        channel, link, phase = (
            width_of(observation_space, f"{what}_features") for what in ("channel", "link", "phase")
        )
        if isinstance(action_space, spaces.MultiDiscrete):
            levels = set(action_space.nvec.tolist())
            if len(levels) != 1:
                raise InputError(f"channels have different numbers of levels: {sorted(levels)}")
            return ChannelPolicy(self, channel, link, phase, levels.pop())
        if isinstance(action_space, spaces.Box):
            return ChannelPolicy(self, channel, link, phase, None)
        raise InputError(f"a channel policy chooses levels or weights, not from {action_space}")


class ChannelPolicy(Policy):
    """Actor and critic over one encoder of channels and links; any number of each.

    A channel and the links it runs over exchange messages over the padded incidence, each side the
    mean of the other's. The head gives every channel a mean in -1..1 and, for levels, a deviation
    and a correction of every level: logits are those of a bell over the levels plus the correction,
    so that neighbouring levels learn together. Channels that are not active get level 0, or a
    standard normal action that does not depend on the weights.

    `channel`, `link` and `phase` are numbers of features. `levels` is the number of levels of a
    weight; None: the action is a real number.
    """

    def __init__(
        self, config: ChannelPolicyConfig, channel: int, link: int, phase: int, levels: int | None
    ) -> None:
        super().__init__()
        self.config, self.levels = config, levels
        hidden = config.hidden
        self.channel_input = nn.Linear(channel + phase, hidden)
        self.link_input = nn.Linear(link, hidden)
        self.to_links = nn.ModuleList(nn.Linear(2 * hidden, hidden) for _ in range(config.rounds))
        self.to_channels = nn.ModuleList(
            nn.Linear(2 * hidden, hidden) for _ in range(config.rounds)
        )
        self.mean = nn.Linear(hidden + channel, 1)
        self.correction = None if levels is None else nn.Linear(hidden, levels)
        self.log_deviation = nn.Parameter(torch.tensor(math.log(config.initial_deviation)))
        self.value = perceptron(2 * hidden + phase, hidden, 1)
        with torch.no_grad():
            for head in (self.mean, self.correction):
                if head is not None:
                    head.weight.mul_(config.initial_scale)
                    head.bias.zero_()

    def decide(self, observation: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """(B, C * L) logits, or (B, 2 C) means and logarithms of deviations; (B,) values."""
        features, phase = observation["channel_features"], observation["phase_features"]
        present = observation["channel_mask"].to(features.dtype).unsqueeze(-1)  # (B, C, 1)
        share, back = _incidence(observation)
        context = phase.unsqueeze(1).expand(-1, features.shape[1], -1)
        channels = torch.relu(self.channel_input(torch.cat([features, context], dim=-1))) * present
        links = torch.relu(self.link_input(observation["link_features"]))
        for to_links, to_channels in zip(self.to_links, self.to_channels, strict=True):
            heard = torch.cat([links, torch.bmm(share, channels)], dim=-1)
            links = links + torch.relu(to_links(heard))
            heard = torch.cat([channels, torch.bmm(back, links)], dim=-1)
            channels = channels + torch.relu(to_channels(heard)) * present
        active = observation["active"] != 0  # (B, C)
        mean = torch.tanh(self.mean(torch.cat([channels, features], dim=-1)).squeeze(-1))
        mean = mean.masked_fill(~active, 0.0)
        if self.correction is None:
            deviation = self.log_deviation.expand_as(mean).masked_fill(~active, 0.0)
            actions = torch.cat([mean, deviation], dim=-1)
        else:
            actions = self._levels(mean, self.correction(channels), observation["action_mask"])
        count = present.sum(dim=1).clamp(min=1.0)
        counted = channels * active.unsqueeze(-1).to(features.dtype)
        pooled = [channels.sum(dim=1) / count, counted.sum(dim=1) / count, phase]
        value: Tensor = self.value(torch.cat(pooled, dim=-1)).squeeze(-1)
        return actions, value

    def _levels(self, mean: Tensor, correction: Tensor, mask: Tensor) -> Tensor:
        """(B, C * L) masked logits from (B, C) means and (B, C, L) corrections."""
        levels = correction.shape[-1]
        at = torch.linspace(-1.0, 1.0, levels, dtype=mean.dtype, device=mean.device)
        distance = (at - mean.unsqueeze(-1)) * torch.exp(-self.log_deviation)
        logits = correction - 0.5 * distance.square()
        return logits.masked_fill(mask == 0, MASKED_LOGIT).flatten(1)


def _incidence(observation: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """(B, K, C) and (B, C, K): means over the channels of a link, over the links of a channel."""
    channels, links = observation["channel_mask"].shape[1], observation["link_mask"].shape[1]
    mask = observation["incidence_mask"].to(observation["channel_features"].dtype)  # (B, I)
    channel, link = observation["incidence"].unbind(1)  # (B, I) each; padded: the sinks C, K
    cell = link.clamp(max=links - 1) * channels + channel.clamp(max=channels - 1)
    flat = mask.new_zeros(mask.shape[0], links * channels).scatter_add(1, cell, mask)
    matrix = flat.view(-1, links, channels)
    over_links = matrix / matrix.sum(dim=2, keepdim=True).clamp(min=1.0)
    over_channels = matrix / matrix.sum(dim=1, keepdim=True).clamp(min=1.0)
    return over_links, over_channels.transpose(1, 2)
