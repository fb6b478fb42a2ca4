"""Our environments under their names in RLlib: `config.environment("meshwright/...")`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec
from ray.rllib.env.wrappers.pettingzoo_env import ParallelPettingZooEnv
from ray.tune.registry import register_env

from envs import PARALLEL, make_parallel


def register() -> None:
    """Make every environment known to RLlib and its workers.

    `env_config` holds the environment's arguments; left empty, it makes the default instance. Ray
    forgets the names at `ray.shutdown()`: they are registered once for every `ray.init()`, before
    or after it.
    """
    for name, spec in gymnasium.registry.items():
        if spec.namespace == "meshwright":
            register_env(name, partial(_single, spec))
    for name, entry in PARALLEL.items():
        register_env(name, partial(_parallel, entry))


def _single(spec: EnvSpec, arguments: Mapping[str, Any]) -> gymnasium.Env[Any, Any]:
    return gymnasium.make(spec, **arguments)


def _parallel(entry: str, arguments: Mapping[str, Any]) -> ParallelPettingZooEnv:
    return ParallelPettingZooEnv(make_parallel(entry, **arguments))
