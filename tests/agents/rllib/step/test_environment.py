"""The archive, kicks, and what is offered to the archive."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from agents.rllib.step.environment import ALONE, Archive, EpisodeKeeper, Record, TrainingEnv
from agents.rllib.step.tasks import JointTask, PlacementTask, crossed, exchanged, kicked
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


def test_a_crossing_takes_one_run_of_the_other_plan_and_only_where_it_can_go() -> None:
    able = np.ones((12, 3), dtype=np.bool_)
    able[4:6, 2] = False
    rng = np.random.default_rng(0)
    as_named = 0
    for _ in range(300):
        before, other = (np.where(able[:, 2], rng.integers(0, 3, 12), 0) for _ in range(2))
        after = crossed(before, other, able, rng)
        assert able[np.arange(12), after].all()
        moved = np.flatnonzero(after != before)
        if not len(moved):
            continue
        run = slice(moved[0], moved[-1] + 1)
        names = {(int(a), int(b)) for a, b in zip(other[run], after[run], strict=True)}
        names = {pair for pair in names if able[run].all()}
        assert len({a for a, _ in names}) == len(names) == len({b for _, b in names})
        as_named += (after[run] == other[run]).all()
    assert 100 < as_named < 290


class Scored:
    """An environment whose step time is how many groups stand on device 0."""

    able = np.ones((12, 3), dtype=np.bool_)

    def __init__(self) -> None:
        self.asked: list[np.ndarray[tuple[int, int], np.dtype[np.int64]]] = []

    def step_times(
        self,
        devices: np.ndarray[tuple[int, int], np.dtype[np.int64]],
        levels: np.ndarray[tuple[int, int], np.dtype[np.int64]],
    ) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        assert levels is LEVELS
        self.asked.append(devices)
        return (devices == 0).sum(axis=1).astype(np.float64)


LEVELS = np.eye(3, dtype=np.int64)


def test_a_teams_start_is_the_fastest_of_those_drawn_but_the_plan_itself() -> None:
    env, rng = Scored(), np.random.default_rng(0)
    best = np.ones(12, dtype=np.int64)
    plan, other = {"device": best, "levels": LEVELS}, {"device": best * 0, "levels": LEVELS}
    for draws in (1, 16):
        for _ in range(20):
            start = JointTask(4, draws).restart(env, plan, other, rng)
            assert start["levels"] is LEVELS
            drawn = env.asked[-1]
            assert len(drawn) == draws
            scores = (drawn == 0).sum(axis=1)[(drawn != best).any(axis=1)]
            if len(scores):
                assert (start["start"] != best).any()
                assert (start["start"] == 0).sum() == scores.min()
            else:
                np.testing.assert_array_equal(start["start"], best)


class Played:
    """An environment of one decision after another whose step times are given."""

    def __init__(self, seconds: list[float]) -> None:
        self.seconds, self.unwrapped = seconds, self

    def reset(self, seed: int, options: object = None) -> tuple[None, None]:
        return None, None


class MarginTask(PlacementTask):
    """Counts what is simulated on every operator, which takes three times as long."""

    def __init__(self, margin: float) -> None:
        super().__init__(0)
        self.margin, self.simulated = margin, []  # type: ignore[var-annotated]

    def whole(self, env: object, info: object) -> bool:
        return True

    def outcome(self, env: Played) -> tuple[float, bool]:
        self.simulated.append(env.seconds[0])
        return 3.0 * env.seconds[0], True

    def plan(self, env: Played) -> dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]]:
        return {"seconds": np.array(env.seconds[:1])}


@pytest.mark.parametrize(
    ("margin", "simulated"),
    [(0.0, [9.0, 8.0, 7.9]), (0.1, [9.0, 8.0, 8.7, 8.5, 7.9])],
)
def test_the_best_of_an_episode_is_played_on_every_operator_within_the_margin(
    margin: float, simulated: list[float]
) -> None:
    env, task = Played([]), MarginTask(margin)
    keeper = EpisodeKeeper(env, task, 0, 0, Archive(1), 0.0)
    for episode in ([9.0, 9.5, 8.0], [8.9, 8.7, 8.75, 8.5, 8.6, 7.9], [9.0, 8.75]):
        keeper.begin()
        for k, seconds in enumerate(episode):
            env.seconds = [seconds]
            facts = {"step_time_s": seconds, "feasible": True}
            keeper.note(facts, 0.0, ended=k + 1 == len(episode))
    assert task.simulated == simulated
    assert keeper.fastest == 7.9
