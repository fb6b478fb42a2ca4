"""What a policy does alone: greedy episodes from given starts, without any search around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agents.rllib.decisions import Act
from agents.rllib.tasks import Task


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
