from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hydra.utils import instantiate

from envs.bandwidth.env import toy_environment as bandwidth_toy
from envs.cluster.environment.env import toy_environment as cluster_toy
from experiments.config.config_source import SHIPPED_CONFIGS
from models.architecture import Architecture


@pytest.mark.parametrize(
    ("model", "env"), [("channels", bandwidth_toy()), ("hierarchical", cluster_toy())]
)
def test_a_model_config_builds_a_policy_that_decides(model: str, env: Any) -> None:
    architecture = instantiate(SHIPPED_CONFIGS.node(f"model/{model}"), _convert_="all")
    assert isinstance(architecture, Architecture)
    policy = architecture.policy(env.observation_space, env.action_space)
    seen = env.reset(seed=0)[0]
    batch = {name: torch.from_numpy(np.asarray(array)[None]) for name, array in seen.items()}
    with torch.inference_mode():
        inputs, value = policy.decide(batch)
    assert np.isfinite(inputs.numpy()).all()
    assert value.shape == (1,)
