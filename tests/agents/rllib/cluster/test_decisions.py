"""Decisions with paired futures as a task of the learner: what pays is learned."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from agents.cluster.compiled.pairs import EDGE_WIDTH, NODE_WIDTH, PAIR_WIDTH
from agents.cluster.joint_choice import JointChoice
from agents.cluster.paired_futures import Decision, PairedFutures
from agents.rllib.advantages import PerStep
from agents.rllib.cluster.decisions import SCHEDULER, DecisionRLTask, DecisionsConfig, Question
from agents.rllib.config import Cloning
from envs.cluster.interference.rates import SHARED
from envs.cluster.simulation.cluster import ClusterSimulator
from experiments.learning.training import train_policies
from models.cluster.pairs import PairsConfig
from tests.agents.cluster.test_joint_choice import PowersOfTwo, drawn
from tests.agents.rllib.toys import small_training

FUTURES = partial(PairedFutures, posterior=None, futures=1, share=1.0, strays=0.2)
CONFIG = DecisionsConfig(first=2, nodes=8, kept=64, most=0.5, sure=0.0, futures=FUTURES)


def world(rng: np.random.Generator) -> tuple[PairedFutures, ClusterSimulator]:
    """Few jobs at once, whose future is known."""
    seed = int(rng.integers(40))
    cluster, trace, settings = drawn(seed, 1)
    simulator = ClusterSimulator(cluster, trace, rates=PowersOfTwo(seed, SHARED))
    return FUTURES(JointChoice(**settings)), simulator


def task() -> DecisionRLTask:
    return DecisionRLTask(CONFIG, world, world)


def question(saved: list[list[float]], **config: float) -> Question:
    count = len(saved[0])
    sizes = ((count, PAIR_WIDTH), (3, NODE_WIDTH), (count, 3, EDGE_WIDTH))
    pair, node, edge = (np.ones(size, np.float32) for size in sizes)
    one = Decision(pair, node, edge, np.array(saved))
    return Question(one, 1000.0, task().space, replace(CONFIG, **config))


def test_a_reward_is_what_is_saved_of_the_window_and_giants_are_cut() -> None:
    one = question([[0.0, 10.0, -900.0], [0.0, 30.0, -900.0]])
    assert one.saved.tolist() == [0.0, 2.0, -50.0]
    assert one.best == 1
    assert question([[0.0, 10.0], [0.0, 30.0]], sure=3.0).best == 0
    seen, space = one.observation, task().space
    assert {name: array.shape for name, array in seen.items()} == {
        "pair": (8, PAIR_WIDTH), "node": (8, NODE_WIDTH), "edge": (8, 8, EDGE_WIDTH),
        "action_mask": (8,),
    }  # fmt: skip
    assert seen["action_mask"].tolist() == [1, 1, 1, 0, 0, 0, 0, 0]
    assert all(space[name].contains(array) for name, array in seen.items())


def test_environments_of_a_group_meet_one_decision_and_few_are_kept() -> None:
    own = pickle.loads(pickle.dumps(task()))  # as a runner gets it
    first, second = own.make_env(0), own.make_env(1)
    for seed in (5, 6, 5 + CONFIG.kept):
        for env in (first, second):
            env.reset(seed)
        assert first.question is second.question
    assert own.kept[5] is first.question
    assert len(own.kept) == 2
    step = first.step([first.expert_action(0)])
    most = first.question.saved.max()
    assert step.terminated
    assert step.rewards == [most]
    assert first.objective() == pytest.approx(1.0 - most / 100.0)


def test_decisions_go_on_as_they_would_have() -> None:
    left_alone, killed, resumed = task(), task(), task()
    for seed in (70, 3, 70, 9):
        for own in (left_alone, killed):
            own.drawn(seed)
    resumed.load(json.loads(json.dumps(killed.state())))
    for seed in (3, 71, 8, 70):
        mine, whole = resumed.drawn(seed), left_alone.drawn(seed)
        assert mine.saved.tolist() == whole.saved.tolist()
        assert all(np.array_equal(mine.observation[key], x) for key, x in whole.observation.items())


def test_what_pays_is_learned(tmp_path: Path) -> None:
    """On its own decisions a policy comes to save a good part of what the best candidates do."""
    ppo = {
        "num_envs": 128, "group_size": 4, "minibatch_size": 64, "num_epochs": 2,
        "discounting": PerStep(), "learning_rate": 1e-2, "final_learning_rate": 1e-3,
        "value_coefficient": 0.0, "auxiliary_coefficient": 0.0,
    }  # fmt: skip
    training = small_training(
        ppo, model=PairsConfig(hidden=16, head_start=1.0), max_steps=3000, evaluation_episodes=30,
        cloning=Cloning(5, 1e-2, 1, last_share=0.0),
    )  # fmt: skip
    found = train_policies(training, task(), tmp_path)
    assert found.evaluations[0][1] == pytest.approx(1.0)  # untrained it does what the rule does
    assert found.best_score < 0.999
    assert set(found.policies) == {SCHEDULER}
