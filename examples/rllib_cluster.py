"""RLlib's own PPO or IMPALA on `meshwright/ClusterParallel-v0`: two schedulers, too many jobs.

    python examples/rllib_cluster.py [PPO | IMPALA] [shared | separate]

One policy is shared by all schedulers, or every scheduler has its own.
"""

from __future__ import annotations

import sys

from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.algorithms.ppo import PPOConfig

from agents.rllib.module import module_spec
from agents.rllib.registration import register
from envs.cluster.environment.generator import RandomJobs
from envs.cluster.environment.instance import ClusterReward
from envs.cluster.nodes import Cluster
from models.cluster.hierarchical import HierarchicalConfig

MODEL = HierarchicalConfig(
    hidden=32,
    rounds=1,
    heads=1,
    hierarchy=True,
    use_interference=False,
    initial_scale=0.1,
    initial_index_weight=0.0,
    initial_speed_weight=0.0,
    initial_expert_weight=0.0,
)
# Twelve jobs on two GPUs, nine times as many as these can carry: what is to be learned is to start
# short ones first. A return is minus the sum of completion times, of each scheduler in 1e4 s.
CLUSTER = Cluster.uniform(2, 1, nodes_per_rack=1)
JOBS = RandomJobs(CLUSTER, jobs=(12, 12), load=(9.0, 9.0), max_gpus=1, duration_s=(60, 3600))
ARGUMENTS = {"generator": JOBS, "reward": ClusterReward({"jct": 1e-4})}
POLICIES = {"shared": ["shared"], "separate": ["scheduler_0", "scheduler_1"]}


def ppo() -> PPOConfig:
    """RLlib's own, but that the critic's error is not clipped."""
    config = PPOConfig().training(train_batch_size_per_learner=1024, vf_clip_param=float("inf"))
    return config.training(minibatch_size=256, num_epochs=5)


def impala() -> IMPALAConfig:
    """RLlib's own in one process, with many small batches."""
    config = IMPALAConfig().training(train_batch_size_per_learner=256)
    config.env_runners(rollout_fragment_length=16).learners(num_learners=0)
    return config.reporting(min_time_s_per_iteration=0, min_sample_timesteps_per_iteration=1024)


def train(algorithm: str = "PPO", policies: str = "shared", *, iterations: int = 20) -> list[float]:
    """The mean return of the episodes of every iteration, of both schedulers together."""
    register()
    config = ppo() if algorithm == "PPO" else impala()
    config.environment("meshwright/ClusterParallel-v0", env_config=ARGUMENTS)
    config.multi_agent(
        policies=POLICIES[policies],
        policy_mapping_fn=lambda agent, *_, **__: "shared" if policies == "shared" else agent,
    )
    config.rl_module(rl_module_spec=module_spec(MODEL))  # a copy of it for every policy
    # Without a seed RLlib's check of the environments leaves all of them with the same one.
    config.env_runners(num_env_runners=0, num_envs_per_env_runner=16).debugging(seed=0)
    config.training(lr=3e-3, vf_loss_coeff=0.5)
    learner = config.build_algo()
    returns = []
    for iteration in range(iterations):
        runners = learner.train()["env_runners"]
        returns.append(runners.get("episode_return_mean", float("nan")))  # nan: none has ended
        print(f"iteration {iteration}: return {returns[-1]:.3f}", flush=True)
    learner.stop()
    return returns


if __name__ == "__main__":
    train(*sys.argv[1:])
