"""What training adds to an environment: one seed per episode, and a memory of ended episodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from agents.rllib.archive import Archive, Record
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

    Every state in which all groups are placed is a whole plan, not only an episode's last. One that
    the environment finds faster than all that fit before it is simulated on every operator, memory
    included (`plan_outcome`), and offered to the archive. A share of the episodes starts from the
    archive.

    Args:
        env: a placement environment: `info` holds `step_time_s`, `placed` and, at the end of an
            episode, `feasible`; the observation holds the placement; `unwrapped.plan_outcome()`
            gives step time and feasibility of the present placement on every operator,
            `unwrapped.able` (G, D) which device can run which group.
        seed: seed of the run.
        index: number of this environment within the run.
        archive: of the run.
        restart_share: share of episodes that start from a record, once there is one.
        kick: a start from a record is changed by moving a run of up to this many groups.
    """

    def __init__(
        self,
        env: gym.Env[PaddedGraph, Any],
        seed: int,
        index: int,
        archive: Archive,
        restart_share: float,
        kick: int,
    ) -> None:
        super().__init__(env)
        self.archive, self.restart_share, self.kick = archive, restart_share, kick
        self.episodes_started = 0
        self._key = (seed, index)
        self._ended: list[EndedEpisode] = []
        self._total_reward, self._length = 0.0, 0
        self.fastest = float("inf")  # plan offered, by the environment's own simulation, seconds

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[PaddedGraph, dict[str, Any]]:
        """Start the next episode; `seed` is left aside (see the class)."""
        del seed
        entropy = np.random.SeedSequence([*self._key, self.episodes_started])
        self.episodes_started += 1
        self._total_reward, self._length = 0.0, 0
        episode_seed = int(entropy.generate_state(1)[0])
        begun = self.env.reset(seed=episode_seed, options=options)
        if options is not None or self.restart_share == 0.0:
            return begun
        rng = np.random.default_rng(entropy)
        record = self.archive.draw(rng) if rng.random() < self.restart_share else None
        if record is None:
            return begun
        able = self.env.unwrapped.able  # type: ignore[attr-defined]
        start = kicked(record.placement, able, self.kick, rng)
        return self.env.reset(seed=episode_seed, options={"start": start})

    def step(self, action: Any) -> tuple[PaddedGraph, float, bool, bool, dict[str, Any]]:
        """One decision; an ended episode is remembered."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._total_reward += float(reward)
        self._length += 1
        self._consider(observation, info)
        if terminated or truncated:
            self._ended.append(
                EndedEpisode(
                    placement=_placement(observation),
                    step_time=float(info["step_time_s"]),
                    feasible=bool(info["feasible"]),
                    total_reward=self._total_reward,
                    length=self._length,
                )
            )
        return observation, float(reward), terminated, truncated, info

    def _consider(self, observation: PaddedGraph, info: dict[str, Any]) -> None:
        """Offer the present plan to the archive if it fits and is the fastest so far that does."""
        whole = info["placed"] == int(observation["node_mask"].sum())
        if not whole or info["step_time_s"] >= self.fastest:
            return
        step_time, feasible = self.env.unwrapped.plan_outcome()  # type: ignore[attr-defined]
        if feasible:
            self.fastest = float(info["step_time_s"])
            self.archive.offer(self._key[1], Record(_placement(observation), step_time))

    def drain(self) -> list[EndedEpisode]:
        """The episodes ended since the last call."""
        ended, self._ended = self._ended, []
        return ended


def _placement(observation: PaddedGraph) -> NDArray[np.int64]:
    """(G,) device of each group, padding left out."""
    return np.array(observation["placement"][observation["node_mask"] == 1], dtype=np.int64)


def kicked(
    placement: NDArray[np.int64],
    able: NDArray[np.bool_],
    longest: int,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """`placement` (G,) with a run of 1 to `longest` consecutive groups on one random device.

    Groups of the run that the device cannot run, by `able` (G, D), stay where they are.
    """
    start = placement.copy()
    if longest > 0:
        first = int(rng.integers(len(start)))
        device = int(rng.integers(able.shape[1]))
        run = slice(first, first + int(rng.integers(1, longest + 1)))
        start[run] = np.where(able[run, device], device, start[run])
    return start
