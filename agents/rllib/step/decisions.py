"""From the observations of environments to actions: the most probable, or those of a rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from agents.rllib.module import PolicyModule
from agents.rllib.step.tasks import Task

# The actions in several environments; of a team, an observation and an action is one of every agent
Act = Callable[[Sequence[Any]], list[Any]]


def greedy(modules: Mapping[str, PolicyModule], task: Task) -> Act:

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


@dataclass(frozen=True)
class Examined:
    """One episode of the most probable decisions."""

    step_time: float  # seconds of the plan it ends in, on every operator; inf: it does not fit
    length: int  # decisions


def examine(act: Act, envs: Sequence[Any], episodes: int, task: Task) -> list[Examined]:
    """Episodes 0, 1, ... of `act`, stepped together; episode k starts at `reset(seed=k)`.

    Args:
        act: decides.
        envs: at least one, of `task`.
        episodes: how many.
        task: what the environments are about.
    """
    found: list[Examined] = []
    while len(found) < episodes:
        found += _together(act, envs[: episodes - len(found)], len(found), task)
    return found


def _together(act: Act, envs: Sequence[Any], first_seed: int, task: Task) -> list[Examined]:
    observations = {k: env.reset(seed=first_seed + k)[0] for k, env in enumerate(envs)}
    lengths = dict.fromkeys(observations, 0)
    ended: dict[int, Examined] = {}
    while observations:
        running = list(observations)
        actions = act([observations[k] for k in running])
        for k, action in zip(running, actions, strict=True):
            observation, _, terminated, truncated, info = envs[k].step(action)
            lengths[k] += 1
            if task.team:  # mappings by agent
                terminated, truncated = all(terminated.values()), all(truncated.values())
                info = next(iter(info.values()))
            if not (terminated or truncated):
                observations[k] = observation
                continue
            del observations[k]
            step_time, fits = task.outcome(envs[k].unwrapped)
            feasible = bool(info["feasible"]) and fits
            ended[k] = Examined(step_time if feasible else float("inf"), lengths[k])
    return [ended[k] for k in range(len(envs))]
