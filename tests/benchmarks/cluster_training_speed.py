"""Decisions per second of sampling and of learning, beside RLlib's stock configuration.

    python tests/benchmarks/cluster_training_speed.py

The same network (`conf/model/hierarchical.yaml`), the same environments stepped together in this
process, the same numbers of decisions, minibatches and passes, one thread of torch, on both sides.
Stock is RLlib's `MultiAgentEnvRunner` with `num_env_runners=0` and its PPO learner with the default
connectors, on `ParallelPettingZooEnv`; its network is the same `PolicyModule`, and neither side
learns the posterior. A decision is a step of a scheduler. Where it has no choice (about half of
them here) stock asks the network and learns all the same, ours does neither. Seconds are of the
processor, of this process. Sampling and learning of both sides take turns; medians are told.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from importlib import resources
from typing import Any

import numpy as np
import torch
import yaml
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner
from ray.rllib.env.wrappers.pettingzoo_env import ParallelPettingZooEnv

from agents.cluster.teachers import FirstFit
from agents.rllib.advantages import PerTime
from agents.rllib.algorithm import LockStepPPO, algorithm
from agents.rllib.cluster.subject import Schedulers
from agents.rllib.config import PPO, Cloning, Learner, Training
from agents.rllib.module import ARCHITECTURE_KEY, PolicyModule
from agents.rllib.ppo import Instruction, parts_of
from agents.rllib.runner import Order
from envs.cluster.environment.actions import ClusterActions
from envs.cluster.environment.generator import RandomJobs
from envs.cluster.environment.observation import ClusterObservation
from envs.cluster.environment.parallel_env import ClusterParallelEnv
from envs.cluster.nodes import Cluster
from models.cluster.hierarchical import HierarchicalConfig

SERVERS, GPUS, PER_RACK, SCHEDULERS, JOBS = 32, 8, 4, 4, 512
ENVS, STEPS, MINIBATCH, PASSES, ROUNDS = 32, 32, 512, 3, 3
SHARED = "shared"


def environment() -> ClusterParallelEnv:
    """256 GPUs in eight racks, four schedulers, preemption and history."""
    generator = RandomJobs(
        Cluster.uniform(SERVERS, GPUS, nodes_per_rack=PER_RACK),
        jobs=(JOBS, JOBS),
        load=(0.7, 1.3),
        max_gpus=32,
        duration_s=(60, 36_000),
    )
    return ClusterParallelEnv(
        generator,
        schedulers=SCHEDULERS,
        actions=ClusterActions(preempt_after_s=600.0, longest_wait_s=3600.0),
        observation=partial(
            ClusterObservation,
            window=16,
            running=64,
            shares=128,
            known_durations=False,
            history=2,
        ),
    )


class StockEnv(ParallelPettingZooEnv):
    """The environment as RLlib takes those of PettingZoo."""

    def __init__(self, config: Any = None) -> None:
        super().__init__(environment())


def model() -> HierarchicalConfig:
    """The network of `conf/model/hierarchical.yaml`."""
    text = resources.files("conf").joinpath("model/hierarchical.yaml").read_text()
    chosen = yaml.safe_load(text)
    del chosen["_target_"]
    return HierarchicalConfig(**chosen)


def ours() -> LockStepPPO:
    """Our sampler and learner."""
    ppo = PPO(
        num_envs=ENVS,
        steps=STEPS,
        episodes=None,
        alike=1,
        minibatch_size=MINIBATCH,
        num_epochs=PASSES,
        learning_rate=3e-4,
        final_learning_rate=3e-4,
        entropy_coefficient=0.001,
        final_entropy_coefficient=0.001,
        anneal_steps=1,
        discounting=PerTime(tau=10.0, credit=2.0),
        clip=0.2,
        most_kl=None,
        reference_kl=0.0,
        value_coefficient=0.5,
        value_memory=20.0,
        normalise_rewards=True,
        normalise_advantages="batch",
        auxiliary_coefficient=0.0,
        max_gradient_norm=0.5,
    )
    training = Training(
        model=model(),
        parameters="shared",
        ppo=ppo,
        cloning=Cloning(0, 1e-3, 1, 0.0, 0.0),
        restarts=None,
        learner=Learner(0, 0, 0.0, "cpu", None),
        seed=0,
        budget_s=None,
        max_steps=1,
        curriculum_steps=None,
        checkpoint_every=1,
        exam_every=None,
        exam_episodes=1,
        exam_give_up=5.0,
        torch_threads=1,
    )
    subject = Schedulers(
        environment,
        lambda _: environment(),
        parameters="shared",
        per_gpu=True,
        teacher=None,
        reference=FirstFit(),
    )
    return algorithm(training, subject)


def stock() -> tuple[MultiAgentEnvRunner, Any]:
    """RLlib's runner and learner."""
    config = (
        PPOConfig()
        .api_stack(enable_rl_module_and_learner=True, enable_env_runner_and_connector_v2=True)
        .framework("torch")
        .environment(StockEnv, disable_env_checking=True)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=ENVS, rollout_fragment_length=STEPS)
        .learners(num_learners=0)
        .multi_agent(policies={SHARED}, policy_mapping_fn=lambda agent, *_, **__: SHARED)
        .rl_module(
            rl_module_spec=MultiRLModuleSpec(
                rl_module_specs={
                    SHARED: RLModuleSpec(
                        module_class=PolicyModule, model_config={ARCHITECTURE_KEY: model()}
                    )
                }
            )
        )
        .training(
            lr=3e-4,
            minibatch_size=MINIBATCH,
            num_epochs=PASSES,
            entropy_coeff=0.001,
            vf_clip_param=float("inf"),
            vf_loss_coeff=0.5,
            grad_clip=0.5,
        )
    )
    env = environment()
    agent = env.possible_agents[0]
    spaces = {SHARED: (env.observation_space(agent), env.action_space(agent))}
    return MultiAgentEnvRunner(config=config), config.build_learner(spaces=spaces)


def main() -> None:
    """Print one row per side."""
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    decisions = ENVS * STEPS * SCHEDULERS
    seconds: dict[str, list[float]] = {}

    def timed(name: str, start: float) -> None:
        seconds.setdefault(name, []).append(time.process_time() - start)

    torch.manual_seed(0)
    own, (runner, learner) = ours(), stock()
    assert own.runner is not None
    for number in range(ROUNDS + 1):  # the first compiles
        start = time.process_time()
        fragment = own.runner.sample(Order(number, 1.0, STEPS))
        timed("ours, sampling", start)
        start = time.process_time()
        ready = own.batches.ready([fragment], 1)
        parts = parts_of(ready.fewest, MINIBATCH)
        own.learner_group.update(
            batch=ready.batches[0], instruction=Instruction(number, PASSES, parts, 3e-4, 0.001)
        )
        timed("ours, learning", start)
        start = time.process_time()
        episodes = runner.sample(num_timesteps=ENVS * STEPS)
        timed("stock, sampling", start)
        taken = sum(episode.agent_steps() for episode in episodes)
        assert taken >= decisions, (taken, decisions)
        start = time.process_time()
        learner.update(
            episodes=episodes,
            timesteps={"num_env_steps_sampled_lifetime": 0},
            num_epochs=PASSES,
            minibatch_size=MINIBATCH,
            shuffle_batch_per_epoch=True,
        )
        timed("stock, learning", start)
    rate = {name: decisions / float(np.median(spent[1:])) for name, spent in seconds.items()}
    print(f"{ENVS} environments, {SCHEDULERS} schedulers, {STEPS} steps: {decisions} decisions")
    print(f"{'':12}{'ours':>14}{'RLlib stock':>14}{'ratio':>8}   decisions per second")
    for part in ("sampling", "learning"):
        mine, other = rate[f"ours, {part}"], rate[f"stock, {part}"]
        print(f"{part:12}{mine:>14,.0f}{other:>14,.0f}{mine / other:>8.1f}")
    both = [
        1 / sum(1 / rate[f"{side}, {part}"] for part in ("sampling", "learning"))
        for side in ("ours", "stock")
    ]
    print(f"{'together':12}{both[0]:>14,.0f}{both[1]:>14,.0f}{both[0] / both[1]:>8.1f}")


if __name__ == "__main__":
    main()
