"""Small environments, networks and configs to train schedulers with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from agents.cluster.teachers import FirstFit
from agents.rllib.advantages import PerTime
from agents.rllib.cluster.lane import Schedulers
from agents.rllib.config import PPO, Cloning, Learner, Training
from envs.cluster.environment.actions import ClusterActions
from envs.cluster.environment.generator import RandomJobs
from envs.cluster.environment.observation import ClusterObservation
from envs.cluster.environment.parallel_env import ClusterParallelEnv
from envs.cluster.nodes import Cluster
from models.cluster.hierarchical import HierarchicalConfig

SMALL = partial(ClusterObservation, window=3, running=6, shares=8, known_durations=False, history=1)


def environment(**changes: Any) -> ClusterParallelEnv:
    """Six jobs on four servers of two GPUs; two schedulers, preemption."""
    jobs = changes.pop("jobs", 6)
    generator = RandomJobs(
        Cluster.uniform(4, 2, nodes_per_rack=2),
        jobs=(jobs, jobs),
        load=(0.9, 1.1),
        max_gpus=4,
        duration_s=(600, 6_000),
    )
    arguments: dict[str, Any] = {
        "schedulers": 2,
        "observation": SMALL,
        "actions": ClusterActions(preempt_after_s=600.0, longest_wait_s=3_600.0),
    }
    return ClusterParallelEnv(generator, **{**arguments, **changes})


MODEL = HierarchicalConfig(
    hidden=8,
    rounds=1,
    heads=2,
    hierarchy=True,
    use_interference=True,
    initial_scale=0.1,
    initial_index_weight=0.0,
    initial_speed_weight=0.0,
    initial_advice_weight=0.0,
)
SETTINGS = PPO(
    num_envs=4,
    steps=16,
    episodes=None,
    alike=1,
    learned=None,
    minibatch_size=32,
    num_epochs=2,
    learning_rate=3e-3,
    final_learning_rate=1e-3,
    entropy_coefficient=0.003,
    final_entropy_coefficient=0.0,
    anneal_steps=5_000,
    discounting=PerTime(tau=20.0, credit=4.0),
    clip=0.2,
    most_kl=0.1,
    reference_kl=0.0,
    value_coefficient=0.5,
    value_memory=10.0,
    normalise_rewards=True,
    normalise_advantages="batch",
    auxiliary_coefficient=0.1,
    max_gradient_norm=0.5,
)
TRAINING = Training(
    model=MODEL,
    parameters="shared",
    ppo=SETTINGS,
    cloning=Cloning(
        iterations=0, learning_rate=3e-3, num_epochs=2, first_share=0.0, last_share=0.5
    ),
    learner=Learner(0, 0, 0.0, "cpu", None),
    seed=0,
    budget_s=None,
    max_steps=256,
    curriculum_steps=None,
    checkpoint_every=2,
    exam_every=2,
    exam_episodes=2,
    exam_give_up=100.0,
    torch_threads=1,
)


def training(ppo: dict[str, Any] | None = None, **changes: Any) -> Training:
    """`TRAINING` with changes."""
    return replace(TRAINING, ppo=replace(SETTINGS, **(ppo or {})), **changes)


def schedulers(make: Callable[[], ClusterParallelEnv] = environment, **changes: Any) -> Schedulers:
    """What they are learned about, taught by the first fit and measured by it."""
    given: dict[str, Any] = {
        "parameters": "shared",
        "per_gpu": True,
        "teacher": FirstFit(),
        "reference": FirstFit(),
    }
    return Schedulers(make, lambda _: make(), **{**given, **changes})
