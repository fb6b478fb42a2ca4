"""What training adds to an environment: one seed per episode, and a memory of ended episodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from envs.spaces import PaddedGraph


@dataclass(frozen=True, eq=False)
class EndedEpisode:
    """A complete placement met in training or decoding."""

    placement: NDArray[np.int64]  # (G,) device of each group
    step_time: float  # seconds, as the environment simulated it
    feasible: bool
    total_reward: float
    length: int  # decisions


class TrainingEnv(gym.Wrapper[PaddedGraph, Any, PaddedGraph, Any]):
    """The environment as the learner runs it.

    Episode k of environment i is seeded by (seed, i, k), whatever the caller of `reset` says:
    RLlib seeds every reset between samples with the *same* number, and a counter is all that a
    checkpoint then has to keep of the environment's randomness.

    Args:
        env: a placement environment; its last `info` of an episode holds `step_time_s` and
            `feasible`, its last observation the complete placement.
        seed: seed of the run.
        index: number of this environment within the run.
    """

    def __init__(self, env: gym.Env[PaddedGraph, Any], seed: int, index: int) -> None:
        super().__init__(env)
        self.episodes_started = 0
        self._key = (seed, index)
        self._ended: list[EndedEpisode] = []
        self._total_reward, self._length = 0.0, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[PaddedGraph, dict[str, Any]]:
        """Start the next episode; `seed` is left aside (see the class)."""
        del seed
        entropy = np.random.SeedSequence([*self._key, self.episodes_started])
        self.episodes_started += 1
        self._total_reward, self._length = 0.0, 0
        return self.env.reset(seed=int(entropy.generate_state(1)[0]), options=options)

    def step(self, action: Any) -> tuple[PaddedGraph, float, bool, bool, dict[str, Any]]:
        """One decision; an ended episode is remembered."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._total_reward += float(reward)
        self._length += 1
        if terminated or truncated:
            self._ended.append(
                EndedEpisode(
                    placement=observation["placement"][observation["node_mask"] == 1].copy(),
                    step_time=float(info["step_time_s"]),
                    feasible=bool(info["feasible"]),
                    total_reward=self._total_reward,
                    length=self._length,
                )
            )
        return observation, float(reward), terminated, truncated, info

    def drain(self) -> list[EndedEpisode]:
        """The episodes ended since the last call."""
        ended, self._ended = self._ended, []
        return ended
