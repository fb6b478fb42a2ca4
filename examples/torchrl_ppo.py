# mypy: ignore-errors
"""TorchRL's PPO on the two schedulers of `ClusterParallelToy-v0`: `pip install torchrl` first.

python examples/torchrl_ppo.py [iterations]
"""

import sys

import torch
from pettingzoo.utils.wrappers import BaseParallelWrapper
from tensordict.nn import TensorDictModule as Module
from tensordict.nn import TensorDictSequential
from torchrl.envs.libs.pettingzoo import PettingZooWrapper
from torchrl.modules import MLP, MaskedCategorical, ProbabilisticActor
from torchrl.objectives import ClipPPOLoss

from envs.cluster.environment.parallel_env import toy_environment


class WithoutInfo(BaseParallelWrapper):  # TorchRL has the masks from the observations
    def reset(self, seed=None, options=None):
        return super().reset(seed, options)[0], {agent: {} for agent in self.agents}

    def step(self, actions):
        return *super().step(actions)[:4], {agent: {} for agent in actions}


def side_by_side(*arrays):  # the first has a vector for each agent
    return torch.cat([x.float().flatten(arrays[0].dim() - 1) for x in arrays], dim=-1)


torch.manual_seed(0)
env = PettingZooWrapper(WithoutInfo(toy_environment()), seed=0)
agents, actions = "scheduler", ("scheduler", "action")  # both share one policy
seen = [(agents, "observation", name) for name in env.observation_spec[agents, "observation"]]
flat = Module(side_by_side, seen, ["flat"])
heads = [
    TensorDictSequential(flat, Module(MLP(out_features=n, num_cells=[64]), ["flat"], [name]))
    for name, n in (("logits", env.action_spec[actions].n), ("state_value", 1))
]
policy = ProbabilisticActor(
    heads[0], {"logits": "logits", "mask": (agents, "action_mask")}, [actions],
    distribution_class=MaskedCategorical, return_log_prob=True,
)  # fmt: skip
heads[1](policy(env.reset()))  # makes the layers
loss = ClipPPOLoss(policy, heads[1], entropy_coeff=0.01, normalize_advantage=True)
loss.set_keys(action=actions, sample_log_prob=policy.log_prob_keys[0])
optimizer = torch.optim.Adam(loss.parameters(), lr=1e-3)
for iteration in range(int(sys.argv[1]) if len(sys.argv) > 1 else 40):
    with torch.no_grad():
        episodes = [heads[1](env.rollout(200, policy)) for _ in range(16)]
    for one in episodes:
        one["value_target"] = one["next", agents, "reward"].flip(0).cumsum(0).flip(0) / 100.0
        one["advantage"] = one["value_target"] - one["state_value"]
    for _ in range(8):
        terms = loss(batch := torch.cat(episodes))
        optimizer.zero_grad()
        sum(x for name, x in terms.items() if name.startswith("loss_")).backward()
        optimizer.step()
    total = float(batch["next", agents, "reward"].sum()) / len(episodes)
    print(f"iteration {iteration}: mean return {total:.1f}")
