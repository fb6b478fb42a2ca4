# mypy: ignore-errors
"""TorchRL's PPO on the schedulers of `ClusterParallelToy-v0`: `pip install torchrl` first.

python examples/torchrl_ppo.py [iterations]
"""

import sys

import torch
from pettingzoo.utils.wrappers import BaseParallelWrapper
from tensordict.nn import TensorDictModule as Module
from torch import nn
from torchrl.envs.libs.pettingzoo import PettingZooWrapper
from torchrl.modules import MaskedCategorical, ProbabilisticActor
from torchrl.objectives import ClipPPOLoss

from envs.cluster.environment.parallel_env import toy_environment


class WithoutInfo(BaseParallelWrapper):  # TorchRL takes masks from observations alone
    def reset(self, seed=None, options=None):
        return super().reset(seed, options)[0], {agent: {} for agent in self.agents}

    def step(self, actions):
        return *super().step(actions)[:4], {agent: {} for agent in actions}


class Net(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.layers = nn.Sequential(nn.LazyLinear(64), nn.Tanh(), nn.Linear(64, outputs))

    def forward(self, *arrays):  # the first has a vector for each agent
        flat = [array.float().flatten(arrays[0].dim() - 1) for array in arrays]
        return self.layers(torch.cat(flat, dim=-1))


torch.manual_seed(0)
env = PettingZooWrapper(WithoutInfo(toy_environment()), seed=0)
agents = "scheduler"  # both share one policy
seen = [(agents, "observation", name) for name in env.observation_spec[agents, "observation"]]
keys = {"action": (agents, "action"), "advantage": "advantage", "value_target": "value_target"}
policy = ProbabilisticActor(
    Module(Net(25), seen, ["logits"]), {"logits": "logits", "mask": (agents, "action_mask")},
    [keys["action"]], distribution_class=MaskedCategorical, return_log_prob=True,
)  # fmt: skip
value = Module(Net(1), seen, ["state_value"])
value(policy(env.reset()))  # makes the lazy layers
loss = ClipPPOLoss(policy, value, entropy_coeff=0.01)
loss.set_keys(**keys, sample_log_prob=policy.log_prob_keys[0])
optimizer = torch.optim.Adam(loss.parameters(), lr=3e-3)
for iteration in range(int(sys.argv[1]) if len(sys.argv) > 1 else 30):
    with torch.no_grad():
        episodes = [value(env.rollout(200, policy)) for _ in range(8)]
    for one in episodes:
        rewards = one["next", agents, "reward"]
        one["value_target"] = rewards.flip(0).cumsum(0).flip(0) / 1e3
        one["advantage"] = one["value_target"] - one["state_value"]
    batch = torch.cat(episodes)
    batch["advantage"] /= batch["advantage"].std() + 1e-6
    for _ in range(4):
        terms = loss(batch)
        optimizer.zero_grad()
        sum(x for name, x in terms.items() if name.startswith("loss_")).backward()
        optimizer.step()
    total = sum(float(one["next", agents, "reward"].sum()) for one in episodes) / len(episodes)
    print(f"iteration {iteration}: mean return {total:.1f}")
