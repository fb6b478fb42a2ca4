"""PPO in one file, in the style of CleanRL, on `meshwright/ClusterToy-v0`: masks in the loop.

python examples/cleanrl_ppo.py [updates]
"""

from __future__ import annotations

import sys
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical

import meshwright as mw

ENVS, STEPS, EPOCHS, MINIBATCH = 8, 64, 4, 128
GAMMA, LAMBDA, CLIP, ENTROPY, MASKED = 1.0, 0.95, 0.2, 0.01, -1e9
SCALE = 0.02  # of rewards, which are seconds


def flat(observation: dict[str, Any]) -> Tensor:
    """Every array of a batch of observations, one after the other: (B, F)."""
    arrays = [np.asarray(value, np.float32) for _, value in sorted(observation.items())]
    return torch.from_numpy(np.concatenate([array.reshape(ENVS, -1) for array in arrays], axis=1))


class ActorCritic(nn.Module):
    """Logits and a value from a flat observation."""

    def __init__(self, features: int, actions: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(features, 128), nn.Tanh(), nn.Linear(128, 128))
        self.actor, self.critic = nn.Linear(128, actions), nn.Linear(128, 1)

    def forward(self, seen: Tensor, mask: Tensor) -> tuple[Categorical, Tensor]:
        hidden = torch.tanh(self.trunk(seen))
        logits = self.actor(hidden).masked_fill(~mask, MASKED)
        return Categorical(logits=logits), self.critic(hidden).squeeze(-1)


def train(updates: int = 20, seed: int = 0) -> list[float]:
    """The mean return of the episodes that ended in every update."""
    torch.manual_seed(seed)
    mode = gym.vector.AutoresetMode.SAME_STEP
    envs: Any = gym.vector.SyncVectorEnv(
        [lambda: mw.make("ClusterToy-v0") for _ in range(ENVS)], autoreset_mode=mode
    )
    observation, _ = envs.reset(seed=seed)
    seen = flat(observation)
    policy = ActorCritic(seen.shape[1], int(envs.single_action_space.n))
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3, eps=1e-5)
    running, returns = np.zeros(ENVS), []
    for _ in range(updates):
        rows: list[tuple[Tensor, ...]] = []
        ended: list[float] = []
        for _ in range(STEPS):
            mask = torch.from_numpy(np.stack(envs.call("action_masks")))
            with torch.no_grad():
                chances, value = policy(seen, mask)
            action = chances.sample()
            observation, reward, terminated, truncated, _ = envs.step(action.numpy())
            done = terminated | truncated
            running += reward
            ended += running[done].tolist()
            running[done] = 0.0
            scaled = torch.as_tensor(reward * SCALE, dtype=torch.float32)
            over = torch.as_tensor(done)
            rows.append((seen, mask, action, chances.log_prob(action), value, scaled, over))
            seen = flat(observation)
        with torch.no_grad():
            mask = torch.from_numpy(np.stack(envs.call("action_masks")))
            following = policy(seen, mask)[1]
        columns = [torch.stack(column) for column in zip(*rows, strict=True)]
        advantage = advantages(columns[4], columns[5], columns[6], following)
        improve(policy, optimizer, columns, advantage)
        returns.append(float(np.mean(ended)) if ended else float("nan"))
    return returns


def advantages(value: Tensor, reward: Tensor, over: Tensor, following: Tensor) -> Tensor:
    """Generalised advantage estimates, (STEPS, ENVS)."""
    found, later = torch.zeros_like(value), torch.zeros(ENVS)
    for step in reversed(range(STEPS)):
        goes_on = (~over[step]).float()
        error = reward[step] + GAMMA * following * goes_on - value[step]
        later = error + GAMMA * LAMBDA * goes_on * later
        found[step], following = later, value[step]
    return found


def improve(
    policy: ActorCritic, optimizer: torch.optim.Optimizer, columns: list[Tensor], advantage: Tensor
) -> None:
    """Epochs of clipped updates over a batch."""
    seen, mask, action, before, value, *_ = [column.flatten(0, 1) for column in columns]
    target, gain = advantage.flatten() + value, advantage.flatten()
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(action)).split(MINIBATCH):
            chances, now = policy(seen[rows], mask[rows])
            ratio = (chances.log_prob(action[rows]) - before[rows]).exp()
            part = gain[rows]
            part = (part - part.mean()) / (part.std() + 1e-8)
            clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
            loss = -torch.min(ratio * part, clipped * part).mean()
            loss = loss + 0.5 * (now - target[rows]).square().mean()
            loss = loss - ENTROPY * chances.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
            optimizer.step()


if __name__ == "__main__":
    for number, mean in enumerate(train(*map(int, sys.argv[1:]))):
        print(f"update {number}: return {mean:.1f}")
