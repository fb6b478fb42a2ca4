"""What the environments of several agents have in common."""

from __future__ import annotations

from typing import Any, TypeVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

Seen = TypeVar("Seen")
Infos = dict[str, dict[str, Any]]
Begun = tuple[dict[str, Seen], Infos]  # by `reset`
Stepped = tuple[dict[str, Seen], dict[str, float], dict[str, bool], dict[str, bool], Infos]


class AgentsEnv(ParallelEnv[str, Seen, int]):
    """A space for every agent; randomness that goes on where `reset` gets no seed."""

    observation_spaces: dict[str, spaces.Dict]
    action_spaces: dict[str, spaces.Discrete[np.int64]]
    _rng: np.random.Generator | None = None

    def observation_space(self, agent: str) -> spaces.Dict:
        """What `agent` sees."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Discrete[np.int64]:
        """What `agent` may do."""
        return self.action_spaces[agent]

    def randomness(self, seed: int | None) -> np.random.Generator:
        """Of the episode that begins."""
        if seed is not None or self._rng is None:
            self._rng = np.random.default_rng(seed)
        return self._rng

    def require_running(self) -> None:
        """Raise where the episode has ended."""
        if not self.agents:
            raise gym.error.ResetNeeded("the episode has ended: reset() comes first")
