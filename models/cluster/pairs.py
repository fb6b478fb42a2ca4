"""A policy over what a scheduler could do next: pairs of a job and a place, or to wait.

A graph of nodes and candidates: every node sends a message to every candidate, which says how the
candidate's job would do there; a candidate takes the mean and the most of them, what is known of it
alone, and the mean of the other candidates. The residual is on the rule's choice, which comes first
and has a head start; scores are 0 before training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from envs.bounds import Count, NonNegative, bounded
from models.architecture import MASKED_LOGIT, Policy


@bounded
@dataclass(frozen=True)
class PairsConfig:
    """`models.architecture.Architecture`.

    Attributes:
        hidden: width.
        head_start: logit of the rule's choice beside the others, before training.
    """

    hidden: Count = 32
    head_start: NonNegative = 2.0

    def policy(
        self, observation_space: spaces.Dict, action_space: spaces.Space[Any]
    ) -> PairsPolicy:
        return PairsPolicy(self, observation_space)


class PairsPolicy(Policy):
    """Scores of candidates as logits; there is no critic, values are 0."""

    def __init__(self, config: PairsConfig, space: spaces.Dict) -> None:
        super().__init__()
        self.config, hidden = config, config.hidden

        def matrix(inputs: int) -> nn.Parameter:
            return nn.Parameter((torch.rand(inputs, hidden) * 2.0 - 1.0) * (3.0 / inputs) ** 0.5)

        width = {name: (box.shape or ())[-1] for name, box in space.spaces.items()}
        self.node, self.edge = matrix(width["node"]), matrix(width["edge"])
        self.pair, self.pooled = matrix(width["pair"]), matrix(2 * hidden)
        self.again, self.others = matrix(hidden), matrix(hidden)
        self.message, self.alone, self.second, self.score = nn.ParameterList(
            nn.Parameter(torch.zeros(hidden)) for _ in range(4)
        )

    def decide(self, observation: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        logits = self.scores(observation)
        logits = logits + self.config.head_start * observation["pair"][..., 0]
        allowed = observation["action_mask"] > 0
        return logits.masked_fill(~allowed, MASKED_LOGIT), torch.zeros(len(logits))

    def scores(self, observation: Mapping[str, Tensor]) -> Tensor:
        """(B, K)."""
        nodes, there = observation["node"], observation["node"][..., 0]
        messages = (nodes @ self.node)[:, None] + observation["edge"] @ self.edge + self.message
        messages = torch.relu(messages) * there[:, None, :, None]
        mean = messages.sum(2) / there.sum(1).clamp(min=1.0)[:, None, None]
        pooled = torch.cat([mean, messages.amax(2)], dim=-1) @ self.pooled
        states = torch.relu(observation["pair"] @ self.pair + pooled + self.alone)
        candidates = observation["action_mask"].to(states.dtype)
        context = (states * candidates[..., None]).sum(1) / candidates.sum(1)[:, None]
        last = states @ self.again + (context @ self.others)[:, None] + self.second
        found: Tensor = torch.relu(last) @ self.score
        return found
