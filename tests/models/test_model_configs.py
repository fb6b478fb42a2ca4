from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from envs.placement.env import toy_environment
from models.graph_batch import GraphBatch
from models.layout import widths_of
from models.policy import PlacementPolicy, PolicyConfig

CONF = Path(__file__).resolve().parents[2] / "conf" / "model"


@pytest.mark.parametrize("path", sorted(CONF.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_model_config_builds_a_policy_that_decides(path: Path) -> None:
    config = instantiate(OmegaConf.load(path), _convert_="all")
    assert isinstance(config, PolicyConfig)
    observation, _ = toy_environment().reset(seed=0)
    policy = PlacementPolicy(config, widths_of(observation))
    with torch.inference_mode():
        logits, _ = policy(GraphBatch.stack([observation]))
    assert np.isfinite(logits.numpy()).all()


def test_the_main_jobs_policy_starts_near_uniform() -> None:
    config = instantiate(OmegaConf.load(CONF / "message_passing.yaml"), _convert_="all")
    observation, _ = toy_environment().reset(seed=0)
    torch.manual_seed(0)
    policy = PlacementPolicy(config, widths_of(observation))
    with torch.inference_mode():
        logits = policy(GraphBatch.stack([observation]))[0][0].numpy()
    allowed = observation["action_mask"] == 1
    np.testing.assert_allclose(logits[allowed], 0.0, atol=0.1)
