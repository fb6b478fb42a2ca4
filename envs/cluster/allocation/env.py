"""`meshwright/Allocation-v0`: which job gets a worker more, slot by slot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from envs.arrays import BoolArray
from envs.cluster.allocation.episode import AllocationEpisode
from envs.cluster.allocation.observation import AllocationGraph, AllocationObservation
from envs.cluster.allocation.parallel_env import (
    TERMS,
    AllocationParallelEnv,
    Problems,
    default_generator,
)
from envs.errors import InputError


class AllocationEnv(gym.Env[AllocationGraph, np.int64]):
    """Give workers to malleable jobs, slot by slot, one decision after another.

    `AllocationParallelEnv` with one queue: its docstring is the specification of description,
    reward, episode end and information. Actions are `Discrete(K + 1)`: give row k of the
    observation (`AllocationObservation`) its next unit; K ends the slot. Arguments are those of
    `AllocationParallelEnv` but for `queues`; `self.np_random` is the only source of randomness.

    ## Guarantees
    At least one action is always allowed; equal seeds give equal episodes; the optimum of
    `envs.cluster.allocation.toy.toy_problem` is proved by trying all plans.

    ## Source
    As of `AllocationParallelEnv`.

    ## Version History
    * v0: first version.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 4}  # noqa: RUF012

    def __init__(
        self,
        generator: Problems = default_generator,  # draws the problem of each episode
        *,
        # what is seen; null: as the problem needs
        observation: AllocationObservation = AllocationObservation(),
        weights: Mapping[str, float] = TERMS,  # weight of each term of the reward
        render_mode: str | None = None,  # rgb_array: pictures are drawn; null: none
    ) -> None:
        self.parallel = AllocationParallelEnv(
            generator, queues=1, observation=observation, weights=weights, render_mode=render_mode
        )
        self.render_mode = render_mode
        (self._agent,) = self.parallel.possible_agents
        self.observation_space = self.parallel.observation_space(self._agent)
        self.action_space = space = self.parallel.action_space(self._agent)
        self._actions = int(space.n)

    @property
    def episode(self) -> AllocationEpisode:
        """The slots so far."""
        return self.parallel.episode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[AllocationGraph, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        seen, infos = self.parallel.begin(self.np_random)
        return seen[self._agent], infos[self._agent]

    def step(self, action: Any) -> tuple[AllocationGraph, float, bool, bool, dict[str, Any]]:
        """Give a unit, or end the slot.

        Raises:
            InputError: the action is not in the space.
        """
        _ = self.episode  # there is none before the first reset
        if np.size(action) != 1 or action not in range(self._actions):
            raise InputError(f"{action} is not in {self.action_space}", field="action")
        terms = self.parallel.play([int(action)])
        over = not self.parallel.agents
        seen = self.parallel.observe()[self._agent]
        info = self.parallel.infos(terms)[self._agent]
        return seen, float(sum(terms.values())), over, False, info

    def action_masks(self) -> BoolArray:
        """(K + 1,) the actions allowed now, in the form that sb3-contrib asks for."""
        return self.parallel.mask(0)

    def render(self) -> Any:
        """(320, 640, 3) the workers of every job in every slot; None without a render mode."""
        return self.parallel.render()
