"""One environment of many that are stepped together, without what a single user of it needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agents.rllib.cluster.labels import remaining_seconds
from agents.rllib.cluster.memory import ObservationMemory
from envs.cluster.environment.advice import Advice, Adviser
from envs.cluster.environment.episode import SchedulingEpisode
from envs.cluster.environment.parallel_env import ClusterParallelEnv
from envs.cluster.environment.play_kernel import FORWARDED, PREEMPTED, WAITED


class Stepped(NamedTuple):
    """What came of a step."""

    rewards: list[float]  # of every scheduler, as the environment gives them
    seconds: float  # that passed
    terminated: bool
    truncated: bool


class Lane:
    """Steps the `SchedulingEpisode` of an environment as `ClusterParallelEnv.step` does.

    The environment makes episodes and says what they are worth; observations go straight to where
    a batch is taken from, and neither `info` nor dictionaries of agents are made.

    Args:
        env: the environment.
        index: its number; the observations of its S schedulers are rows `index` S and on.
    """

    def __init__(self, env: ClusterParallelEnv, index: int) -> None:
        self.env, self.schedulers = env, env.schedulers
        self.rows = slice(index * self.schedulers, (index + 1) * self.schedulers)
        self.decisions = 0
        self.advice: Advice | None = None
        self._wait = 0

    @property
    def episode(self) -> SchedulingEpisode:
        """The episode that runs."""
        return self.env.episode

    @property
    def now(self) -> float:
        """Seconds since the episode's second 0."""
        return self.episode.simulator.now

    def reset(self, seed: int, teacher: Adviser | None = None) -> None:
        """Begin an episode; `advice` is what the teacher says about it."""
        self.env.reset(seed=seed)
        self.advice = None if teacher is None else teacher.begin(self.episode)
        self.decisions = 0
        self._wait = self.episode.action_table.size - 1

    def observe(
        self, memory: ObservationMemory, time: int, remaining: NDArray[np.float32] | None = None
    ) -> None:
        """Write what all schedulers see to `memory`, and into `remaining` (B, W + M) its labels."""
        episode = self.episode
        episode.summarise()
        memory.clear(time, self.rows)
        for scheduler in range(self.schedulers):
            row = self.rows.start + scheduler
            buffers, mask = memory.row(time, row)
            episode.fill(scheduler, buffers, mask)
            if remaining is not None:
                remaining_seconds(episode, scheduler, remaining[row])
        if memory.state is not None:
            seen = [
                {"cluster_features": row}
                for row in memory.array("cluster_features", time, self.rows)
            ]
            memory.state[time, self.rows] = episode.shared_state(seen)

    def step(self, actions: Sequence[int], masks: NDArray[np.int8]) -> Stepped:
        """Carry out one action of every scheduler; `masks` (S, A) say which are allowed."""
        episode, env = self.episode, self.env
        allowed = [bool(masks[s, action]) for s, action in enumerate(actions)]
        outcomes = [
            episode.act(s, action) if allowed[s] and action != self._wait else WAITED
            for s, action in enumerate(actions)
        ]
        waits = all(allowed) and all(action == self._wait for action in actions)
        before = self.now
        stuck = waits and not episode.wait()
        rewards = [0.0] * self.schedulers
        if waits or not all(allowed) or PREEMPTED in outcomes or FORWARDED in outcomes:
            own = [
                env.reward.terms(episode.passed(s, outcomes[s], waits, allowed[s]))
                for s in range(self.schedulers)
            ]
            rewards = [float(sum(terms.values())) for terms in env.credit(own)]
        self.decisions += 1
        terminated = waits and episode.ended
        return Stepped(
            rewards=rewards,
            seconds=self.now - before,
            terminated=terminated,
            truncated=not terminated and (stuck or self.decisions >= env.horizon),
        )
