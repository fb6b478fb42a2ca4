"""One environment of many that are stepped together, without what a single user of it needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor

from agents.rllib.cluster.memory import ObservationMemory
from envs.cluster.environment.episode import SchedulingEpisode
from envs.cluster.environment.parallel_env import ClusterParallelEnv
from envs.cluster.environment.play_kernel import FORWARDED, PREEMPTED, WAITED
from envs.cluster.environment.views import Advice, Adviser
from envs.cluster.simulation.cluster_state import NONE, RUNNING
from envs.errors import InputError

NO_JOB = -1.0


def remaining_seconds(episode: SchedulingEpisode, scheduler: int, out: NDArray[np.float32]) -> None:
    """Write the seconds of work left, on the reference GPU and alone, of the jobs shown.

    Args:
        episode: whose `scheduler` has just been observed.
        scheduler: its number.
        out: (W + M,) the window first, then the running jobs; `NO_JOB` where there is none.
    """
    state, book = episode.simulator.state, episode.book
    now = float(state.clock[0]["now"])
    _fill(state.jobs, now, book.window[scheduler], book.shown[scheduler], out)


@njit(cache=True)
def _fill(
    jobs: NDArray[np.void],
    now: float,
    window: NDArray[np.int32],
    shown: NDArray[np.int32],
    out: NDArray[np.float32],
) -> None:
    out[:] = NO_JOB
    for row in range(len(out)):
        job = window[row] if row < len(window) else shown[row - len(window)]
        if job == NONE:
            continue
        record = jobs[job]
        left = record.remaining
        progressing = max(record.settled, record.ready)
        if record.status == RUNNING and now > progressing:
            left = max(left - (now - progressing) * record.rate, 0.0)
        out[row] = left


def snapshot(episode: SchedulingEpisode) -> dict[str, Tensor]:
    """Every array of the simulator's state and of what schedulers know, as (n,) uint8."""
    return {
        name: torch.from_numpy(np.frombuffer(array.tobytes(), np.uint8).copy())
        for name, array in _arrays(episode)
    }


def restored(episode: SchedulingEpisode, arrays: Mapping[str, Tensor]) -> None:
    """Bring a fresh episode of the same instance to the state of a snapshot.

    Advice begins anew from there: what it has gathered of jobs that finished it gathers again, by
    their number and not in the order in which they finished.

    Raises:
        InputError: the snapshot is of another instance.
    """
    for name, array in _arrays(episode):
        if name not in arrays or arrays[name].numel() != array.nbytes:
            raise InputError("is not of this run's episode", record=name, field="episodes")
        saved = np.frombuffer(arrays[name].numpy().tobytes(), array.dtype)
        array[...] = saved.reshape(array.shape)
    adviser = episode.observation.adviser
    if adviser is not None:
        episode.advice = adviser.begin(episode)


def _arrays(episode: SchedulingEpisode) -> Iterator[tuple[str, NDArray[Any]]]:
    for group, record in (("state", episode.simulator.state), ("book", episode.book)):
        for field, value in record._asdict().items():
            yield f"{group}.{field}", value


class Stepped(NamedTuple):
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
