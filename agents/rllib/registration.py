"""Our environments under their names in RLlib: `config.environment("meshwright/...")`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import gymnasium
from pettingzoo import ParallelEnv
from ray.rllib.env.wrappers.pettingzoo_env import ParallelPettingZooEnv
from ray.tune.registry import register_env

import envs  # noqa: F401, which registers with Gymnasium
from envs.cluster.allocation import parallel_env as allocation
from envs.cluster.environment import parallel_env as cluster
from envs.joint import env as joint

MakesParallel = Callable[..., ParallelEnv[Any, Any, Any]]
PARALLEL: Mapping[str, MakesParallel] = {
    "meshwright/Joint-v0": joint.JointEnv,
    "meshwright/JointToy-v0": joint.toy_environment,
    "meshwright/ClusterParallel-v0": cluster.ClusterParallelEnv,
    "meshwright/ClusterParallelToy-v0": cluster.toy_environment,
    "meshwright/AllocationParallel-v0": allocation.AllocationParallelEnv,
}


def register() -> None:
    """Make every environment known to RLlib and its workers.

    `env_config` holds the environment's arguments; left empty, it makes the default instance. Ray
    forgets the names at `ray.shutdown()`: they are registered once for every `ray.init()`, before
    or after it.
    """
    for name, spec in gymnasium.registry.items():
        if spec.namespace == "meshwright":
            register_env(name, partial(_single, name))
    for name, make in PARALLEL.items():
        register_env(name, partial(_parallel, make))


def _single(name: str, arguments: Mapping[str, Any]) -> gymnasium.Env[Any, Any]:
    return gymnasium.make(name, **arguments)


def _parallel(make: MakesParallel, arguments: Mapping[str, Any]) -> ParallelPettingZooEnv:
    return ParallelPettingZooEnv(make(**arguments))
