"""MaskablePPO of sb3-contrib on `meshwright/ClusterToy-v0`, whose best sum of JCTs is 35 s.

python examples/sb3_maskable_ppo.py [steps]
"""

from __future__ import annotations

import sys

import numpy as np
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.utils import get_action_masks

import meshwright as mw


def play(policy: MaskablePPO, seed: int = 0) -> float:
    """The return of a greedy episode: minus the sum of the jobs' completion times."""
    env = mw.make("ClusterToy-v0")
    observation, _ = env.reset(seed=seed)
    total, ended = 0.0, False
    while not ended:
        action, _ = policy.predict(
            observation, action_masks=get_action_masks(env), deterministic=True
        )
        observation, reward, terminated, truncated, _ = env.step(int(np.asarray(action)))
        total, ended = total + float(reward), terminated or truncated
    return total


def train(steps: int = 4096) -> tuple[float, float]:
    """The return of a greedy episode before and after training."""
    env = mw.make("ClusterToy-v0")
    policy = MaskablePPO("MultiInputPolicy", env, n_steps=512, batch_size=128, gamma=1.0, seed=0)
    before = play(policy)
    policy.learn(steps)
    return before, play(policy)


if __name__ == "__main__":
    print("return before and after: {:.0f}, {:.0f}".format(*train(*map(int, sys.argv[1:]))))
