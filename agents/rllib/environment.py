"""What training adds to an environment: one seed per episode, and a memory of ended episodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from pettingzoo import ParallelEnv
from ray.rllib.env.multi_agent_env import MultiAgentEnv

from agents.rllib.archive import Archive, Record
from agents.rllib.tasks import Task


@dataclass(frozen=True)
class EndedEpisode:
    """What an episode of training came to."""

    step_time: float  # seconds, as the environment simulated it
    feasible: bool
    total_reward: float
    length: int  # decisions


class EpisodeKeeper:
    """Seeds the episodes of one environment, remembers them and offers their plans to the archive.

    Episode k of environment i is seeded by (seed, i, k), whatever the caller of `reset` says:
    RLlib seeds every reset between samples with the *same* number, and a counter is all that a
    checkpoint then has to keep of the environment's randomness.

    Every state that is a whole plan counts, not only an episode's last. One that the environment
    finds faster than all that fit before it is simulated on every operator, memory included
    (`Task.outcome`), and offered to the archive. A share of the episodes starts from the archive.

    Args:
        env: the environment; `info` holds `step_time_s` and, at the end of an episode, `feasible`.
        task: knows the plans of the environment.
        seed: seed of the run.
        index: number of this environment within the run.
        archive: of the run.
        restart_share: share of episodes that start from a record, once there is one.
    """

    def __init__(
        self, env: Any, task: Task, seed: int, index: int, archive: Archive, restart_share: float
    ) -> None:
        self.env, self.task = env, task
        self.archive, self.restart_share = archive, restart_share
        self.episodes_started = 0
        self._key = (seed, index)
        self._ended: list[EndedEpisode] = []
        self._total_reward, self._length = 0.0, 0
        self.fastest = float("inf")  # plan offered, by the environment's own simulation, seconds

    def begin(self, options: dict[str, Any] | None) -> tuple[Any, Any]:
        """Reset the environment for the next episode."""
        entropy = np.random.SeedSequence([*self._key, self.episodes_started])
        self.episodes_started += 1
        self._total_reward, self._length = 0.0, 0
        episode_seed = int(entropy.generate_state(1)[0])
        begun: tuple[Any, Any] = self.env.reset(seed=episode_seed, options=options)
        if options is not None or self.restart_share == 0.0:
            return begun
        rng = np.random.default_rng(entropy)
        record = self.archive.draw(rng) if rng.random() < self.restart_share else None
        if record is None:
            return begun
        start = self.task.restart(self.env.unwrapped, record.plan, rng)
        again: tuple[Any, Any] = self.env.reset(seed=episode_seed, options=start)
        return again

    def note(self, info: Mapping[str, Any], reward: float, ended: bool) -> None:
        """Remember a decision that led to `info`."""
        self._total_reward += reward
        self._length += 1
        if self.task.whole(self.env.unwrapped, info) and info["step_time_s"] < self.fastest:
            step_time, feasible = self.task.outcome(self.env.unwrapped)
            if feasible:
                self.fastest = float(info["step_time_s"])
                plan = self.task.plan(self.env.unwrapped)
                self.archive.offer(self._key[1], Record(plan, step_time))
        if ended:
            self._ended.append(
                EndedEpisode(
                    step_time=float(info["step_time_s"]),
                    feasible=bool(info["feasible"]),
                    total_reward=self._total_reward,
                    length=self._length,
                )
            )

    def drain(self) -> list[EndedEpisode]:
        """The episodes ended since the last call."""
        ended, self._ended = self._ended, []
        return ended


class TrainingEnv(gym.Wrapper[Any, Any, Any, Any]):
    """An environment of one agent as the learner runs it."""

    def __init__(self, keeper: EpisodeKeeper) -> None:
        super().__init__(keeper.env)
        self.keeper = keeper

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start the next episode; `seed` is left aside (see `EpisodeKeeper`)."""
        del seed
        return self.keeper.begin(options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One decision."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.keeper.note(info, float(reward), terminated or truncated)
        return observation, float(reward), terminated, truncated, info


class TeamTrainingEnv(MultiAgentEnv):
    """A PettingZoo environment whose agents share one reward, as the learner runs it.

    All agents act in every step and end together: one that first appeared in the last step would
    never act.
    """

    def __init__(self, keeper: EpisodeKeeper) -> None:
        super().__init__()
        self.keeper = keeper
        env: ParallelEnv[str, Any, Any] = keeper.env
        self._env = env
        self.agents = self.possible_agents = list(env.possible_agents)
        self.observation_spaces = {name: env.observation_space(name) for name in self.agents}
        self.action_spaces = {name: env.action_space(name) for name in self.agents}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start the next episode; `seed` is left aside (see `EpisodeKeeper`)."""
        del seed
        observations, _infos = self.keeper.begin(options)
        return observations, {}

    def step(
        self, action_dict: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, Any]]:
        """One joint decision."""
        observations, rewards, terminations, truncations, infos = self._env.step(action_dict)
        first = next(iter(infos))
        terminated = {**terminations, "__all__": all(terminations.values())}
        truncated = {**truncations, "__all__": all(truncations.values())}
        ended = terminated["__all__"] or truncated["__all__"]
        self.keeper.note(infos[first], float(rewards[first]), ended)
        return observations, rewards, terminated, truncated, {}
