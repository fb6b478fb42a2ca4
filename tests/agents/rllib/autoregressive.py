"""A source of problems whose best plan is shown, and a small policy that composes plans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from agents.rllib.module import sample_rows
from agents.rllib.task import Array, Numbers
from envs.placement.episodes import Judged
from models.architecture import Appraisal, Composed, Policy

TOKENS, CHOICES = 5, 3
OBSERVED = spaces.Dict(
    {
        "shown": spaces.Box(0.0, 1.0, (TOKENS, CHOICES), np.float32),
        "known": spaces.Box(0, 1, (TOKENS,), np.int8),
    }
)


class Chain(Policy):
    """Token after token: logits of what is shown of it and of the token before."""

    def __init__(self) -> None:
        super().__init__()
        self.of_shown = nn.Linear(CHOICES, CHOICES)
        self.of_last = nn.Linear(CHOICES, CHOICES, bias=False)

    def compose(self, observation: Mapping[str, Tensor], greedy: bool = False) -> Composed:
        known = observation["known"].bool()
        actions = torch.zeros(known.shape, dtype=torch.int64)
        for k in range(TOKENS):
            logits = self.logits(observation, actions)[:, k]
            chosen = logits.argmax(dim=1) if greedy else sample_rows(torch.softmax(logits, dim=1))
            actions[:, k] = chosen.where(known[:, k], 0)
        found = self.appraise(observation, actions)
        return Composed(actions, found.log_probabilities, found.scores)

    def appraise(
        self, observation: Mapping[str, Tensor], actions: Tensor, asked: Tensor | None = None
    ) -> Appraisal:
        known = observation["known"].bool()
        logs = torch.log_softmax(self.logits(observation, actions), dim=2)
        wanted = (actions if asked is None else asked).clamp(min=0)
        own = logs.gather(2, wanted.unsqueeze(2)).squeeze(2)
        entropy = -(logs.exp() * logs).sum(dim=2)
        return Appraisal(own.where(known, 0.0), entropy, known, torch.zeros(len(known)))

    def logits(self, observation: Mapping[str, Tensor], actions: Tensor) -> Tensor:
        """(n, A, C)."""
        before = nn.functional.one_hot(actions, CHOICES).float().roll(1, dims=1)
        before[:, 0] = 0.0
        logits: Tensor = self.of_shown(observation["shown"]) + self.of_last(before)
        return logits


@dataclass(frozen=True)
class ChainConfig:
    """The architecture of `Chain`."""

    def policy(self, observation_space: spaces.Dict, action_space: spaces.Space[Any]) -> Policy:
        return Chain()


class Guessed:
    """A plan in which each wrong token costs 0.2; one that begins with the last choice fits not."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.length = int(rng.integers(2, TOKENS + 1))
        self.wanted = rng.integers(0, CHOICES, TOKENS)
        self.wanted[0] = rng.integers(0, CHOICES - 1)
        known = np.arange(TOKENS) < self.length
        shown = np.eye(CHOICES, dtype=np.float32)[self.wanted] * known[:, None]
        self.observation: Mapping[str, Array] = {"shown": shown, "known": known.astype(np.int8)}
        self.expert_action = np.where(known, self.wanted, 0)

    def judge(self, action: Array) -> Judged:
        wrong = 0.2 * float((action != self.wanted)[: self.length].sum())
        if action[0] == CHOICES - 1:
            return Judged(-2.0, float(np.exp(2.0)), np.inf, 1.0)
        ratio = float(np.exp(wrong))
        return Judged(-wrong, ratio, ratio, ratio, action.copy(), wrong)


class Guesses:
    """A source of them; it notes what was drawn."""

    measured = False
    observation_space, action_space = OBSERVED, spaces.MultiDiscrete([CHOICES] * TOKENS)

    def __init__(self, labelled: bool = False) -> None:
        self.labelled = labelled
        self.draws: list[tuple[int, float]] = []

    def draw(self, seed: int, progress: float) -> Guessed:
        self.draws.append((seed, progress))
        return Guessed(seed)

    def evaluation(self, number: int) -> Guessed:
        return Guessed(number)

    def state(self) -> Numbers:
        return {}

    def load(self, numbers: Numbers) -> None:
        pass
