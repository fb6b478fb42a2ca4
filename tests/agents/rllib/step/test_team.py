"""Several modules in one session: the placer's, and the one all allocators share."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from identity_env import GROUPS, IdentityEnv, small_config, small_ppo
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch
from team_env import AGENTS, TeamIdentityEnv, team_config

from agents.rllib.learner import proportional_minibatches
from agents.rllib.step.decisions import examine
from agents.rllib.step.tasks import JointTask, PlacementTask
from agents.rllib.step.training import PPOSession, train
from envs.errors import InputError

CLOCKS = {"charts/seconds", "charts/SPS", "charts/sample_seconds", "charts/learn_seconds"}
MODULES = ["placer", "allocator"]


@pytest.fixture
def session() -> PPOSession:
    return PPOSession(team_config(), TeamIdentityEnv, JointTask(0))


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open(encoding="utf-8", newline="") as file:
        return [
            {name: value for name, value in row.items() if name not in CLOCKS}
            for row in csv.DictReader(file)
        ]


def test_two_modules_decide_for_all_agents_without_a_ray_runtime(session: PPOSession) -> None:
    import ray

    batch, ended = session.sample(GROUPS)
    assert list(session.modules) == MODULES
    assert not ray.is_initialized()
    assert len(ended) == len(batch) == 4
    for episode in batch:
        assert episode.is_done
        assert set(episode.parts) == set(AGENTS)
        for agent, part in episode.parts.items():
            assert len(part) == GROUPS  # every agent acts in every step, the last included
            assert part.module_id == ("placer" if agent == "placer" else "allocator")
            assert sum(part.get_rewards()) == pytest.approx(ended[0].total_reward, abs=1.0)


def test_the_reward_of_the_team_is_that_of_every_agent(session: PPOSession) -> None:
    batch, ended = session.sample(GROUPS)
    totals = [
        {round(float(sum(part.get_rewards())), 9) for part in episode.parts.values()}
        for episode in batch
    ]
    assert all(len(of_one_episode) == 1 for of_one_episode in totals)
    found = sorted(value for one in totals for value in one)
    assert found == pytest.approx(sorted(e.total_reward for e in ended))


def test_each_module_is_clipped_by_its_own_norm(session: PPOSession) -> None:
    limit, learner = session.config.ppo.max_gradient_norm, session.learner
    size = {"placer": 3.0, "allocator": 1e-6}
    gradients = {
        learner.get_param_ref(p): torch.full_like(p, size[name])
        for name, policy in session.policies.items()
        for p in policy.parameters()
    }
    clipped = learner.postprocess_gradients(gradients)

    def norm(name: str) -> float:
        parts = [clipped[learner.get_param_ref(p)] for p in session.policies[name].parameters()]
        return float(torch.nn.utils.get_total_norm(parts))

    assert norm("placer") == pytest.approx(limit, rel=1e-4)
    for parameter in session.policies["allocator"].parameters():
        reference = learner.get_param_ref(parameter)
        torch.testing.assert_close(clipped[reference], gradients[reference])


def test_clipping_reaches_both_optimizers() -> None:
    ppo = small_ppo(learning_rate=1e-3, max_gradient_norm=1e-5)
    session = PPOSession(team_config(ppo=ppo), TeamIdentityEnv, JointTask(0))
    batch, _ = session.sample(GROUPS)
    metrics = session.learn(batch, 32)
    for name, policy in session.policies.items():
        gradients = [p.grad for p in policy.parameters() if p.grad is not None]
        assert metrics[name]["gradient_norm"] > 1e-3
        assert float(torch.nn.utils.get_total_norm(gradients)) <= 1.01e-5


def test_sampler_and_learner_agree_after_every_update(session: PPOSession) -> None:
    before = {k: v.clone() for k, v in session.network.state_dict().items()}
    batch, _ = session.sample(GROUPS)
    session.learn(batch, 32)
    for name, policy in session.policies.items():
        after = policy.state_dict()
        assert any((before[f"{name}.{key}"] != value).any() for key, value in after.items())
        assert session.runner.modules[name].policy is policy


def test_minibatches_pass_over_every_module_equally_often() -> None:
    batch = MultiAgentBatch(
        {
            "placer": SampleBatch({"x": np.arange(10)}),
            "allocator": SampleBatch({"x": np.arange(41)}),
        },
        10,
    )
    seen: dict[str, list[int]] = {"placer": [], "allocator": []}
    sizes = []
    for part in proportional_minibatches(batch, epochs=3, size=4):
        sizes.append([len(part.policy_batches[name]) for name in MODULES])
        for name, numbers in seen.items():
            numbers.extend(part.policy_batches[name]["x"].tolist())
    assert len(sizes) == 9
    assert max(placer for placer, _ in sizes) <= 4
    assert sorted(seen["placer"]) == sorted(list(range(10)) * 3)
    assert sorted(seen["allocator"]) == sorted(list(range(41)) * 3)
    assert seen["placer"][:10] != seen["placer"][10:20]


def test_a_team_learns_what_is_wanted_of_each(tmp_path: Path) -> None:
    ppo = small_ppo(num_envs=8, batch_episodes=16, minibatch_size=64)
    result = train(
        team_config(ppo=ppo, max_steps=4_000), TeamIdentityEnv, tmp_path, task=JointTask(0)
    )
    rows = rows_of(tmp_path)
    assert float(rows[0]["charts/episodic_return"]) < 0.6
    assert float(rows[-1]["charts/episodic_return"]) > 0.9
    assert np.mean(result.trained) < np.mean(result.untrained) - 0.3
    assert result.best_plan is not None
    assert set(result.best_plan) == {"device", "levels"}
    for name in MODULES:
        assert float(rows[-1][f"losses/{name}/entropy"]) < float(rows[0][f"losses/{name}/entropy"])


def test_two_runs_of_a_team_are_equal_and_a_resumed_one_too(tmp_path: Path) -> None:
    def run(name: str, steps: int, resume: bool = False, **chosen: Any) -> list[dict[str, str]]:
        config = team_config(max_steps=steps, restart_share=0.5, kick=2, **chosen)
        train(config, TeamIdentityEnv, tmp_path / name, resume=resume, task=JointTask(2))
        return rows_of(tmp_path / name)

    whole = run("whole", 160)
    assert run("again", 160) == whole
    assert run("other", 160, seed=1) != whole
    run("parts", 96)
    assert run("parts", 160, resume=True) == whole


def test_episodes_restart_from_placement_and_levels(tmp_path: Path) -> None:
    made: list[TeamIdentityEnv] = []

    def make() -> TeamIdentityEnv:
        made.append(TeamIdentityEnv())
        return made[-1]

    config = team_config(max_steps=96, restart_share=1.0, kick=0)
    train(config, make, tmp_path, task=JointTask(0))
    starts = [options for env in made for options in env.started if options]
    assert starts
    assert all(set(options) == {"start", "levels"} for options in starts)
    assert any(options["levels"].any() for options in starts)


def test_an_exam_of_a_team_is_played_by_both_modules(session: PPOSession) -> None:
    exam = examine(session.act, session.exam_envs, 6, session.task)
    assert exam == examine(session.act, session.exam_envs[:1], 6, session.task)
    assert {episode.length for episode in exam} == {GROUPS}


def test_a_model_that_is_not_the_tasks_is_refused() -> None:
    with pytest.raises(InputError, match="is no team: take model=joint"):
        PPOSession(small_config(), TeamIdentityEnv, JointTask(0))
    with pytest.raises(InputError, match="TeamConfig is no policy of a single agent"):
        PPOSession(team_config(), IdentityEnv, PlacementTask(0))
