"""What a policy does alone: greedy episodes from given starts, without any search around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor

from envs.spaces import PaddedGraph
from models.graph_batch import GraphBatch
from models.heads import MASKED_LOGIT

Decider = Callable[[GraphBatch], tuple[Tensor, Tensor]]  # (B, D) logits and (B,) values


@dataclass(frozen=True)
class Examined:
    """One episode of the most probable decisions."""

    step_time: float  # seconds of the plan it ends in, on every operator; inf: it does not fit
    length: int  # decisions


def follow_look_ahead(batch: GraphBatch) -> tuple[Tensor, Tensor]:
    """The yardstick without learning: the allowed device of least look-ahead, the last feature."""
    worse = batch.candidate_features[:, :, -1]  # (B, D)
    logits = (-worse).masked_fill(batch.action_mask == 0, MASKED_LOGIT)
    return logits, logits.amax(dim=-1)


def examine(
    policy: Decider, envs: Sequence[gym.Env[PaddedGraph, Any]], episodes: int
) -> list[Examined]:
    """Episodes 0, 1, ... of `policy`, stepped together; episode k starts at `reset(seed=k)`.

    Args:
        policy: decides; a `PlacementPolicy` or `follow_look_ahead`.
        envs: at least one, as `TrainingEnv` wants them.
        episodes: how many.
    """
    found: list[Examined] = []
    while len(found) < episodes:
        found += _together(policy, envs[: episodes - len(found)], first_seed=len(found))
    return found


def _together(
    policy: Decider, envs: Sequence[gym.Env[PaddedGraph, Any]], first_seed: int
) -> list[Examined]:
    observations = {k: env.reset(seed=first_seed + k)[0] for k, env in enumerate(envs)}
    lengths = dict.fromkeys(observations, 0)
    ended: dict[int, Examined] = {}
    while observations:
        running = list(observations)
        with torch.inference_mode():
            logits, _ = policy(GraphBatch.stack([observations[k] for k in running]))
        for k, action in zip(running, logits.argmax(dim=-1).tolist(), strict=True):
            observation, _, terminated, truncated, info = envs[k].step(action)
            lengths[k] += 1
            if not (terminated or truncated):
                observations[k] = observation
                continue
            del observations[k]
            step_time, fits = envs[k].unwrapped.plan_outcome()  # type: ignore[attr-defined]
            feasible = bool(info["feasible"]) and fits
            ended[k] = Examined(step_time if feasible else float("inf"), lengths[k])
    return [ended[k] for k in range(len(envs))]
