"""Steps per second of sampling and of learning, beside RLlib's stock configuration.

    python tests/benchmarks/training_speed.py [--only placement|cluster] [--rounds 3]
    python tests/benchmarks/training_speed.py --remote    # 1 and 2 runners, 2 learners

Two wings: placing BERT-large on mixed_v100_p100 as `conf/main.yaml` has it, and four schedulers of
256 GPUs. Both sides have the same network, environments, minibatches and passes, one thread of
torch, and all of it in one process. Stock is RLlib's env runner with `num_env_runners=0` and its
PPO learner with the default connectors; its network is the same `PolicyModule`. Of placements it
does not simulate the best on all operators, which we do. Of schedulers about half have no choice:
stock asks the network and learns all the same, ours does neither; neither learns the posterior. A
step is one action of every agent of an environment. Seconds are of the processor, of this process;
sampling and learning of both sides take turns, medians are told.

With `--remote` seconds are of the wall, actors those of a local cluster of two nodes.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib import resources
from typing import Any

import numpy as np
import ray
import torch
import yaml
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.rl_module import DEFAULT_MODULE_ID
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
from ray.rllib.env.wrappers.pettingzoo_env import ParallelPettingZooEnv
from ray.tune.registry import register_env

from agents.cluster.teachers import FirstFit
from agents.rllib.advantages import PerTime
from agents.rllib.algorithm import LockStepPPO, algorithm
from agents.rllib.cluster.subject import Schedulers
from agents.rllib.config import PPO, Cloning, Learner, Training
from agents.rllib.module import module_spec
from agents.rllib.ppo import Instruction, parts_of
from agents.rllib.runner import Order
from agents.rllib.subject import Subject
from agents.rllib.training import Exam
from envs.cluster.environment.actions import ClusterActions
from envs.cluster.environment.generator import RandomJobs
from envs.cluster.environment.observation import ClusterObservation
from envs.cluster.environment.parallel_env import ClusterParallelEnv
from envs.cluster.nodes import Cluster
from experiments.run.targets import build
from experiments.step.problem import load_problem
from models.cluster.hierarchical import HierarchicalConfig
from tests.agents.rllib.step.stepwise import PlacementSubject

HERE = Learner(0, 0, 0.0, "cpu", None)
SHARED = "shared"
PARTS = ("sampling", "learning")


@dataclass(frozen=True)
class Wing:
    """What is measured, on both sides."""

    training: Training
    subject: Callable[[Training], Subject]
    environment: Callable[[], Any]  # as stock steps it
    module: str  # of stock's

    def stock(self, steps: int) -> tuple[Any, Any]:
        """RLlib's runner and learner."""
        ppo, several = self.training.ppo, self.module != DEFAULT_MODULE_ID
        register_env("stock", lambda _: self.environment())
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
            .rl_module(rl_module_spec=module_spec(self.training.model))
            .training(
                lr=ppo.learning_rate,
                minibatch_size=ppo.minibatch_size,
                num_epochs=ppo.num_epochs,
                entropy_coeff=ppo.entropy_coefficient,
                vf_clip_param=float("inf"),
                vf_loss_coeff=ppo.value_coefficient,
                grad_clip=ppo.max_gradient_norm,
            )
        )
        if several:
            config.multi_agent(policies=[SHARED], policy_mapping_fn=lambda *_, **__: SHARED)
        runner = (MultiAgentEnvRunner if several else SingleAgentEnvRunner)(config=config)
        subject = self.subject(self.training)
        spaces = {self.module: subject.spaces_of(subject.agents[0])}
        return runner, config.build_learner(spaces=spaces)


def training_of(ppo: PPO, model: Any) -> Training:
    return Training(
        model=model,
        parameters="shared",
        ppo=ppo,
        cloning=Cloning(0, 1e-3, 1, 0.0, 0.0),
        restarts=None,
        learner=HERE,
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


def placement() -> Wing:
    """BERT-large on mixed_v100_p100, step by step; episodes are whole."""
    words = ["env=placement", "agent=ppo_joint", "model=joint", "training=step"]
    with initialize_config_module("conf", version_base=None):
        config: Any = OmegaConf.to_container(compose("train", words), resolve=True)
    problem = load_problem(config["env"], config["graph"], config["topology"], config["cost"])
    team = build(config["training"], "training")
    training = replace(team, model=team.model.placer)
    make = partial(build(config["env"]), problem.problem)
    return Wing(training, partial(PlacementSubject, make()), make, DEFAULT_MODULE_ID)


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


def subject_of_schedulers(training: Training) -> Schedulers:
    return Schedulers(
        schedulers,
        lambda _: schedulers(),
        parameters=training.parameters,
        per_gpu=True,
        teacher=None,
        reference=FirstFit(),
    )


def cluster() -> Wing:
    """Four schedulers with the network of `conf/model/hierarchical.yaml`; episodes go on."""
    text = resources.files("conf").joinpath("model/hierarchical.yaml").read_text()
    chosen = yaml.safe_load(text)
    del chosen["_target_"]
    ppo = PPO(
        num_envs=32,
        steps=32,
        episodes=None,
        alike=1,
        best_share=0.0,
        learned=None,
        minibatch_size=512,
        num_epochs=3,
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
    return Wing(
        training_of(ppo, HierarchicalConfig(**chosen)),
        subject_of_schedulers,
        lambda: ParallelPettingZooEnv(schedulers()),
        SHARED,
    )


class Ours:
    """Our runner and learner, in this process."""

    def __init__(self, wing: Wing) -> None:
        self.ppo = wing.training.ppo
        self.built: LockStepPPO = algorithm(wing.training, wing.subject(wing.training))
        self.steps = steps_of(self.built)
        self.iteration = 0

    def round(self) -> dict[str, float]:
        """Seconds per step."""
        assert self.built.runner is not None
        clock = [time.process_time()]
        fragment = self.built.runner.sample(Order(self.iteration, 1.0, self.steps))
        clock.append(time.process_time())
        ready = self.built.batches.ready([fragment], 1)
        parts = parts_of(ready.fewest, self.ppo.minibatch_size)
        self.built.learner_group.update(
            batch=ready.batches[0],
            instruction=Instruction(
                self.iteration,
                self.ppo.num_epochs,
                parts,
                self.ppo.learning_rate,
                self.ppo.entropy_coefficient,
            ),
        )
        clock.append(time.process_time())
        self.iteration += 1
        return dict(zip(PARTS, np.diff(clock) / fragment.steps, strict=True))


class Stock:
    """RLlib's."""

    def __init__(self, wing: Wing, steps: int) -> None:
        self.ppo, self.steps = wing.training.ppo, steps * wing.training.ppo.num_envs
        self.runner, self.learner = wing.stock(steps)

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


def steps_of(built: LockStepPPO) -> int:
    """Of a fragment."""
    steps = built.training.ppo.steps
    if steps is None:
        steps = max(one.length for one in Exam(built.subject, 1).of_policies(built.modules))
    built.counters.horizon = steps
    return steps


def rates(seconds: list[dict[str, float]]) -> dict[str, float]:
    """Steps per second, of medians."""
    found = {part: 1.0 / float(np.median([one[part] for one in seconds])) for part in PARTS}
    return {**found, "together": 1.0 / sum(1.0 / found[part] for part in PARTS)}


def beside_stock(wing: Wing, rounds: int) -> dict[str, dict[str, float]]:
    """In turn; the first of each compiles and is not counted."""
    ours = Ours(wing)
    sides: dict[str, Any] = {"ours": ours, "stock": Stock(wing, ours.steps)}
    spent: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    for _ in range(rounds + 1):
        for name, side in sides.items():
            spent[name].append(side.round())
    return {name: rates(of_side[1:]) for name, of_side in spent.items()}


def remote(wing: Wing, rounds: int) -> dict[str, dict[str, float]]:
    """By how many runners and learners, one after the other."""
    from ray.cluster_utils import Cluster as RayCluster

    nodes = {"num_cpus": 2, "include_dashboard": False}
    ray_cluster = RayCluster(initialize_head=True, head_node_args=nodes)
    ray_cluster.add_node(**nodes)
    found = {}
    try:
        for runners, learners in ((0, 0), (1, 0), (2, 0), (2, 2)):
            learner = replace(
                HERE,
                num_env_runners=runners,
                num_learners=learners,
                ray_address=ray_cluster.address,
            )
            training = replace(wing.training, learner=learner)
            built = algorithm(training, wing.subject(training))
            steps_of(built)
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
    parser.add_argument("--only", choices=("placement", "cluster"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--remote", action="store_true")
    parser.add_argument("--json", action="store_true", help="rates as JSON, one line for each wing")
    chosen = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    for name, wing in (("placement", placement), ("cluster", cluster)):
        if chosen.only not in (None, name):
            continue
        found = (remote if chosen.remote else beside_stock)(wing(), chosen.rounds)
        if chosen.json:
            print(json.dumps({name: found}))
            continue
        print(f"{name}, steps per second{'':8}{'sampling':>12}{'learning':>12}{'together':>12}")
        for side, rate in found.items():
            shown = "".join(f"{rate[part]:>12,.0f}" for part in (*PARTS, "together"))
            print(f"  {side:34}{shown}")


if __name__ == "__main__":
    main()
