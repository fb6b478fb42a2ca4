"""Every environment has its name in RLlib, and is made there with or without arguments."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest
from ray.rllib.env.env_context import EnvContext
from ray.tune.registry import ENV_CREATOR, _global_registry

from agents.rllib.registration import register
from envs import PARALLEL, make_parallel
from experiments.config.papers import register_environments
from tests.slurm_here import LIVE, LIVE_HERE

register_environments()

SINGLE = [name for name, spec in gymnasium.registry.items() if spec.namespace == "meshwright"]


def made(name: str, **arguments: Any) -> Any:
    register()
    return _global_registry.get(ENV_CREATOR, name)(EnvContext(arguments, worker_index=0))


@pytest.mark.parametrize("name", [LIVE_HERE if one == LIVE else one for one in SINGLE])
def test_environments_of_gymnasium_are_what_it_makes(name: str) -> None:
    ours = made(name)
    assert ours.spec.id == name
    assert ours.reset(seed=0)[0] in ours.observation_space
    ours.close()


@pytest.mark.parametrize("name", sorted(PARALLEL))
def test_environments_of_pettingzoo_have_all_agents(name: str) -> None:
    assert set(made(name).reset(seed=0)[0]) == set(make_parallel(PARALLEL[name]).possible_agents)


def test_env_config_holds_the_arguments() -> None:
    assert made("meshwright/PlacementToy-v0", passes=2).unwrapped.passes == 2
    alone = made("meshwright/ClusterParallel-v0", schedulers=1)
    assert alone.possible_agents == ["scheduler_0"]
