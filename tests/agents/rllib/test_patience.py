"""The first iteration of a training is held against its budget."""

from __future__ import annotations

import pytest

from agents.rllib import config
from agents.rllib.config import GRACE_S, LEFT_S, Patience
from tests.refusal import refusal


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(config.time, "process_time", lambda: now[0])
    return now


def paced(patience: Patience, clock: list[float], pieces: int, each_s: float, whole: int) -> None:
    for done in range(pieces):
        patience.check("num_envs", done, whole)
        clock[0] += each_s


def test_what_would_take_far_longer_than_the_budget_is_refused_soon(clock: list[float]) -> None:
    with refusal(r"'num_envs': .* would take about 1,00[01] s.* is 5 s"):
        paced(Patience(5.0), clock, 100_000, 0.01, 100_000)
    assert clock[0] == pytest.approx(5.0 + GRACE_S, abs=0.02)


def test_time_that_other_processes_take_is_not_counted(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config.time, "monotonic", lambda: 100.0 * clock[0])
    paced(Patience(5.0), clock, 100, 0.1, 100)


def test_a_first_piece_in_which_kernels_are_compiled_sets_no_pace(clock: list[float]) -> None:
    patience = Patience(5.0)
    patience.check("steps", 0, 64)
    clock[0] += 60.0
    for done in range(1, 64):
        patience.check("steps", done, 64)
        clock[0] += 0.01


def test_what_is_nearly_done_is_finished(clock: list[float]) -> None:
    whole = int((5.0 + GRACE_S + LEFT_S - 1.0) / 0.1)
    paced(Patience(5.0), clock, whole, 0.1, whole)


def test_the_first_piece_and_later_iterations_are_not_judged(clock: list[float]) -> None:
    patience = Patience(5.0)
    patience.check("steps", 0, 64)
    clock[0] += 60.0  # kernels are compiled
    patience.check("steps", 1, 64)
    clock[0] += 0.01
    patience.over = True
    paced(patience, clock, 1000, 1.0, 1000)
    paced(Patience(None), clock, 1000, 1.0, 1000)  # no budget
