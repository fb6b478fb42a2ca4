from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from envs.bandwidth.env import toy_environment as bandwidth_toy
from envs.cluster.environment.env import toy_environment as cluster_toy
from envs.joint.env import toy_environment as joint_toy
from envs.placement.env import toy_environment
from models.architecture import Architecture
from tests.paths import CONF

MODELS = CONF / "model"


def placement() -> Any:
    env = toy_environment()
    return env.observation_space, env.action_space, env.reset(seed=0)[0]


def bandwidth() -> Any:
    env = bandwidth_toy()
    return env.observation_space, env.action_space, env.reset(seed=0)[0]


def cluster() -> Any:
    env = cluster_toy()
    return env.observation_space, env.action_space, env.reset(seed=0)[0]


def joint(agent: str) -> Any:
    env = joint_toy()
    seen, _ = env.reset(seed=0)
    return env.observation_space(agent), env.action_space(agent), seen[agent]


CASES: dict[str, list[tuple[str | None, Callable[[], Any]]]] = {
    "channels": [(None, bandwidth)],
    "hierarchical": [(None, cluster)],
    "joint": [("placer", lambda: joint("placer")), ("allocator", lambda: joint("allocator_1"))],
}


POLICIES = sorted(
    path
    for path in MODELS.glob("*.yaml")
    if path.stem
    not in ("interference", "durations", "priority", "placer", "placer_continued", "joint_plans")
)


@pytest.mark.parametrize("path", POLICIES, ids=lambda path: path.stem)
def test_every_model_config_builds_policies_that_decide(path: Path) -> None:
    config = instantiate(OmegaConf.load(path), _convert_="all")
    for part, case in CASES[path.stem]:
        architecture = config if part is None else getattr(config, part)
        assert isinstance(architecture, Architecture)
        observation_space, action_space, seen = case()
        policy = architecture.policy(observation_space, action_space)
        batch = {name: torch.from_numpy(np.asarray(array)[None]) for name, array in seen.items()}
        with torch.inference_mode():
            inputs, value = policy.decide(batch)
        assert np.isfinite(inputs.numpy()).all()
        assert value.shape == (1,)
