"""How bandwidth is shared is learned phase by phase."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from agents.rllib.config import Training
from agents.rllib.subject import Array, KeepsBest, Lane, Solution, Stepped
from envs.bandwidth.env import BandwidthEnv
from envs.errors import InputError

ALLOCATOR = "allocator"
INF, NAN = float("inf"), float("nan")


class BandwidthLane(Lane):
    """An episode is one step, its objective the seconds.

    Args:
        subject: whose it is.
        env: a copy of its own.
        kept: whether the subject hears of what is met in it.
    """

    def __init__(self, subject: BandwidthSubject, env: BandwidthEnv, *, kept: bool) -> None:
        self.subject, self.env, self.kept = subject, env, kept

    @property
    def now(self) -> float:
        return float(self.info["phase"])

    def reset(self, seed: int, stage: float = 1.0, adviser: Any = None) -> None:
        self.seen, self.info = self.env.reset(seed=seed)

    def views(self) -> Sequence[Mapping[str, Array]]:
        return [self.seen]

    def step(self, actions: Sequence[Any]) -> Stepped:
        self.seen, reward, terminated, truncated, self.info = self.env.step(actions[0])
        if self.kept and np.isfinite(self.outcome()):
            rate = np.stack([allocation.rate for allocation in self.env.allocations])
            self.subject.offer(Solution(self.outcome(), {"rate": rate}))
        return Stepped([reward], 1.0, terminated, truncated)

    def outcome(self) -> float:
        """Step time in seconds; no step is feasible before its end."""
        return float(self.info["step_time_s"]) if self.info["feasible"] else INF

    def ended(self) -> Mapping[str, float]:
        feasible = bool(self.info["feasible"])
        return {
            "step_time_s_mean": self.outcome() if feasible else NAN,
            "feasible_share": float(feasible),
        }


class BandwidthSubject(KeepsBest):
    """`meshwright/Bandwidth-v0`, discrete or continuous.

    Decisions: `rate` (P, C) bytes/s.

    Args:
        env: the environment before its first reset, of which every lane has a copy.
        training: the run.

    Raises:
        InputError: episodes are to go on in the next iteration.
    """

    agents: Sequence[str] = (ALLOCATOR,)
    charts: Sequence[str] = ("step_time_s_mean", "feasible_share")

    def __init__(self, env: BandwidthEnv, training: Training) -> None:
        if training.ppo.steps is not None:
            message = "every iteration starts from fresh episodes: set episodes, and this to null"
            raise InputError(message, field="steps")
        self.env = env

    def spaces_of(self, agent: str) -> tuple[spaces.Dict, spaces.Space[Any]]:
        return self.env.observation_space, self.env.action_space

    def lane(self, index: int) -> BandwidthLane:
        return BandwidthLane(self, copy.copy(self.env), kept=True)

    def exam_lane(self, number: int) -> BandwidthLane:
        return BandwidthLane(self, copy.copy(self.env), kept=False)
