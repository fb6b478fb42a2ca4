"""The archive, kicks, and what is offered to the archive."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from agents.rllib.archive import Archive, Record
from agents.rllib.environment import ALONE, EpisodeKeeper, TrainingEnv
from agents.rllib.tasks import PlacementTask, exchanged, kicked
from envs.placement.env import PlacementEnv
from envs.placement.generator import FixedInstance
from envs.placement.toy import toy_pipeline


def record(step_time: float) -> Record:
    return Record({"device": np.zeros(6, dtype=np.int64)}, step_time)


def test_each_environment_keeps_its_fastest() -> None:
    archive = Archive(2)
    assert archive.best is None
    assert archive.draw(np.random.default_rng(0)) is None
    for index, step_time in ((0, 3.0), (0, 4.0), (1, 2.0), (1, 5.0)):
        archive.offer(index, record(step_time))
    assert [held.step_time for held in archive.records if held is not None] == [3.0, 2.0]
    assert archive.best is archive.records[1]


def test_the_faster_of_two_is_drawn() -> None:
    archive = Archive(2)
    archive.offer(0, record(3.0))
    archive.offer(1, record(2.0))
    rng = np.random.default_rng(0)
    drawn = [held.step_time for held in (archive.draw(rng) for _ in range(400)) if held is not None]
    assert np.mean(np.array(drawn) == 2.0) == pytest.approx(0.75, abs=0.07)


def test_a_kick_moves_one_run_and_only_where_it_can_go() -> None:
    able = np.ones((12, 3), dtype=np.bool_)
    able[4:6, 2] = False
    rng = np.random.default_rng(0)
    for _ in range(300):
        before = rng.integers(0, 2, 12)
        after = kicked(before, able, 5, rng)
        moved = np.flatnonzero(after != before)
        assert able[np.arange(12), after].all()
        assert len(set(after[moved])) <= 1
        assert np.ptp(moved) < 5 if len(moved) else True
    np.testing.assert_array_equal(kicked(before, able, 0, rng), before)


def test_restarts_work_where_a_device_cannot_run_a_group() -> None:
    problem = toy_pipeline()
    seconds = problem.op_seconds.copy()
    seconds[[name.split(".")[0] == "forward0" for name in problem.graph.op_names], 2] = np.inf
    inner = PlacementEnv(FixedInstance(replace(problem, op_seconds=seconds), max_groups=6))
    archive = Archive(1)
    env = TrainingEnv(EpisodeKeeper(inner, PlacementTask(6), 0, 0, archive, 1.0))
    archive.offer(0, Record({"device": np.array([0, 0, 1, 1, 2, 2])}, 40.0))
    for _ in range(50):
        observation = env.reset()[ALONE]
        assert np.isfinite(inner.able[0]).all()
        assert observation["placement"][0] != 2


def test_a_faster_plan_that_does_not_fit_hides_no_plan_that_does() -> None:
    problem = toy_pipeline()
    forward = [name.startswith("forward") for name in problem.graph.op_names]
    graph = replace(
        problem.graph,
        tensor_bytes=np.array(forward, dtype=np.float64)[problem.graph.producer],
    )
    tight = replace(problem, graph=graph, capacity=np.array([13.0, 18.0, 40.0]))
    inner, archive = PlacementEnv(FixedInstance(tight, max_groups=6)), Archive(1)
    env = TrainingEnv(EpisodeKeeper(inner, PlacementTask(0), 0, 0, archive, 0.0))
    outcomes = []
    for actions in ((0, 1, 1, 0, 0, 1), (0, 1, 1, 1, 0, 2)):
        env.reset()
        for action in actions:
            env.step({ALONE: action})
        outcomes.append(inner.plan_outcome())
    (fast, fast_fits), (slow, slow_fits) = outcomes
    assert fast < slow
    assert (fast_fits, slow_fits) == (False, True)
    assert archive.best is not None
    assert archive.best.step_time == pytest.approx(slow)


def test_an_exchange_swaps_two_devices_in_one_run_and_only_where_they_can_go() -> None:
    able = np.ones((12, 3), dtype=np.bool_)
    able[4:6, 2] = False
    rng = np.random.default_rng(0)
    changed = 0
    for _ in range(300):
        before = np.where(able[:, 2], rng.integers(0, 3, 12), 0)
        after = exchanged(before, able, 3, rng)
        moved = np.flatnonzero(after != before)
        changed += len(moved) > 0
        assert able[np.arange(12), after].all()
        assert np.ptp(moved) < 6 if len(moved) else True
        pairs = {frozenset((int(before[g]), int(after[g]))) for g in moved}
        assert len(pairs) <= 1
    assert changed > 150
    np.testing.assert_array_equal(exchanged(before, able, 0, rng), before)
    alone = np.zeros(4, dtype=np.int64)
    np.testing.assert_array_equal(exchanged(alone, np.ones((4, 1), dtype=np.bool_), 2, rng), alone)
