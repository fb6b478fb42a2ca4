"""The first iteration of a training is held against its budget."""

from __future__ import annotations

import pytest

from agents.rllib import config
from agents.rllib.config import GRACE_S, LEFT_S, BudgetGuard
from tests.refusal import refusal


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(config.time, "process_time", lambda: now[0])
    monkeypatch.setattr(config.time, "monotonic", lambda: 100.0 * now[0])  # a busy machine
    return now


def paced(guard: BudgetGuard, clock: list[float], whole: int, each_s: float) -> None:
    for done in range(whole):
        guard.check("num_envs", done, whole)
        clock[0] += each_s


def test_what_would_take_far_longer_than_the_budget_is_refused_soon(clock: list[float]) -> None:
    with refusal(r"'num_envs': .* would take about 1,00[01] s.* is 5 s"):
        paced(BudgetGuard(5.0), clock, 100_000, 0.01)
    assert clock[0] == pytest.approx(5.0 + GRACE_S, abs=0.02)


def test_what_is_nearly_done_is_finished_and_without_a_budget_all(clock: list[float]) -> None:
    paced(BudgetGuard(5.0), clock, int((5.0 + GRACE_S + LEFT_S - 1.0) / 0.1), 0.1)
    paced(BudgetGuard(None), clock, 1000, 1.0)


def test_a_first_piece_in_which_kernels_are_compiled_sets_no_pace(clock: list[float]) -> None:
    guard = BudgetGuard(5.0)
    for done in range(64):
        guard.check("steps", done, 64)
        clock[0] += 0.01 if done else 60.0
    guard.over = True  # later iterations are not judged
    paced(guard, clock, 1000, 1.0)
