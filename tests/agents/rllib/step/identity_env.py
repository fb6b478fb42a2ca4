"""A placement task anybody can solve, and a training run on it as a script.

python identity_env.py <run folder> <environment steps>
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from agents.rllib.step.config import PPOSettings, TrainingConfig
from envs.spaces import FeatureWidths, PaddedGraph, PaddedGraphLayout
from tests.models.random_observations import policy_config

GROUPS, DEVICES = 8, 3
LAST = 5  # iteration that the script does not get beyond: its row is written, no checkpoint
LAYOUT = PaddedGraphLayout(
    max_nodes=10,
    max_edges=9,
    num_devices=DEVICES,
    widths=FeatureWidths(node=12, node_device=2, edge=2, device=8, link=3, candidate=6),
)


class IdentityEnv(gym.Env[PaddedGraph, Any]):
    """Each group is wanted on one device, shown by a candidate feature; drawn anew every episode.

    Reward 1 / 8 per group on its device; the step time is 2 s less the total reward. With `fragile`
    the first wrong device ends the episode, infeasibly.
    """

    def __init__(self, fragile: bool = False) -> None:
        self.fragile = fragile
        self.observation_space = LAYOUT.space()
        self.action_space = gym.spaces.Discrete(DEVICES)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[PaddedGraph, dict[str, Any]]:
        super().reset(seed=seed)
        self.wanted = self.np_random.integers(0, DEVICES, GROUPS)
        self.device = np.zeros(GROUPS, dtype=np.int64)
        self.decided, self.right = 0, 0
        return self.observe(), {}

    def step(self, action: Any) -> tuple[PaddedGraph, float, bool, bool, dict[str, Any]]:
        self.device[self.decided] = action
        right = bool(action == self.wanted[self.decided])
        self.right += right
        self.decided += 1
        failed = self.fragile and not right
        done = failed or self.decided == GROUPS
        self.failed = failed
        info = {
            "step_time_s": 2.0 - self.right / GROUPS,
            "feasible": done and not failed,
            "placed": self.decided,
        }
        return self.observe(), right / GROUPS, done, False, info

    @property
    def able(self) -> Any:
        return np.ones((GROUPS, DEVICES), dtype=np.bool_)

    @property
    def group_device(self) -> Any:
        return self.device.copy()

    def plan_outcome(self) -> tuple[float, bool]:
        return 2.0 - self.right / GROUPS, not self.failed

    def observe(self) -> PaddedGraph:
        graph = LAYOUT.empty()
        current = min(self.decided, GROUPS - 1)
        graph["node_mask"][:GROUPS] = 1
        graph["edge_index"][:, : GROUPS - 1] = [range(GROUPS - 1), range(1, GROUPS)]
        graph["edge_mask"][: GROUPS - 1] = 1
        graph["placement"][:GROUPS] = self.device
        graph["placed"][: self.decided] = 1
        graph["current"][0] = current
        graph["candidate_features"][self.wanted[current], 0] = 1.0
        graph["action_mask"][:] = 1
        return graph


def small_ppo(**chosen: Any) -> PPOSettings:
    """PPO on batches of 4 episodes; what is chosen instead of that."""
    values: dict[str, Any] = {
        "num_envs": 4,
        "batch_episodes": 4,
        "minibatch_size": 16,
        "num_epochs": 3,
        "learning_rate": 3e-3,
        "final_learning_rate": 1e-4,
        "entropy_coefficient": 0.003,
        "final_entropy_coefficient": 0.0003,
        "anneal_steps": 100_000,
        "gamma": 1.0,
        "gae_lambda": 0.97,
        "clip": 0.2,
        "value_coefficient": 0.5,
        "max_gradient_norm": 0.5,
    }
    return PPOSettings(**{**values, **chosen})


def small_config(**chosen: Any) -> TrainingConfig:
    """A run of tiny iterations: 4 episodes of 8 decisions each."""
    values: dict[str, Any] = {
        "model": policy_config(initial_candidate_weights={0: 0.1}),
        "ppo": small_ppo(),
        "seed": 0,
        "budget_s": None,
        "max_steps": 320,
        "checkpoint_every": 2,
        "exam_episodes": 4,
        "torch_threads": 1,
        "restart_share": 0.0,
        "kick": 0,
        "draws": 1,
    }
    return TrainingConfig(**{**values, **chosen})


if __name__ == "__main__":
    from agents.rllib.step.training import train

    train(
        small_config(max_steps=int(sys.argv[2])),
        IdentityEnv,
        Path(sys.argv[1]),
        lambda row: time.sleep(60.0 if row["iteration"] == LAST else 0.0),  # to be killed
    )
