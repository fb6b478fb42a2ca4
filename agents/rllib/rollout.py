"""Decoding: whole placements from a policy, greedily or by sampling."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from agents.rllib.environment import EndedEpisode, TrainingEnv
from models.graph_batch import GraphBatch
from models.policy import PlacementPolicy


def rollout(
    policy: PlacementPolicy, envs: Sequence[TrainingEnv], generator: torch.Generator | None
) -> list[EndedEpisode]:
    """One episode in each environment, stepped together.

    Args:
        policy: decides.
        envs: the environments; episodes they ended before are dropped.
        generator: samples the actions; None = the most probable action.
    """
    observations = {}
    for index, env in enumerate(envs):
        env.drain()
        observations[index] = env.reset()[0]
    while observations:
        running = list(observations)
        with torch.inference_mode():
            logits, _ = policy(GraphBatch.stack([observations[index] for index in running]))
            if generator is None:
                actions = logits.argmax(dim=-1)
            else:
                actions = torch.multinomial(logits.softmax(dim=-1), 1, generator=generator)[:, 0]
        for index, action in zip(running, actions.tolist(), strict=True):
            observation, _, terminated, truncated, _ = envs[index].step(action)
            if terminated or truncated:
                del observations[index]
            else:
                observations[index] = observation
    return [episode for env in envs for episode in env.drain()]
