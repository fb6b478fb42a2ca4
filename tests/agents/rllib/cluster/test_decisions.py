"""Decisions with paired futures as a subject of the learner: what pays is learned."""

from __future__ import annotations

import json
import pickle
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from agents.cluster.compiled.pairs import EDGE_WIDTH, NODE_WIDTH, PAIR_WIDTH
from agents.cluster.joint_choice import JointChoice
from agents.cluster.paired_futures import Decision, PairedFutures
from agents.rllib.advantages import PerStep
from agents.rllib.cluster.decisions import SCHEDULER, Decisions, DecisionsConfig, Question
from agents.rllib.config import Cloning
from agents.rllib.training import train
from envs.cluster.interference.rates import SHARED
from envs.cluster.simulation.cluster import ClusterSimulator
from models.cluster.pairs import PairsConfig
from tests.agents.cluster.test_joint_choice import PowersOfTwo, drawn
from tests.agents.rllib.toys import small_ppo, small_training

FUTURES = partial(PairedFutures, posterior=None, futures=1, share=1.0, strays=0.2)
CONFIG = DecisionsConfig(first=2, nodes=8, kept=64, most=0.5, sure=0.0, futures=FUTURES)


def world(rng: np.random.Generator) -> tuple[PairedFutures, ClusterSimulator]:
    """Few jobs at once, whose future is known."""
    seed = int(rng.integers(40))
    cluster, trace, settings = drawn(seed, 1)
    simulator = ClusterSimulator(cluster, trace, rates=PowersOfTwo(seed, SHARED))
    return FUTURES(JointChoice(**settings)), simulator


def subject(config: DecisionsConfig = CONFIG) -> Decisions:
    return Decisions(config, world, world)


def decision(saved: list[list[float]]) -> Decision:
    count = len(saved[0])
    sizes = ((count, PAIR_WIDTH), (3, NODE_WIDTH), (count, 3, EDGE_WIDTH))
    pair, node, edge = (np.ones(size, np.float32) for size in sizes)
    return Decision(pair, node, edge, np.array(saved))


def test_a_reward_is_what_is_saved_of_the_window_and_giants_are_cut() -> None:
    space = subject().space
    one = Question(decision([[0.0, 10.0, -900.0], [0.0, 30.0, -900.0]]), 1000.0, space, CONFIG)
    assert one.saved.tolist() == [0.0, 2.0, -50.0]
    assert one.taught == 1
    unsure = DecisionsConfig(first=2, nodes=8, kept=1, most=0.5, sure=3.0, futures=FUTURES)
    assert Question(decision([[0.0, 10.0], [0.0, 30.0]]), 1000.0, space, unsure).taught == 0
    seen = one.observation
    assert {name: array.shape for name, array in seen.items()} == {
        "pair": (8, PAIR_WIDTH), "node": (8, NODE_WIDTH), "edge": (8, 8, EDGE_WIDTH),
        "action_mask": (8,),
    }  # fmt: skip
    assert seen["action_mask"].tolist() == [1, 1, 1, 0, 0, 0, 0, 0]
    assert all(space[name].contains(array) for name, array in seen.items())


def test_alike_lanes_meet_one_decision_and_few_are_kept() -> None:
    own = pickle.loads(pickle.dumps(subject()))  # as a runner gets it
    first, second = own.lane(0), own.lane(1)
    for seed in (5, 6, 5 + CONFIG.kept):
        for lane in (first, second):
            lane.reset(seed)
        assert first.question is second.question
    assert own.kept[5] is first.question
    assert len(own.kept) == 2
    step = first.step([first.question.taught])
    assert step.terminated
    assert step.rewards == [first.question.saved.max()]
    assert first.outcome() == pytest.approx(1.0 - first.question.saved.max() / 100.0)


def test_decisions_go_on_as_they_would_have() -> None:
    left_alone, killed, resumed = subject(), subject(), subject()
    for seed in (70, 3, 70, 9):
        for own in (left_alone, killed):
            own.drawn(seed)
    resumed.restore(json.loads(json.dumps(killed.document())))
    for seed in (3, 71, 8, 70):
        mine, whole = resumed.drawn(seed), left_alone.drawn(seed)
        assert mine.saved.tolist() == whole.saved.tolist()
        assert all(np.array_equal(mine.observation[key], x) for key, x in whole.observation.items())


def test_what_pays_is_learned(tmp_path: Path) -> None:
    """On its own decisions a policy comes to save a good part of what the best candidates do."""
    training = small_training(
        model=PairsConfig(hidden=16, head_start=1.0),
        ppo=small_ppo(
            num_envs=128, alike=4, steps=None, episodes=1, minibatch_size=64, num_epochs=2,
            discounting=PerStep(1.0, 1.0), learning_rate=1e-2, final_learning_rate=1e-3,
            value_coefficient=0.0, auxiliary_coefficient=0.0,
        ),
        cloning=Cloning(5, 1e-2, 1, 0.0, 0.0),
        max_steps=3000,
        exam_episodes=30,
    )  # fmt: skip
    own = Decisions(CONFIG, world, world)
    found = train(training, own, tmp_path)
    assert found.exams[0][1] == pytest.approx(1.0)  # untrained it does what the rule does
    assert found.best_score < 0.999
    assert set(found.policies) == {SCHEDULER}
