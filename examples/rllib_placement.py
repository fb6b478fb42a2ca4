"""RLlib's own PPO or IMPALA on `meshwright/Placement-v0`: random training graphs, four devices.

python examples/rllib_placement.py [PPO | IMPALA]
"""

from __future__ import annotations

import sys

from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.algorithms.ppo import PPOConfig

from agents.rllib.module import module_spec
from agents.rllib.registration import register
from models.step.policy import PolicyConfig

MODEL = PolicyConfig(
    hidden=32,
    operator_rounds=1,
    device_rounds=1,
    initial_scale=0.1,
    initial_candidate_weights={},
)


def ppo() -> PPOConfig:
    """RLlib's own, but that the critic's error is not clipped."""
    config = PPOConfig().training(train_batch_size_per_learner=512, vf_clip_param=float("inf"))
    return config.training(minibatch_size=128, num_epochs=5)


def impala() -> IMPALAConfig:
    """RLlib's own in one process, with many small batches."""
    config = IMPALAConfig().training(train_batch_size_per_learner=256)
    config.env_runners(rollout_fragment_length=16).learners(num_learners=0)
    return config.reporting(min_time_s_per_iteration=0, min_sample_timesteps_per_iteration=1024)


def train(algorithm: str = "PPO", *, iterations: int = 20) -> list[float]:
    """The mean return of the episodes of every iteration: by how much steps get shorter."""
    register()
    config = ppo() if algorithm == "PPO" else impala()
    config.environment("meshwright/Placement-v0").rl_module(rl_module_spec=module_spec(MODEL))
    config.env_runners(num_env_runners=0, num_envs_per_env_runner=16).debugging(seed=0)
    config.training(lr=3e-3, entropy_coeff=0.003)
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
