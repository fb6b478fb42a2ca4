"""Searches side by side, and progress on terminals and elsewhere."""

from __future__ import annotations

import io
import os

import pytest

from envs.step.problem import StepProblem
from experiments.run.display import ProgressDisplay
from experiments.run.one_run import RunConsole
from experiments.run.threads import THREAD_VARIABLES
from experiments.step.objectives import Makespan
from experiments.step.planning import ask_in_turn, ask_side_by_side
from experiments.step.tasks import StepTask

SINGLE = {"_target_": "agents.placement.baselines.SingleDevice"}
RANDOM = {
    "_target_": "agents.placement.baselines.RandomPlacement",
    "groups": 8, "samples": 20, "seed": 0,
}  # fmt: skip


@pytest.fixture
def output() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def display(output: io.StringIO) -> ProgressDisplay:
    return ProgressDisplay(RunConsole(file=output, width=200))


@pytest.mark.proof
def test_side_by_side_finds_what_in_turn_finds(
    problem: StepProblem, display: ProgressDisplay
) -> None:
    nodes = {"single": SINGLE, "random": RANDOM}
    together = ask_side_by_side(nodes, "searching", problem, 5.0, display)
    alone = ask_in_turn(nodes, "quick", Makespan(), StepTask(problem), 5.0, display)
    assert list(together) == ["single", "random"]
    for name in nodes:
        assert together[name].value == alone[name].value


def test_more_planners_than_cores_take_turns_and_leave_the_environment_as_it_was(
    problem: StepProblem, display: ProgressDisplay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    before = {name: os.environ.get(name) for name in THREAD_VARIABLES}
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    nodes = {"single": SINGLE, "random": RANDOM}
    assert list(ask_side_by_side(nodes, "searching", problem, 1.0, display)) == [*nodes]
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
    console = RunConsole(file=output, force_terminal=True, width=100)
    with ProgressDisplay(console) as display:
        task = display.begin("ppo", 80.0)
        display.update(task, 40.0, "iteration 3")
        display.end(task, "done")
    assert "ppo: done" in output.getvalue()
