"""A placer and allocators: who acts when, what they see, rewards, and that they learn together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray.rllib.algorithms.ppo import PPOConfig

from agents.rllib.advantages import PerStep
from agents.rllib.batch import BatchMaker
from agents.rllib.config import TRAINING
from agents.rllib.runner import SUBJECT, LockStepRunner, Order, Shared, policies
from agents.rllib.step.bandwidth import ALLOCATOR
from agents.rllib.step.joint_problems import MASK, PLACER, JointProblems
from agents.rllib.training import train
from envs.joint.whole import TOP, DrawnJointProblems, JointProblem
from envs.placement.distribution import TrainingProblems
from envs.placement.whole import WholeLayout
from models.step.channels import PipesConfig, TeamConfig
from models.step.placer import PlacerConfig
from tests.agents.rllib.step.test_problems import Guesses
from tests.agents.rllib.toys import small_ppo, small_training
from tests.refusal import refusal

ALIKE, SERVERS = 4, 4
MODEL = TeamConfig(
    PlacerConfig(hidden=8, rounds=1, heads=2, sweeps=("parallel",), topology=True),
    PipesConfig(hidden=8, initial_root=0.0, initial_spread=2.0),
)


def source(kept: int = 2) -> DrawnJointProblems:
    layout = WholeLayout(groups=40, devices=8, edges=200, classes=32)
    draw = TrainingProblems((), 0.0, 0.0, 0.0, 30, 8)
    return DrawnJointProblems(draw, layout=layout, sweeps=1, unfit=1.0, kept=kept, servers=SERVERS)


def training(**chosen: Any) -> Any:
    ppo = small_ppo(
        steps=None, episodes=1, num_envs=8, alike=ALIKE, discounting=PerStep(1.0, 1.0),
        value_coefficient=0.0, auxiliary_coefficient=0.0,
    )  # fmt: skip
    return small_training(model=MODEL, ppo=ppo, **chosen)


@pytest.fixture(scope="module")
def sampled() -> Any:
    chosen = training()
    subject = JointProblems(source(), chosen)
    config = PPOConfig().environment(
        env_config={SUBJECT: Shared(subject), TRAINING: Shared(chosen)}
    )
    runner = LockStepRunner(config=config, worker_index=0)
    runner.modules = policies(subject, MODEL)
    return runner, runner.sample(Order(0, 1.0, 2, None)), chosen


def test_the_placer_acts_first_and_then_who_sends(sampled: Any) -> None:
    runner, fragment, _ = sampled
    placer, allocators = fragment.parts[PLACER], fragment.parts[ALLOCATOR]
    assert placer.decides.tolist() == [[True] * 8, [False] * 8]
    assert not allocators.decides[0].any()
    assert fragment.terminated.tolist() == [[False] * 8, [True] * 8]
    acted = allocators.decides[1].reshape(8, SERVERS)
    for lane, decided in zip(runner.lanes, acted, strict=True):
        used = lane.placed.traffic.used.any(axis=1)
        assert (decided[: len(used)] == used).all()
        assert not decided[len(used) :].any()
    assert acted.any()


def test_rewards_add_up_to_the_plan_and_allocators_answer_for_the_rest(sampled: Any) -> None:
    runner, fragment, chosen = sampled
    placer, allocators = fragment.parts[PLACER], fragment.parts[ALLOCATOR]
    levels = allocators.actions[1].reshape(8, SERVERS, SERVERS - 1) - TOP
    for index, lane in enumerate(runner.lanes):
        problem: JointProblem = lane.question
        placed = problem.placed(placer.actions[0, index])
        count = len(placed.traffic.used)
        after = problem.shared(placed, levels[index, :count, : count - 1])
        rows = slice(index * SERVERS, (index + 1) * SERVERS)
        assert (allocators.rewards[:, rows] == placer.rewards[:, index : index + 1]).all()
        assert placer.rewards[:, index].sum() == pytest.approx(after.reward)
        assert allocators.rewards[1, rows] == pytest.approx(after.reward - placed.judged.reward)
    maker = BatchMaker(chosen.ppo, {PLACER: 1, ALLOCATOR: SERVERS})
    batch = maker.ready([fragment], 1).batches[0].policy_batches
    gains = batch[ALLOCATOR]["advantages"].reshape(2, -1, ALIKE, SERVERS)[1]
    rest = allocators.rewards[1].reshape(-1, ALIKE, SERVERS)
    own = rest - (rest.sum(axis=1, keepdims=True) - rest) / (ALIKE - 1)
    decided = allocators.decides[1].reshape(own.shape)
    expected = (own - own[decided].mean()) / own[decided].std()
    np.testing.assert_allclose(gains[decided], expected[decided], rtol=1e-4, atol=1e-4)


def test_padding_is_unseen_and_masks_say_who_acts(sampled: Any) -> None:
    runner, _, _ = sampled
    memory = runner.seats.memories[ALLOCATOR]
    for index, lane in enumerate(runner.lanes):
        traffic = lane.placed.traffic
        pipes = len(traffic.used) - 1
        for server in np.flatnonzero(traffic.used.any(axis=1)):
            row = {
                name: array[1, index * SERVERS + server] for name, array in memory.arrays.items()
            }
            assert (row["pipe_features"][:pipes] == traffic.pipes[server]).all()
            assert not row["pipe_mask"][pipes:].any()
            assert row[MASK].tolist() == [1, 1]


@pytest.mark.proof
def test_allocators_learn_more_than_equal_weights(tmp_path: Path) -> None:
    chosen = training(max_steps=2 * 8 * 150)
    result = train(chosen, JointProblems(source(1), chosen), tmp_path / "run")
    assert result.best_score < 0.9


def test_a_source_without_pipes_is_refused() -> None:
    with refusal("env=joint_problems"):
        JointProblems(Guesses(), training())
