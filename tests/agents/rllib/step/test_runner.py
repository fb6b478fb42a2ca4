"""What the runner hands to RLlib's learner, and what the learner makes of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from identity_env import GROUPS, IdentityEnv, small_config, small_ppo
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.training_data import TrainingData
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.evaluation.postprocessing import Postprocessing
from ray.rllib.utils.metrics import NUM_ENV_STEPS_SAMPLED_LIFETIME
from team_env import AGENTS, SERVERS, TeamIdentityEnv, team_config

from agents.rllib.restore import seeded_generators
from agents.rllib.step.environment import ALONE
from agents.rllib.step.runner import Episode
from agents.rllib.step.tasks import JointTask, PlacementTask
from agents.rllib.step.training import PPOSession

ENVS = 4
PPO = small_ppo(num_envs=ENVS, batch_episodes=ENVS, learning_rate=1e-3, gamma=0.9, gae_lambda=0.8)


class RecordedEnv(TeamIdentityEnv):
    """Remembers what its agents saw, did and got; with `short` it ends a step or two early."""

    def __init__(self, short: int = 0) -> None:
        super().__init__()
        self.short = short
        self.history: list[list[Any]] = []

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        begun = super().reset(seed, options)
        self.history.append([begun[0]])
        return begun

    def step(self, actions: dict[str, Any]) -> Any:
        seen, rewards, terminated, truncated, infos = super().step(actions)
        if self.decided == GROUPS - self.short:
            terminated = dict.fromkeys(AGENTS, True)
            infos = {name: {**info, "feasible": True} for name, info in infos.items()}
        self.history[-1] += [(dict(actions), rewards), seen]
        return seen, rewards, terminated, truncated, infos


def team_session(short: int = 0) -> tuple[PPOSession, list[RecordedEnv]]:
    made: list[RecordedEnv] = []

    def make() -> RecordedEnv:
        made.append(RecordedEnv(short))
        return made[-1]

    session = PPOSession(team_config(ppo=PPO), make, JointTask(0))
    return session, made[:ENVS]


def equal(one: Any, other: Any) -> None:
    assert set(one) == set(other)
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])


def parts_of(batch: list[Episode]) -> list[Any]:
    return [part for episode in batch for part in episode.parts.values()]


def test_a_module_is_asked_once_per_round_for_all_its_agents(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session, _ = team_session()
    asked: dict[str, list[int]] = {name: [] for name in session.modules}
    for name, policy in session.policies.items():

        def counted(seen: Any, name: str = name, decide: Any = policy.decide) -> Any:
            asked[name].append(len(seen["action_mask"]))
            return decide(seen)

        monkeypatch.setattr(policy, "decide", counted)
    session.sample(GROUPS)
    assert asked == {"placer": [ENVS] * GROUPS, "allocator": [ENVS * SERVERS] * GROUPS}


@pytest.mark.parametrize(("short", "lengths"), [(0, [8]), (2, [6, 2]), (5, [3, 3, 2])])
def test_episodes_hold_what_happened_to_every_agent(short: int, lengths: list[int]) -> None:
    session, envs = team_session(short)
    batch, ended = session.sample(GROUPS)
    assert sum(len(episode) for episode in batch) == ENVS * GROUPS
    assert len(ended) == sum(episode.is_done for episode in batch)
    assert [len(env.history) for env in envs] == [len(lengths)] * ENVS  # no reset in vain
    found = {episode.parts["placer"].multi_agent_episode_id: episode for episode in batch}
    assert len(found) == len(batch)
    for index, env in enumerate(envs):
        start = 0
        for history, length in zip(env.history, lengths, strict=True):
            episode = found[f"{index}.{start}"]
            start += length
            assert len(episode) == length
            assert episode.is_done == (length == GROUPS - short)
            for agent, part in episode.parts.items():
                for t in range(length + 1):
                    equal(part.get_observations(t), history[2 * t][agent])
                for t in range(length):
                    actions, rewards = history[2 * t + 1]
                    assert part.get_actions(t) == actions[agent]
                    assert part.get_rewards(t) == pytest.approx(rewards[agent])


def test_a_second_sample_starts_from_fresh_episodes() -> None:
    session, envs = team_session()
    session.sample(GROUPS // 2)
    batch, ended = session.sample(GROUPS)
    assert len(ended) == ENVS
    assert [len(env.history[0]) for env in envs] == [1 + GROUPS] * ENVS  # 4 steps, then cut
    assert [len(episode) for episode in batch] == [GROUPS] * ENVS


def test_probabilities_are_those_of_the_actions_drawn() -> None:
    session, _ = team_session()
    batch, _ = session.sample(GROUPS)
    for part in parts_of(batch):
        module = session.modules[part.module_id]
        seen = part.get_observations(slice(0, len(part)))
        logits, _ = module.policy.decide({k: torch.from_numpy(v) for k, v in seen.items()})
        inputs = part.get_extra_model_outputs(Columns.ACTION_DIST_INPUTS)
        np.testing.assert_allclose(inputs, logits.detach().numpy(), atol=1e-5)
        drawn = torch.log_softmax(torch.from_numpy(inputs), dim=-1).numpy()
        expected = drawn[np.arange(len(part)), part.get_actions()]
        found = part.get_extra_model_outputs(Columns.ACTION_LOGP)
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_actions_are_drawn_as_often_as_they_are_probable() -> None:
    session = PPOSession(
        small_config(ppo=small_ppo(num_envs=16, batch_episodes=16)), IdentityEnv, PlacementTask(0)
    )
    batch, _ = session.sample(4 * GROUPS)  # 512 decisions
    parts = [episode.parts[ALONE] for episode in batch]
    logits = np.concatenate([p.get_extra_model_outputs(Columns.ACTION_DIST_INPUTS) for p in parts])
    actions = np.concatenate([p.get_actions() for p in parts])
    expected = torch.softmax(torch.from_numpy(logits), dim=-1).numpy().mean(axis=0)
    found = np.bincount(actions, minlength=3) / len(actions)
    np.testing.assert_allclose(found, expected, atol=4 * 0.5 / np.sqrt(len(actions)))


def learner_batch(session: PPOSession, episodes: list[Any]) -> Any:
    """What RLlib's connectors make of `episodes`, by module."""
    batch = session.learner._make_batch_if_necessary(TrainingData(episodes=episodes))
    return batch.policy_batches


def hand_computed(session: PPOSession, part: Any) -> tuple[np.ndarray, np.ndarray]:
    """Advantages and value targets of one agent, by the definition of GAE."""
    policy = session.policies[part.module_id]
    seen = {k: torch.from_numpy(v) for k, v in part.get_observations().items()}
    values = policy.decide(seen)[1].detach().numpy().astype(np.float64)
    rewards, steps = part.get_rewards(), len(part)
    after = np.append(values[1:steps], 0.0 if part.is_terminated else values[steps])
    errors = rewards + PPO.gamma * after - values[:steps]
    advantages = [
        sum((PPO.gamma * PPO.gae_lambda) ** k * errors[t + k] for k in range(steps - t))
        for t in range(steps)
    ]
    return np.array(advantages), np.array(advantages) + values[:steps]


@pytest.mark.parametrize("short", [0, 2])
def test_advantages_and_value_targets_are_those_computed_by_hand(short: int) -> None:
    session, _ = team_session(short)
    batch, _ = session.sample(GROUPS)
    assert {episode.is_done for episode in batch} == ({True} if short == 0 else {True, False})
    by_hand: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {name: [] for name in session.modules}
    actions: dict[str, list[np.ndarray]] = {name: [] for name in session.modules}
    for part in parts_of(batch):
        by_hand[part.module_id].append(hand_computed(session, part))
        actions[part.module_id].append(part.get_actions().copy())
    found = learner_batch(session, parts_of(batch))
    assert set(found) == set(session.modules)
    for name, columns in found.items():
        real = columns[Columns.LOSS_MASK].numpy()
        advantages = np.concatenate([a for a, _ in by_hand[name]])
        targets = np.concatenate([target for _, target in by_hand[name]])
        assert real.sum() == len(advantages)
        np.testing.assert_array_equal(
            columns[Columns.ACTIONS].numpy()[real], np.concatenate(actions[name])
        )
        np.testing.assert_allclose(
            columns[Postprocessing.VALUE_TARGETS].numpy()[real], targets, atol=1e-5
        )
        standardised = columns[Postprocessing.ADVANTAGES].numpy()[real]  # shifted and scaled
        slope, offset = np.polyfit(advantages, standardised, 1)
        assert slope > 0
        np.testing.assert_allclose(slope * advantages + offset, standardised, atol=1e-4)


def as_rllib_collects_them(episode: Episode) -> MultiAgentEpisode:
    """The same episode, step by step, as RLlib's own multi-agent runner builds it."""
    parts = episode.parts
    built = MultiAgentEpisode(agent_to_module_mapping_fn=lambda a, *_, **__: parts[a].module_id)
    built.add_env_reset(observations={a: part.get_observations(0) for a, part in parts.items()})
    for t in range(len(episode)):
        last = t + 1 == len(episode)
        ends = dict.fromkeys([*parts, "__all__"], last and episode.is_done)
        built.add_env_step(
            observations={a: part.get_observations(t + 1) for a, part in parts.items()},
            actions={a: part.get_actions(t) for a, part in parts.items()},
            rewards={a: float(part.get_rewards(t)) for a, part in parts.items()},
            terminateds=ends,
            truncateds=dict.fromkeys(ends, False),
            extra_model_outputs={
                a: {name: values[t] for name, values in part.extra_model_outputs.items()}
                for a, part in parts.items()
            },
        )
    return built.to_numpy()


@pytest.mark.parametrize("short", [0, 2])
def test_an_update_equals_one_with_rllibs_multi_agent_episodes(short: int) -> None:
    def updated(multi: bool) -> dict[str, dict[str, float]]:
        with seeded_generators(3):
            session, _ = team_session(short)
            batch, _ = session.sample(GROUPS)
            theirs = [as_rllib_collects_them(episode) for episode in batch]
            ours = [  # in the order of a set of names, which is RLlib's
                episode.parts[agent]
                for episode, their in zip(batch, theirs, strict=True)
                for agent in their.agent_ids
            ]
            results = session.learner.update(
                episodes=theirs if multi else ours,
                timesteps={NUM_ENV_STEPS_SAMPLED_LIFETIME: 32},
                num_epochs=3,
                minibatch_size=PPO.minibatch_size,
                shuffle_batch_per_epoch=True,
            )
            return {m: {k: float(v.peek()) for k, v in results[m].items()} for m in session.modules}

    ours, theirs = updated(False), updated(True)
    for name, metrics in ours.items():
        for key in ("policy_loss", "vf_loss", "total_loss", "entropy", "gradient_norm"):
            assert metrics[key] == pytest.approx(theirs[name][key], rel=1e-6), key
