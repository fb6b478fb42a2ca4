"""Ray Tune looks for a learning rate of PPO on `meshwright/ClusterToy-v0`.

python examples/rllib_tune.py
"""

from __future__ import annotations

from ray import tune
from ray.rllib.algorithms.ppo import PPOConfig

from agents.rllib.module import module_spec
from agents.rllib.registration import register
from envs.cluster.environment.instance import ClusterReward
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
ARGUMENTS = {"reward": ClusterReward({"jct": 1e-2})}  # seconds, of a few hundred
RETURN = "env_runners/episode_return_mean"


def search(folder: str | None = None, iterations: int = 8) -> dict[float, float]:
    """The last mean return with each learning rate; `folder` gets Tune's files."""
    register()
    config = PPOConfig().environment("meshwright/ClusterToy-v0", env_config=ARGUMENTS)
    config.rl_module(rl_module_spec=module_spec(MODEL))
    config.env_runners(num_env_runners=0, num_envs_per_env_runner=16).debugging(seed=0)
    config.training(minibatch_size=128, num_epochs=5, vf_clip_param=float("inf"))
    config.training(train_batch_size_per_learner=512, lr=tune.grid_search([1e-5, 3e-4, 3e-3]))
    results = tune.Tuner(
        "PPO",
        param_space=config,
        tune_config=tune.TuneConfig(metric=RETURN, mode="max"),
        run_config=tune.RunConfig(
            storage_path=folder, stop={"training_iteration": iterations}, verbose=0
        ),
    ).fit()
    found = {
        result.config["lr"]: result.metrics["env_runners"]["episode_return_mean"]
        for result in results
    }
    for rate, value in found.items():
        print(f"lr {rate:g}: return {value:.3f}")
    print(f"best: lr {results.get_best_result().config['lr']:g}")
    return found


if __name__ == "__main__":
    search()
