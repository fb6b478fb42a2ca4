"""The archive, what is offered to it, and where episodes begin."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from agents.rllib.config import Restarts
from agents.rllib.step.lanes import Archive, StepLane, look_ahead
from agents.rllib.step.subjects import JointSubject
from agents.rllib.subject import Solution
from envs.placement.env import PlacementEnv, toy_environment
from envs.placement.generator import FixedInstance
from envs.placement.toy import toy_pipeline
from envs.step.problem import StepProblem
from tests.agents.rllib.step.stepwise import PlacementSubject
from tests.agents.rllib.toys import small_ppo, small_training


def solution(objective: float) -> Solution:
    return Solution(objective, {"device": np.zeros(6, dtype=np.int64)})


def subject(problem: StepProblem, **chosen: Any) -> PlacementSubject:
    env = PlacementEnv(FixedInstance(problem, max_groups=6))
    return PlacementSubject(env, small_training(**chosen))


def test_each_environment_keeps_its_fastest() -> None:
    archive = Archive(2)
    assert archive.best is None
    assert archive.draw(np.random.default_rng(0)) is None
    for index, objective in ((0, 3.0), (0, 4.0), (1, 2.0), (1, 5.0)):
        archive.offer(index, solution(objective))
    assert [held.objective for held in archive.held if held is not None] == [3.0, 2.0]
    assert archive.best is archive.held[1]


def test_the_faster_of_two_is_drawn() -> None:
    archive = Archive(2)
    archive.offer(0, solution(3.0))
    archive.offer(1, solution(2.0))
    rng = np.random.default_rng(0)
    drawn = [found.objective for found in (archive.draw(rng) for _ in range(400)) if found]
    assert np.mean(np.array(drawn) == 2.0) == pytest.approx(0.75, abs=0.07)


def test_an_archive_goes_on_from_its_document() -> None:
    archive, again = Archive(2), Archive(2)
    archive.offer(1, solution(2.0))
    archive.fastest[1] = 1.5
    again.restore(json.loads(json.dumps(archive.document())))
    assert again.document() == archive.document()
    assert again.best is not None
    assert again.best.decisions["device"].dtype == np.int64


def test_restarts_work_where_a_device_cannot_run_a_group() -> None:
    problem = toy_pipeline()
    seconds = problem.op_seconds.copy()
    seconds[[name.split(".")[0] == "forward0" for name in problem.graph.op_names], 2] = np.inf
    about = subject(replace(problem, op_seconds=seconds), restarts=Restarts(1.0, 6, 1))
    about.archive.offer(0, Solution(40.0, {"device": np.array([0, 0, 1, 1, 2, 2])}))
    lane = about.lane(0)
    moved = set()
    for seed in range(50):
        lane.reset(seed, explorer=np.random.default_rng(seed))
        assert lane.seen[0]["placement"][0] != 2
        moved.add(tuple(lane.seen[0]["placement"][:6]))
    assert len(moved) > 10
    lane.reset(0)  # nobody explores
    np.testing.assert_array_equal(lane.env.group_device, lane.env.instance.start)


def test_a_faster_plan_that_does_not_fit_hides_no_plan_that_does() -> None:
    problem = toy_pipeline()
    forward = [name.startswith("forward") for name in problem.graph.op_names]
    graph = replace(
        problem.graph,
        tensor_bytes=np.array(forward, dtype=np.float64)[problem.graph.producer],
    )
    about = subject(replace(problem, graph=graph, capacity=np.array([13.0, 18.0, 40.0])))
    lane, outcomes, ended = about.lane(0), [], []
    for actions in ((0, 1, 1, 0, 0, 1), (0, 1, 1, 1, 0, 2)):
        lane.reset(0)
        for action in actions:
            step = lane.step([action])
        assert step.terminated
        outcomes.append((lane.env.plan_outcome()[0], lane.outcome()))
        ended.append(lane.ended())
    (fast, failed), (slow, succeeded) = outcomes
    assert fast < slow == succeeded
    assert failed == np.inf
    assert [one["feasible_share"] for one in ended] == [0.0, 1.0]
    assert np.isnan(ended[0]["step_time_s_mean"])
    assert about.best is not None
    assert about.best.objective == pytest.approx(slow)


def test_what_an_exam_meets_is_not_kept() -> None:
    about = PlacementSubject(toy_environment(), small_training())
    lane = about.exam_lane(0)
    lane.reset(0, adviser=about.reference)
    while not lane.step([lane.advice(0)]).terminated:
        assert lane.now == lane.steps > 0
    assert np.isfinite(lane.outcome())
    assert about.best is None


def test_the_look_ahead_takes_the_least_of_what_is_allowed() -> None:
    candidates = np.zeros((3, 6))
    candidates[:, -1] = [0.3, 0.1, 0.2]
    mask = np.array([1, 0, 1], np.int8)
    assert look_ahead({"candidate_features": candidates, "action_mask": mask}) == 2
    pipes, every = np.zeros((2, 11)), np.ones(5, np.int8)
    assert look_ahead({"pipe_features": pipes, "action_mask": every}) == 0  # keeps all weights
    pipes[1, 8], pipes[0, 9] = -0.1, -0.2
    assert look_ahead({"pipe_features": pipes, "action_mask": every}) == 3
    assert look_ahead({"pipe_features": pipes, "action_mask": np.array([1, 1, 1, 0, 1])}) == 2


class Scored:
    """An environment whose step time is how many groups stand on device 0."""

    able = np.ones((12, 3), dtype=np.bool_)
    possible_agents = ("placer",)

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def step_times(self, devices: Any, levels: Any) -> Any:
        assert levels is LEVELS
        self.asked.append(devices)
        return (devices == 0).sum(axis=1).astype(np.float64)


LEVELS = np.eye(3, dtype=np.int64)


def test_a_teams_start_is_the_fastest_of_those_drawn_but_the_plan_itself() -> None:
    env, rng = Scored(), np.random.default_rng(0)
    best = np.ones(12, dtype=np.int64)
    plan, other = {"device": best, "levels": LEVELS}, {"device": best * 0, "levels": LEVELS}
    for draws in (1, 16):
        about = JointSubject(env, small_training(restarts=Restarts(1.0, 4, draws)))
        for _ in range(20):
            start = about.restart(env, plan, other, rng)
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
    """An environment of one decision after another whose step times are given.

    On every operator a step takes three times as long.
    """

    observation_space = action_space = None

    def __init__(self) -> None:
        self.simulated: list[float] = []

    def reset(self, seed: int) -> tuple[None, None]:
        return None, None

    def step(self, seconds: float) -> Any:
        self.seconds = seconds
        return None, 0.0, False, False, {"step_time_s": seconds, "feasible": True}

    def plan_outcome(self) -> tuple[float, bool]:
        self.simulated.append(self.seconds)
        return 3.0 * self.seconds, True


class AnyState(PlacementSubject):
    """Every state is a whole plan."""

    def whole(self, env: Any, info: Any) -> bool:
        return True

    def decisions(self, env: Any) -> Any:
        return {"seconds": np.array([env.seconds])}


@pytest.mark.parametrize(
    ("margin", "simulated"),
    [(0.0, [9.0, 8.0, 7.9]), (0.1, [9.0, 8.0, 8.7, 8.5, 7.9])],
)
def test_the_best_of_an_episode_is_played_on_every_operator_within_the_margin(
    margin: float, simulated: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AnyState, "margin", margin)
    env = Played()
    about = AnyState(env, small_training(ppo=small_ppo(num_envs=1)))
    lane = StepLane(about, env, 0)
    for episode in ([9.0, 9.5, 8.0], [8.9, 8.7, 8.75, 8.5, 8.6, 7.9], [9.0, 8.75]):
        lane.reset(0)
        for seconds in episode:
            lane.step([seconds])
    assert env.simulated == simulated
    assert about.archive.fastest == [7.9]
    assert about.best is not None
    assert about.best.objective == pytest.approx(3.0 * 7.9)
