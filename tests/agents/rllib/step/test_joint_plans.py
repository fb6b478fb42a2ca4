"""A placer and allocators: who acts when, what they see, rewards, and that they learn together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agents.rllib.connector import LearnerConnector
from agents.rllib.runner import SampleRequest
from agents.rllib.step.bandwidth import ALLOCATOR
from agents.rllib.step.joint_plans import MASK, PLACER, JointPlanRLTask
from envs.joint.generator import DrawnJointProblems
from envs.joint.piped import TOP
from envs.placement.generator import TrainingProblems
from envs.placement.whole import WholeLayout
from experiments.learning.training import train_policies
from models.step.channels import PipesConfig, TeamConfig
from models.step.placer import PlacerConfig
from tests.agents.rllib.autoregressive import Guesses
from tests.agents.rllib.toys import ONE_PLAN, runner_of, small_training
from tests.refusal import refusal

GROUP, SERVERS = 4, 4
MODEL = TeamConfig(
    PlacerConfig(hidden=8, rounds=1, heads=2, sweeps=("parallel",), topology=True),
    PipesConfig(hidden=8, initial_root=0.0, initial_spread=2.0),
)


def source(kept: int = 2) -> DrawnJointProblems:
    return DrawnJointProblems(
        TrainingProblems((), 0.0, 0.0, 0.0, 30, 8),
        layout=WholeLayout(groups=40, devices=8, edges=200, classes=32),
        sweeps=1, unfit=1.0, kept=kept, servers=SERVERS
    )  # fmt: skip


def training(**chosen: Any) -> Any:
    return small_training(ONE_PLAN, model=MODEL, **chosen)


@pytest.fixture(scope="module")
def sampled() -> Any:
    """A runner, and what the placer and the allocators of its rollout do."""
    runner = runner_of(JointPlanRLTask(source(), training()), training())
    rollout = runner.sample(SampleRequest(0, 1.0, 2))
    return runner, rollout, rollout.modules[PLACER], rollout.modules[ALLOCATOR]


def test_the_placer_acts_first_and_then_who_sends(sampled: Any) -> None:
    runner, rollout, placer, allocators = sampled
    assert placer.decides.tolist() == [[True] * 8, [False] * 8]
    assert not allocators.decides[0].any()
    assert rollout.terminated.tolist() == [[False] * 8, [True] * 8]
    buffer, decided = runner.vector.buffers[ALLOCATOR], np.zeros((8, SERVERS), np.bool_)
    for index, env in enumerate(runner.envs):
        traffic = env.placed.traffic
        pipes = len(traffic.used) - 1
        decided[index, : pipes + 1] = traffic.used.any(axis=1)
        for server in np.flatnonzero(decided[index]):  # padding is unseen
            row = index * SERVERS + server
            seen = {name: array[1, row] for name, array in buffer.arrays.items()}
            assert (seen["pipe_features"][:pipes] == traffic.pipes[server]).all()
            assert not seen["pipe_mask"][pipes:].any()
            assert seen[MASK].tolist() == [1, 1]
    assert (allocators.decides[1].reshape(decided.shape) == decided).all()
    assert decided.any()


def test_rewards_add_up_to_the_plan_and_allocators_answer_for_the_rest(sampled: Any) -> None:
    runner, rollout, placer, allocators = sampled
    levels = allocators.actions[1].reshape(8, SERVERS, SERVERS - 1) - TOP
    of_env = allocators.rewards.reshape(2, 8, SERVERS)
    assert (of_env == placer.rewards[..., None]).all()
    for index, env in enumerate(runner.envs):
        placed = env.question.placed(placer.actions[0, index])
        count = len(placed.traffic.used)
        after = env.question.shared(placed, levels[index, :count, : count - 1])
        assert placer.rewards[:, index].sum() == pytest.approx(after.reward)
        assert of_env[1, index] == pytest.approx(after.reward - placed.judged.reward)
    connector = LearnerConnector(training().ppo, {PLACER: 1, ALLOCATOR: SERVERS})
    batch = connector([rollout], 1).batches[0].policy_batches[ALLOCATOR]
    gains = batch["advantages"].reshape(2, -1, GROUP, SERVERS)[1]
    rest = of_env[1].reshape(gains.shape)
    own = rest - (rest.sum(axis=1, keepdims=True) - rest) / (GROUP - 1)
    decided = allocators.decides[1].reshape(own.shape)
    expected = (own - own[decided].mean()) / own[decided].std()
    np.testing.assert_allclose(gains[decided], expected[decided], rtol=1e-4, atol=1e-4)


@pytest.mark.proof
def test_allocators_learn_more_than_equal_weights(tmp_path: Path) -> None:
    chosen = training(max_steps=2 * 8 * 150)
    result = train_policies(chosen, JointPlanRLTask(source(1), chosen), tmp_path / "run")
    assert result.best_score < 0.9


def test_a_source_without_pipes_is_refused() -> None:
    with refusal("env=joint_problems"):
        JointPlanRLTask(Guesses(), training())
