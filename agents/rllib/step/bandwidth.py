"""How bandwidth is shared is learned phase by phase."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from agents.rllib.config import Training
from agents.rllib.task import Array, RLTask, RunnerEnv, Solution, Step
from envs.bandwidth.env import BandwidthEnv
from envs.errors import InputError

ALLOCATOR = "allocator"
INF, NAN = float("inf"), float("nan")


class BandwidthRunnerEnv(RunnerEnv):
    """An episode is one step, its objective the seconds.

    Args:
        task: whose it is.
        env: a copy of its own.
        kept: whether the task hears of what is met in it.
    """

    def __init__(self, task: BandwidthRLTask, env: BandwidthEnv, *, kept: bool) -> None:
        self.task, self.env, self.kept = task, env, kept

    @property
    def time(self) -> float:
        return float(self.info["phase"])

    def reset(self, seed: int, progress: float = 1.0, expert: Any = None) -> None:
        self.seen, self.info = self.env.reset(seed=seed)

    def observations(self) -> Sequence[Mapping[str, Array]]:
        return [self.seen]

    def step(self, actions: Sequence[Any]) -> Step:
        self.seen, reward, terminated, truncated, self.info = self.env.step(actions[0])
        if self.kept and np.isfinite(self.objective()):
            rate = np.stack([allocation.rate for allocation in self.env.allocations])
            self.task.keep(Solution(self.objective(), {"rate": rate}))
        return Step([reward], 1.0, terminated, truncated)

    def objective(self) -> float:
        """Step time in seconds; no step is feasible before its end."""
        return float(self.info["step_time_s"]) if self.info["feasible"] else INF

    def metrics(self) -> Mapping[str, float]:
        feasible = bool(self.info["feasible"])
        return {
            "step_time_s_mean": self.objective() if feasible else NAN,
            "feasible_share": float(feasible),
        }


class BandwidthRLTask(RLTask):
    """`meshwright/Bandwidth-v0`, discrete or continuous.

    Decisions: `rate` (P, C) bytes/s.

    Args:
        env: the environment before its first reset, of which every one has a copy.
        training: the run.

    Raises:
        InputError: episodes are to go on in the next iteration.
    """

    agents: Sequence[str] = (ALLOCATOR,)
    metrics: Sequence[str] = ("step_time_s_mean", "feasible_share")

    def __init__(self, env: BandwidthEnv, training: Training) -> None:
        if training.ppo.steps is not None:
            message = "every iteration starts from fresh episodes: set episodes, and this to null"
            raise InputError(message, field="steps")
        self.env = env

    def spaces_of(self, agent: str) -> tuple[spaces.Dict, spaces.Space[Any]]:
        return self.env.observation_space, self.env.action_space

    def make_env(self, index: int) -> BandwidthRunnerEnv:
        return BandwidthRunnerEnv(self, copy.copy(self.env), kept=True)

    def make_evaluation_env(self, number: int) -> BandwidthRunnerEnv:
        return BandwidthRunnerEnv(self, copy.copy(self.env), kept=False)
