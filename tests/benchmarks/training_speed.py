"""Steps per second of sampling and of learning, beside RLlib's stock configuration.

    python tests/benchmarks/training_speed.py [--rounds 3]
    python tests/benchmarks/training_speed.py --remote    # 1 and 2 runners, 2 learners

Four schedulers of 256 GPUs. Both sides have the same network, environments, minibatches and passes,
one thread of torch, and all of it in one process. Stock is RLlib's env runner with
`num_env_runners=0` and its PPO learner with the default connectors; its network is the same
`PolicyModule`. About half of the schedulers have no choice: stock asks the network and learns all
the same, ours does neither; neither learns the posterior. A step is one action of every agent of an
environment. Seconds are of the processor, of this process; sampling and learning of both sides take
turns, medians are told.

With `--remote` seconds are of the wall, actors those of a local cluster of two nodes.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import ray
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner
from ray.rllib.env.wrappers.pettingzoo_env import ParallelPettingZooEnv
from ray.tune.registry import register_env

from agents.cluster.teachers import FirstFit
from agents.rllib.advantages import PerTime
from agents.rllib.algorithm import LockStepPPO, algorithm
from agents.rllib.cluster.scheduling import SchedulingRLTask
from agents.rllib.config import PPO, Cloning, Learner, Training
from agents.rllib.module import module_spec
from agents.rllib.ppo import UpdateRequest, num_minibatches
from agents.rllib.runner import SampleRequest
from envs.cluster.environment.actions import ClusterActions
from envs.cluster.environment.generator import RandomJobs
from envs.cluster.environment.observation import ClusterObservation
from envs.cluster.environment.parallel_env import ClusterParallelEnv
from envs.cluster.nodes import Cluster
from models.cluster.hierarchical import HierarchicalConfig

SHARED = "shared"
PARTS = ("sampling", "learning")


def stock(training: Training, steps: int) -> tuple[Any, Any]:
    """RLlib's runner and learner."""
    ppo = training.ppo
    register_env("stock", lambda _: ParallelPettingZooEnv(schedulers()))
    config = (
        PPOConfig()
        .framework("torch")
        .environment("stock", disable_env_checking=True)
        .env_runners(
            num_env_runners=0,
            num_envs_per_env_runner=ppo.num_envs,
            rollout_fragment_length=steps,
        )
        .learners(num_learners=0)
        .rl_module(rl_module_spec=module_spec(training.model))
        .training(
            lr=ppo.learning_rate,
            minibatch_size=ppo.minibatch_size,
            num_epochs=ppo.num_epochs,
            entropy_coeff=ppo.entropy_coefficient,
            vf_clip_param=float("inf"),
            vf_loss_coeff=ppo.value_coefficient,
            grad_clip=ppo.max_gradient_norm,
        )
        .multi_agent(policies=[SHARED], policy_mapping_fn=lambda *_, **__: SHARED)
    )
    task = task_of(training)
    spaces = {SHARED: task.spaces_of(task.agents[0])}
    return MultiAgentEnvRunner(config=config), config.build_learner(spaces=spaces)


def schedulers() -> ClusterParallelEnv:
    """256 GPUs in eight racks, four schedulers, preemption and history."""
    generator = RandomJobs(
        Cluster.uniform(32, 8, nodes_per_rack=4),
        jobs=(512, 512),
        load=(0.7, 1.3),
        max_gpus=32,
        duration_s=(60, 36_000),
    )
    return ClusterParallelEnv(
        generator,
        schedulers=4,
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


def task_of(training: Training) -> SchedulingRLTask:
    return SchedulingRLTask(
        schedulers,
        lambda _: schedulers(),
        parameters=training.parameters,
        per_gpu=True,
        teacher=None,
        reference=FirstFit(),
    )


def recipe() -> Training:
    """Four schedulers with the network `hierarchical`; episodes go on."""
    ppo = PPO(
        num_envs=32, steps=32, final_learning_rate=3e-4, entropy_coefficient=0.001,
        final_entropy_coefficient=0.001, discounting=PerTime(), target_kl=None,
        auxiliary_coefficient=0.0,
    )  # fmt: skip
    return Training(
        model=HierarchicalConfig(), ppo=ppo, cloning=Cloning(), learner=Learner(), budget_s=None,
        max_steps=1, evaluate_every=None, evaluation_episodes=1,
    )  # fmt: skip


class Ours:
    """Our runner and learner, in this process."""

    def __init__(self, training: Training) -> None:
        self.ppo = training.ppo
        self.built: LockStepPPO = algorithm(training, task_of(training))
        self.steps = training.ppo.steps
        self.iteration = 0

    def round(self) -> dict[str, float]:
        """Seconds per step."""
        assert self.built.runner is not None
        clock = [time.process_time()]
        rollout = self.built.runner.sample(SampleRequest(self.iteration, 1.0, self.steps))
        clock.append(time.process_time())
        ready = self.built.connector([rollout], 1)
        count = num_minibatches(ready.fewest, self.ppo.minibatch_size)
        self.built.learner_group.update(
            batch=ready.batches[0],
            request=UpdateRequest(
                self.iteration,
                self.ppo.num_epochs,
                count,
                self.ppo.learning_rate,
                self.ppo.entropy_coefficient,
            ),
        )
        clock.append(time.process_time())
        self.iteration += 1
        return dict(zip(PARTS, np.diff(clock) / rollout.steps, strict=True))


class Stock:
    """RLlib's."""

    def __init__(self, training: Training) -> None:
        self.ppo, self.steps = training.ppo, training.ppo.steps * training.ppo.num_envs
        self.runner, self.learner = stock(training, training.ppo.steps)

    def round(self) -> dict[str, float]:
        """Seconds per step."""
        clock = [time.process_time()]
        episodes = self.runner.sample(num_timesteps=self.steps)
        clock.append(time.process_time())
        taken = sum(episode.env_steps() for episode in episodes)
        self.learner.update(
            episodes=episodes,
            timesteps={"num_env_steps_sampled_lifetime": 0},
            num_epochs=self.ppo.num_epochs,
            minibatch_size=self.ppo.minibatch_size,
            shuffle_batch_per_epoch=True,
        )
        clock.append(time.process_time())
        return dict(zip(PARTS, np.diff(clock) / taken, strict=True))


def rates(seconds: list[dict[str, float]]) -> dict[str, float]:
    """Steps per second, of medians."""
    found = {part: 1.0 / float(np.median([one[part] for one in seconds])) for part in PARTS}
    return {**found, "together": 1.0 / sum(1.0 / found[part] for part in PARTS)}


def beside_stock(training: Training, rounds: int) -> dict[str, dict[str, float]]:
    """In turn; the first of each compiles and is not counted."""
    sides: dict[str, Any] = {"ours": Ours(training), "stock": Stock(training)}
    spent: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    for _ in range(rounds + 1):
        for name, side in sides.items():
            spent[name].append(side.round())
    return {name: rates(of_side[1:]) for name, of_side in spent.items()}


def remote(training: Training, rounds: int) -> dict[str, dict[str, float]]:
    """By how many runners and learners, one after the other."""
    from ray.cluster_utils import Cluster as RayCluster

    nodes = {"num_cpus": 2, "include_dashboard": False}
    ray_cluster = RayCluster(initialize_head=True, head_node_args=nodes)
    ray_cluster.add_node(**nodes)
    found = {}
    try:
        for runners, learners in ((0, 0), (1, 0), (2, 0), (2, 2)):
            learner = Learner(runners, learners, ray_address=ray_cluster.address)
            asked = replace(training, learner=learner)
            built = algorithm(asked, task_of(asked))
            spent = []
            for _ in range(rounds + 1):
                before = built.counters.steps
                built.training_step()
                steps = built.counters.steps - before
                seconds = (built.row["charts/sample_seconds"], built.row["charts/learn_seconds"])
                spent.append({part: s / steps for part, s in zip(PARTS, seconds, strict=True)})
            built.stop()
            found[f"{runners} runners, {learners} learners"] = rates(spent[1:])
    finally:
        ray.shutdown()
        ray_cluster.shutdown()
    return found


def main() -> None:
    """Print a table for each wing."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--remote", action="store_true")
    parser.add_argument("--json", action="store_true", help="rates as JSON, one line for each wing")
    chosen = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    found = (remote if chosen.remote else beside_stock)(recipe(), chosen.rounds)
    if chosen.json:
        print(json.dumps(found))
        return
    print(f"steps per second{'':20}{'sampling':>12}{'learning':>12}{'together':>12}")
    for side, rate in found.items():
        shown = "".join(f"{rate[part]:>12,.0f}" for part in (*PARTS, "together"))
        print(f"  {side:34}{shown}")


if __name__ == "__main__":
    main()
