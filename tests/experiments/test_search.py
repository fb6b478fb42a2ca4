"""Searches side by side, progress on terminals and elsewhere, and deciding agents as planners."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from rich.console import Console

from envs.placement.env import PlacementEnv
from envs.placement.toy import OPTIMUM_S, toy_pipeline
from envs.step.problem import StepProblem
from envs.step.step import StepSimulator
from experiments.run.display import ProgressDisplay
from experiments.run.threads import THREAD_VARIABLES
from experiments.step.problem import placement_env
from experiments.step.search import (
    DecidingPlanner,
    episode,
    search_in_turn,
    search_side_by_side,
)

ENV = {
    "_target_": "envs.placement.env.PlacementEnv.of_problem",
    "_partial_": True,
    "max_groups": 8,
}
SINGLE = {"_target_": "agents.placement.baselines.SingleDevice"}
RANDOM = {
    "_target_": "agents.placement.baselines.RandomPlacement",
    "groups": 8, "samples": 20, "seed": 0,
}  # fmt: skip


class First:
    """Takes the first allowed device."""

    def act(self, observation: Mapping[str, NDArray[Any]]) -> np.int64:
        return np.int64(observation["action_mask"].argmax())


@pytest.fixture
def output() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def display(output: io.StringIO) -> ProgressDisplay:
    return ProgressDisplay(Console(file=output, width=200))


def test_side_by_side_finds_what_in_turn_finds(
    problem: StepProblem, display: ProgressDisplay
) -> None:
    nodes = {"single": SINGLE, "random": RANDOM}
    together = search_side_by_side(nodes, problem, 5.0, display)
    alone = search_in_turn(nodes, problem, 5.0, display)
    assert list(together) == ["single", "random"]
    for name in nodes:
        assert together[name].step_time == alone[name].step_time


def test_the_environment_is_as_before_after_a_search(
    problem: StepProblem, display: ProgressDisplay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    before = {name: os.environ.get(name) for name in THREAD_VARIABLES}
    search_side_by_side({"single": SINGLE}, problem, 1.0, display)
    assert {name: os.environ.get(name) for name in THREAD_VARIABLES} == before


def test_without_a_terminal_there_are_plain_lines(
    display: ProgressDisplay, output: io.StringIO
) -> None:
    with display:
        task = display.begin("local_search", 80.0)
        display.update(task, 1.0, "no news within the first seconds")
        display.end(task, "281.8 ms in 80.0 s")
    assert output.getvalue().splitlines() == [
        "local_search: begins, 80 s",
        "local_search: 281.8 ms in 80.0 s",
    ]


def test_on_a_terminal_there_are_bars_and_one_last_line() -> None:
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=100)
    with ProgressDisplay(console) as display:
        task = display.begin("ppo", 80.0)
        display.update(task, 40.0, "iteration 3")
        display.end(task, "done")
    assert "ppo: done" in output.getvalue()


def test_an_agent_that_decides_is_a_planner_too() -> None:
    problem = toy_pipeline()
    found = DecidingPlanner(First(), ENV).plan(problem, 1.0)
    assert found.plan is not None
    assert found.plan.violations(problem) == []
    assert found.step_time >= OPTIMUM_S
    device = found.plan.placement.device
    assert found.step_time == StepSimulator(problem).step_time(device, found.plan.order)


def test_an_episode_keeps_every_observation_as_it_was_seen() -> None:
    env = placement_env(ENV, toy_pipeline())
    assert isinstance(env, PlacementEnv)
    observations, decisions = episode(env, First())
    assert len(decisions) == len(observations["current"])
    np.testing.assert_array_equal(observations["current"][:, 0], np.arange(len(decisions)))
    assert observations["placed"][0].sum() == 0
    assert observations["placed"][-1].sum() == len(decisions) - 1
