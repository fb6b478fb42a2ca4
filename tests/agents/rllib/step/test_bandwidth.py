"""An agent that learns to share a network whose optimum is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hydra.utils import instantiate
from identity_env import small_config
from omegaconf import OmegaConf
from ray.rllib.core.distribution.torch.torch_distribution import (
    TorchDiagGaussian,
    TorchMultiCategorical,
)

from agents.rllib.step.config import TrainingConfig
from agents.rllib.step.environment import ALONE
from agents.rllib.step.tasks import BandwidthTask
from agents.rllib.step.training import PPOSession, train
from envs.bandwidth.env import continuous_toy_environment, toy_environment
from envs.bandwidth.toy import OPTIMUM_S, UNIFORM_S
from envs.errors import InputError
from tests.paths import CONF


def config(**chosen: Any) -> TrainingConfig:
    """The configured policy and algorithm, for a short run."""
    model, ppo = (
        instantiate(OmegaConf.load(CONF / name), _convert_="all")
        for name in ("model/channels.yaml", "agent/ppo_bandwidth.yaml")
    )
    values = {"model": model, "ppo": ppo, "max_steps": 3_000, "exam_episodes": 1}
    return small_config(**{**values, "checkpoint_every": 10, **chosen})


@pytest.mark.parametrize(
    "make", [pytest.param(toy_environment, marks=pytest.mark.proof), continuous_toy_environment]
)
def test_the_toy_is_shared_within_one_percent_of_the_closed_form(make: Any, tmp_path: Path) -> None:
    # After 3,000 steps half of the seeds have not settled, and rounding decides about seed 0.
    result = train(config(max_steps=6_000), make, tmp_path, task=BandwidthTask())
    assert result.best_plan is not None
    assert OPTIMUM_S * (1 - 1e-9) <= result.best_step_time <= 1.01 * OPTIMUM_S
    assert OPTIMUM_S <= result.trained[0] <= 1.03 * OPTIMUM_S
    assert result.untrained[0] > 1.15 * OPTIMUM_S
    assert result.untrained[0] == pytest.approx(UNIFORM_S, rel=0.1)  # nearly equal shares
    assert result.look_ahead == ()
    env = make()
    env.reset(seed=0)
    assert result.best_plan["rate"].shape == (2, env.instance.problem.topology.network.num_channels)


def test_levels_and_real_weights_have_their_distributions() -> None:
    for make, kind in (
        (toy_environment, TorchMultiCategorical),
        (continuous_toy_environment, TorchDiagGaussian),
    ):
        session = PPOSession(config(), make, BandwidthTask())
        (module,) = session.modules.values()
        observation, _ = make().reset(seed=0)
        batch = {name: torch.from_numpy(array[None]) for name, array in observation.items()}
        inputs, _ = module.policy.decide(batch)
        distribution = module.get_train_action_dist_cls().from_logits(inputs)
        assert isinstance(distribution, kind)
        action = distribution.sample()[0].numpy()
        assert action.shape == make().action_space.shape


def test_actions_beyond_the_box_act_as_its_edge() -> None:
    session = PPOSession(config(), continuous_toy_environment, BandwidthTask())
    session.policies["default_policy"].log_deviation.data.fill_(2.0)  # type: ignore[union-attr]
    batch, ended = session.sample(2)
    drawn = np.concatenate([episode.parts[ALONE].get_actions() for episode in batch])
    assert np.abs(drawn).max() > 1.0  # what was drawn is what is learned from
    assert len(ended) == session.config.ppo.batch_episodes


def test_a_masked_level_is_never_drawn() -> None:
    session = PPOSession(config(), toy_environment, BandwidthTask())
    batch, _ = session.sample(2)
    for episode in batch:
        part = episode.parts[ALONE]
        for t, action in enumerate(part.get_actions()):
            allowed = part.get_observations(t)["action_mask"]
            assert (np.take_along_axis(allowed, action[:, None], axis=1) == 1).all()


def test_bandwidth_cannot_start_from_a_plan() -> None:
    with pytest.raises(InputError, match="restart_share"):
        BandwidthTask().restart(None, {}, {}, np.random.default_rng(0))
