"""Small environments, networks and configs to train schedulers with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from agents.cluster.teachers import FirstFit
from agents.rllib.advantages import PerTime
from agents.rllib.cluster.scheduling import SchedulingRLTask
from agents.rllib.config import Training
from envs.cluster.environment.actions import ClusterActions
from envs.cluster.environment.generator import RandomJobs
from envs.cluster.environment.observation import ClusterObservation
from envs.cluster.environment.parallel_env import ClusterParallelEnv
from envs.cluster.nodes import Cluster
from models.cluster.hierarchical import HierarchicalConfig
from tests.agents.rllib.toys import small_training

SMALL = partial(ClusterObservation, window=3, running=6, shares=8, known_durations=False, history=1)
MODEL = HierarchicalConfig(
    hidden=8, rounds=1, heads=2, initial_scale=0.1, initial_index_weight=0.0,
    initial_speed_weight=0.0, initial_expert_weight=0.0,
)  # fmt: skip
PPO = {
    "num_envs": 4, "steps": 16, "episodes": None, "num_epochs": 2, "learning_rate": 3e-3,
    "final_learning_rate": 1e-3, "entropy_coefficient": 0.003, "anneal_steps": 5_000,
    "discounting": PerTime(tau=20.0, credit=4.0), "target_kl": 0.1, "value_memory": 10.0,
    "normalise_rewards": True,
}  # fmt: skip


def environment(jobs: int = 6, **changes: Any) -> ClusterParallelEnv:
    """Six jobs on four servers of two GPUs; two schedulers, preemption."""
    generator = RandomJobs(
        Cluster.uniform(4, 2, nodes_per_rack=2), jobs=(jobs, jobs), load=(0.9, 1.1), max_gpus=4,
        duration_s=(600, 6_000),
    )  # fmt: skip
    actions = ClusterActions(preempt_after_s=600.0, longest_wait_s=3_600.0)
    given = {"schedulers": 2, "observation": SMALL, "actions": actions, **changes}
    return ClusterParallelEnv(generator, **given)


def training(ppo: Mapping[str, Any] = {}, **changes: Any) -> Training:
    chosen = {"max_steps": 256, "evaluate_every": 2, "evaluation_episodes": 2, **changes}
    return small_training({**PPO, **ppo}, evaluation_give_up=100.0, **{"model": MODEL, **chosen})


def schedulers(
    make: Callable[[], ClusterParallelEnv] = environment, **changes: Any
) -> SchedulingRLTask:
    """The first fit is imitated, and evaluations are measured by it."""
    first = FirstFit()
    given = {"parameters": "shared", "per_gpu": True, "teacher": first, "reference": first}
    return SchedulingRLTask(make, lambda _: make(), **given | changes)
