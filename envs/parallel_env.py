"""What the environments of several agents have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from pettingzoo import ParallelEnv

from envs.errors import InputError
from envs.spaces import checked_actions

Seen = TypeVar("Seen")
Infos = dict[str, dict[str, Any]]
Terms = Mapping[str, float]  # of a reward, weighted
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


class DecisionsEnv(AgentsEnv[Seen]):
    """Agents that all act in every step, and may be a single one: then see `OneAgentEnv`."""

    render_mode: str | None
    _masks: list[NDArray[np.int8]]

    @abstractmethod
    def begin(self, rng: np.random.Generator) -> Begun[Seen]:
        """`reset` with a source of randomness of the caller's."""

    @abstractmethod
    def play(self, chosen: Sequence[int]) -> tuple[Sequence[Terms], bool, bool]:
        """Carry out an action of every agent; the terms of their rewards, and what has ended."""

    @abstractmethod
    def observe(self) -> dict[str, Seen]:
        """What every agent sees; `_masks` are their `action_mask` from then on."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Where the episode stands, for the `info` of all."""

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Begun[Seen]:
        """Start an episode.

        Raises:
            InputError: the generator's instance is not one of this environment.
        """
        return self.begin(self.randomness(seed))

    def step(self, actions: Mapping[str, Any]) -> Stepped[Seen]:
        """One action of every agent.

        Raises:
            InputError: an agent has no action, or one that is not in its space.
        """
        agents = self.agents
        given, terminated, truncated = self.play(
            list(checked_actions(actions, self.action_spaces).values()) if agents else []
        )
        return (
            self.observe(),
            {agent: float(sum(terms.values())) for agent, terms in zip(agents, given, strict=True)},
            dict.fromkeys(agents, terminated),
            dict.fromkeys(agents, truncated),
            self.infos(given),
        )

    def infos(self, given: Sequence[Terms]) -> Infos:
        """Of every agent, with the terms of its reward."""
        facts = self.facts()
        infos: Infos = {}
        for agent, terms, mask in zip(self.possible_agents, given, self._masks, strict=True):
            info = infos[agent] = facts.copy()
            for name, value in terms.items():
                info[f"reward_{name}"] = value
            info["action_mask"] = mask.copy()
        return infos

    def mask(self, number: int) -> NDArray[np.int8]:
        """`action_mask` of what an agent has observed last."""
        return self._masks[number]


class OneAgentEnv(gym.Env[Seen, np.int64]):
    """The environment of a single agent in the interface of Gymnasium."""

    def __init__(self, parallel: DecisionsEnv[Seen]) -> None:
        self.parallel, self.render_mode = parallel, parallel.render_mode
        (self._agent,) = parallel.possible_agents
        self.observation_space = parallel.observation_space(self._agent)  # type: ignore[assignment]
        self.action_space = space = parallel.action_space(self._agent)
        self._actions = int(space.n)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Seen, dict[str, Any]]:
        """Start an episode.

        Raises:
            InputError: the generator's instance is not one of this environment.
        """
        super().reset(seed=seed)
        seen, infos = self.parallel.begin(self.np_random)
        return seen[self._agent], infos[self._agent]

    def step(self, action: Any) -> tuple[Seen, float, bool, bool, dict[str, Any]]:
        """The agent's next action.

        Raises:
            InputError: the action is not in the space.
        """
        inner, agent = self.parallel, self._agent
        inner.require_running()
        if np.size(action) != 1 or action not in range(self._actions):
            raise InputError(f"{action} is not in {self.action_space}", field="action")
        given, terminated, truncated = inner.play([int(action)])
        reward = float(sum(given[0].values()))
        return inner.observe()[agent], reward, terminated, truncated, inner.infos(given)[agent]

    def action_masks(self) -> NDArray[np.bool_]:
        """(A,) the actions allowed now: `action_mask` in the form that sb3-contrib asks for."""
        return self.parallel.mask(0).astype(np.bool_)

    def render(self) -> Any:
        """(H, W, 3) uint8 picture; None without a render mode."""
        return self.parallel.render()
