from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest
import torch
from identity_env import DEVICES, LAYOUT, IdentityEnv, small_config, small_ppo
from ray.rllib.core.rl_module.rl_module import DEFAULT_MODULE_ID

from agents.rllib.learner import ClippedPPOLearner
from agents.rllib.module import PolicyModule
from agents.rllib.step.decisions import examine
from agents.rllib.step.environment import ALONE, Archive, EpisodeKeeper, TrainingEnv
from agents.rllib.step.tasks import PlacementTask
from agents.rllib.step.training import PPOSession
from envs.errors import InputError


class OneDeviceAllowed(gym.ObservationWrapper[Any, Any, Any]):
    def observation(self, observation: Any) -> Any:
        observation["action_mask"][:] = 0
        observation["action_mask"][observation["current"][0] % DEVICES] = 1
        return observation


def kept(seed: int, index: int) -> TrainingEnv:
    return TrainingEnv(EpisodeKeeper(IdentityEnv(), PlacementTask(0), seed, index, Archive(2), 0.0))


@pytest.fixture
def session() -> PPOSession:
    return PPOSession(small_config(), IdentityEnv, PlacementTask(0))


def test_session_builds_our_module_and_learner_without_a_ray_runtime(session: PPOSession) -> None:
    import ray

    assert isinstance(session.runner.modules[DEFAULT_MODULE_ID], PolicyModule)
    assert isinstance(session.learner, ClippedPPOLearner)
    assert len(session.runner.envs) == len(session.keepers) == 4
    assert not ray.is_initialized()


def test_the_sampler_has_the_learners_weights_after_every_update(session: PPOSession) -> None:
    before = {k: v.clone() for k, v in session.network.state_dict().items()}
    batch, _ = session.sample(8)
    session.learn(batch, 32)
    after = session.network.state_dict()
    assert any((before[name] != after[name]).any() for name in after)
    assert session.runner.modules[DEFAULT_MODULE_ID] is session.learner.module[DEFAULT_MODULE_ID]


def test_masked_actions_are_never_sampled() -> None:
    session = PPOSession(small_config(), lambda: OneDeviceAllowed(IdentityEnv()), PlacementTask(0))
    batch, ended = session.sample(8)
    assert len(ended) == 4
    for episode in batch:
        assert episode.parts[ALONE].get_actions().tolist() == [i % DEVICES for i in range(8)]


def test_equally_long_episodes_make_a_batch_without_remainder(session: PPOSession) -> None:
    batch, ended = session.sample(8)
    assert [len(episode) for episode in batch] == [8] * 4
    assert all(episode.is_done for episode in batch)
    assert len(ended) == 4


def test_gradients_are_clipped_to_the_global_norm(session: PPOSession) -> None:
    limit = session.config.ppo.max_gradient_norm
    learner = session.learner
    large = {pid: torch.full_like(p, 3.0) for pid, p in learner._params.items()}
    clipped = learner.postprocess_gradients(large)
    assert float(torch.nn.utils.get_total_norm(clipped.values())) == pytest.approx(limit, rel=1e-4)
    small = {pid: torch.full_like(p, 1e-6) for pid, p in learner._params.items()}
    for pid, gradient in learner.postprocess_gradients(small).items():
        torch.testing.assert_close(gradient, small[pid])


def test_clipping_reaches_the_optimizer() -> None:
    """With a tiny limit the gradients in the parameters after an update are that tiny."""
    ppo = small_ppo(learning_rate=1e-3, max_gradient_norm=1e-5)
    session = PPOSession(small_config(ppo=ppo), IdentityEnv, PlacementTask(0))
    batch, _ = session.sample(8)
    metrics = session.learn(batch, 32)[DEFAULT_MODULE_ID]
    gradients = [p.grad for p in session.network.parameters() if p.grad is not None]
    assert metrics["gradient_norm"] > 1e-3
    assert float(torch.nn.utils.get_total_norm(gradients)) <= 1.01e-5


def test_the_critics_error_is_not_clamped(session: PPOSession) -> None:
    with torch.no_grad():
        session.network.value.layers[-1].bias.fill_(1e3)
    batch, _ = session.sample(8)
    assert session.learn(batch, 32)[DEFAULT_MODULE_ID]["vf_loss"] > 1e5


def test_the_optimizer_owns_exactly_the_policys_parameters(session: PPOSession) -> None:
    owned = {
        id(p)
        for group in session.optimizers[DEFAULT_MODULE_ID].param_groups
        for p in group["params"]
    }
    assert owned == {id(p) for p in session.network.parameters()}
    assert session.learner.module[DEFAULT_MODULE_ID].policy is session.network


def test_episode_seeds_depend_on_run_environment_and_count_only() -> None:
    def wanted(env: TrainingEnv) -> list[int]:
        env.reset()
        inner = env.env
        assert isinstance(inner, IdentityEnv)
        return list(inner.wanted)

    first = kept(0, 0)
    drawn = [wanted(first) for _ in range(3)]
    assert len({tuple(w) for w in drawn}) == 3  # not one and the same instance
    resumed = kept(0, 0)
    resumed.keeper.episodes_started = 2
    assert wanted(resumed) == drawn[2]
    assert wanted(kept(0, 1)) != drawn[0]
    assert wanted(kept(1, 0)) != drawn[0]


def test_an_exam_repeats_however_many_are_stepped_together(session: PPOSession) -> None:
    exams = [examine(session.act, session.exam_envs[:n], 6, session.task) for n in (4, 4, 3)]
    assert exams[0] == exams[1] == exams[2]
    assert len(exams[0]) == 6
    assert {episode.length for episode in exams[0]} == {8}


def test_policy_reads_the_spaces_widths(session: PPOSession) -> None:
    assert session.network.widths == LAYOUT.widths


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"max_steps": None}, "set budget_s or max_steps"),
        ({"max_steps": 1, "checkpoint_every": 0}, "field 'checkpoint_every': 0 is below 1"),
        ({"max_steps": 0}, "field 'max_steps': 0 is below 1"),
        ({"budget_s": -1.0}, "field 'budget_s': -1.0 is not positive"),
        ({"max_steps": 1, "exam_episodes": -1}, "field 'exam_episodes': -1 is negative"),
        (
            {"max_steps": 1, "restart_share": 1.5},
            "field 'restart_share': 1.5 is not between 0 and 1",
        ),
    ],
)
def test_senseless_settings_are_named(chosen: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        small_config(**chosen)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"batch_episodes": 17}, "field 'batch_episodes': 17 is not a multiple"),
        ({"num_envs": 0}, "field 'num_envs': 0 is below 1"),
        ({"minibatch_size": 0}, "field 'minibatch_size'"),
        ({"learning_rate": -1.0}, "field 'learning_rate': -1.0 is not positive"),
        ({"gamma": 7.0}, "field 'gamma': 7.0 is not between 0 and 1"),
        ({"entropy_coefficient": -0.1}, "field 'entropy_coefficient': -0.1 is negative"),
    ],
)
def test_senseless_ppo_settings_are_named(chosen: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        small_ppo(**chosen)
