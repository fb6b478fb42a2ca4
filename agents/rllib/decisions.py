"""From the observations of environments to actions: the most probable, or those of a rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from agents.rllib.module import PolicyModule
from agents.rllib.tasks import Task

# The actions in several environments; of a team, an observation and an action is one of every agent
Act = Callable[[Sequence[Any]], list[Any]]


def greedy(modules: Mapping[str, PolicyModule], task: Task) -> Act:
    """The most probable actions of the policies."""

    def decide(module: str, observations: Sequence[Any]) -> list[Any]:
        batch = {name: torch.from_numpy(array) for name, array in stacked(observations).items()}
        chosen = modules[module]
        with torch.inference_mode():
            inputs, _ = chosen.policy.decide(batch)
            distribution = chosen.get_inference_action_dist_cls().from_logits(inputs)
            actions = distribution.to_deterministic().sample().numpy()
        return list(within(chosen.action_space, actions))

    return _by_module(decide, task)


def follow_look_ahead(task: Task) -> Act:
    """The yardstick without learning: the allowed choice of least look-ahead."""

    def decide(module: str, observations: Sequence[Any]) -> list[Any]:
        del module
        batch = stacked(observations)
        worse, allowed = task.look_ahead(batch), batch["action_mask"] == 1
        return list(np.where(allowed, worse, np.inf).argmin(axis=1))

    return _by_module(decide, task)


def within(space: Any, actions: NDArray[Any]) -> NDArray[Any]:
    """(B, ...) `actions` as they act: real numbers beyond the bounds of a `Box` as the bounds."""
    return np.clip(actions, space.low, space.high) if isinstance(space, spaces.Box) else actions


def stacked(observations: Sequence[Any]) -> dict[str, NDArray[Any]]:
    """Every array of the observations, stacked."""
    return {name: np.stack([seen[name] for seen in observations]) for name in observations[0]}


def _by_module(decide: Callable[[str, Sequence[Any]], list[Any]], task: Task) -> Act:
    """Every module asked once for all its agents in all environments."""
    if not task.team:
        return lambda observations: decide(task.module_of(""), observations)

    def act(observations: Sequence[Any]) -> list[Any]:
        actions: list[Any] = [{} for _ in observations]
        asked: dict[str, list[tuple[int, str]]] = {}
        for index, seen in enumerate(observations):
            for agent in seen:
                asked.setdefault(task.module_of(agent), []).append((index, agent))
        for module, agents in asked.items():
            chosen = decide(module, [observations[index][agent] for index, agent in agents])
            for (index, agent), action in zip(agents, chosen, strict=True):
                actions[index][agent] = action
        return actions

    return act
