"""What training adds to an environment: one seed per episode, and a memory of ended episodes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from agents.rllib.step.tasks import Found, Task


@dataclass(frozen=True, eq=False)
class Record:
    """A feasible plan better than all before it in its environment."""

    plan: Found
    step_time: float  # seconds, simulated on every operator


class Archive:
    """One record per environment: many, so that the search does not hang on a single plan.

    Returning to good states and exploring from there is the first half of Go-Explore (Ecoffet et
    al., "First return, then explore", Nature 590, 2021).

    Args:
        size: number of environments.
    """

    def __init__(self, size: int) -> None:
        self.records: list[Record | None] = [None] * size

    @property
    def best(self) -> Record | None:
        """The fastest of all; None before the first."""
        found = [record for record in self.records if record is not None]
        return min(found, key=lambda record: record.step_time, default=None)

    def offer(self, index: int, record: Record) -> None:
        """Keep `record` if it is environment `index`'s fastest."""
        held = self.records[index]
        if held is None or record.step_time < held.step_time:
            self.records[index] = record

    def draw(self, rng: np.random.Generator) -> Record | None:
        """The faster of two records drawn at random; None before the first."""
        found = [record for record in self.records if record is not None]
        if not found:
            return None
        drawn = [found[int(rng.integers(len(found)))] for _ in range(2)]
        return min(drawn, key=lambda record: record.step_time)


@dataclass(frozen=True, eq=False)
class WarmStart:
    """A plan somebody else has found, the first of the archive, and what it took to find it."""

    record: Record
    seconds: float  # wall clock, which training counts as its own

    @property
    def identity(self) -> str:
        """SHA-256 of the decisions."""
        decisions = {name: values.tolist() for name, values in self.record.plan.items()}
        return hashlib.sha256(json.dumps(decisions, sort_keys=True).encode()).hexdigest()


ALONE = ""  # the name of an agent without others


@dataclass(frozen=True)
class EndedEpisode:
    step_time: float  # seconds, as the environment simulated it
    feasible: bool
    total_reward: float
    length: int  # decisions


class EpisodeKeeper:
    """Seeds the episodes of one environment, remembers them and offers their plans to the archive.

    Episode k of environment i is seeded by (seed, i, k): a counter is all that a checkpoint has to
    keep of the environment's randomness.

    Every state that is a whole plan counts, not only an episode's last. One that the environment
    finds faster than all that fit before it, or nearly as fast (`Task.margin`) and the best of its
    episode so far, is simulated on every operator, memory included (`Task.outcome`), and offered to
    the archive. A share of the episodes starts from the archive.

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
        self._limit = float("inf")  # seconds below which a plan is simulated on every operator
        self.fastest = float("inf")  # plan offered, by the environment's own simulation, seconds

    def begin(self) -> tuple[Any, Any]:
        entropy = np.random.SeedSequence([*self._key, self.episodes_started])
        self.episodes_started += 1
        self._total_reward, self._length = 0.0, 0
        self._limit = self.fastest * (1.0 + self.task.margin)
        episode_seed = int(entropy.generate_state(1)[0])
        begun: tuple[Any, Any] = self.env.reset(seed=episode_seed)
        if self.restart_share == 0.0:
            return begun
        rng = np.random.default_rng(entropy)
        record = self.archive.draw(rng) if rng.random() < self.restart_share else None
        if record is None:
            return begun
        other = self.archive.draw(rng) or record
        start = self.task.restart(self.env.unwrapped, record.plan, other.plan, rng)
        again: tuple[Any, Any] = self.env.reset(seed=episode_seed, options=start)
        return again

    def note(self, info: Mapping[str, Any], reward: float, ended: bool) -> None:
        """Remember a decision that led to `info`."""
        self._total_reward += reward
        self._length += 1
        if self.task.whole(self.env.unwrapped, info) and info["step_time_s"] < self._limit:
            step_time, feasible = self.task.outcome(self.env.unwrapped)
            if feasible:
                self._limit = float(info["step_time_s"])
                self.fastest = min(self.fastest, self._limit)
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


class TrainingEnv:
    """The environment of `keeper` as the learner's runner steps it: every agent by its name.

    The agents of a PettingZoo `ParallelEnv` share one reward, act in every step and end together.
    The agent of a Gymnasium environment is called `ALONE`.
    """

    def __init__(self, keeper: EpisodeKeeper) -> None:
        self.keeper, self.env = keeper, keeper.env
        self.team = keeper.task.team
        self.agents: list[str] = list(self.env.possible_agents) if self.team else [ALONE]

    def spaces_of(self, agent: str) -> tuple[Any, Any]:
        """Of its observations and of its actions."""
        env = self.env
        if not self.team:
            return env.observation_space, env.action_space
        return env.observation_space(agent), env.action_space(agent)

    def reset(self) -> dict[str, Any]:
        observation, _ = self.keeper.begin()
        return observation if self.team else {ALONE: observation}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], float, bool, bool]:
        """One decision of every agent: observations, the reward, terminated, truncated."""
        seen, reward, terminated, truncated, info = self.env.step(
            actions if self.team else actions[ALONE]
        )
        if self.team:
            terminated, truncated = all(terminated.values()), all(truncated.values())
            reward, info = reward[self.agents[0]], info[self.agents[0]]
        else:
            seen = {ALONE: seen}
        self.keeper.note(info, float(reward), terminated or truncated)
        return seen, float(reward), bool(terminated), bool(truncated)
