"""Rounds of ADACOMM and rates of ADSP by hand; the fit of a known curve."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from experiments.papers.adsp.policies import AdaComm, Adsp, LocalSteps, predicted
from experiments.papers.adsp.simulation import spread_workers, train
from tests.refusal import refusal

WORKERS = spread_workers(4, 4.0, 1.0, 0.5, 0.5)


class Falls:
    """A model of no parameters whose loss is a function of how often it is asked."""

    def __init__(self, losses: Any) -> None:
        self._losses = iter(losses)

    def start(self) -> Any:
        return np.zeros(1, np.float32)

    def step(self, rows: Any, worker: Any, count: Any, rate: float) -> None: ...

    def loss(self, parameters: Any) -> float:
        return float(next(self._losses))


def test_a_known_curve_is_extrapolated() -> None:
    times = np.linspace(30.0, 60.0, 13)
    losses = 1.0 / (0.02 * times + 0.3) + 0.98 * 0.5
    assert predicted(times, losses, 0.5) == pytest.approx((1.0 / 0.01 - 0.3) / 0.02, rel=1e-3)
    assert predicted(times, losses[::-1], 0.5) == math.inf


def test_rounds_of_adacomm_follow_the_root_of_the_loss_and_then_halve() -> None:
    policy = AdaComm(8, 10.0, 0.5)
    policy.begin(WORKERS, 0.0)
    made, found = np.zeros(4, np.int64), []
    for period, loss in enumerate([4.0, 2.0, 2.0, 1.0, 0.1]):
        policy.observe(10.0 * period, loss, made)
        made[:] = period
        found.append(next(k for k in range(1, 9) if policy.commits(0, k, 10.0 * period, made)))
    assert found == [8, 6, 3, 1, 1]  # 8; ceil(√½·8); half of it; half again; no fewer than one


def test_adsp_probes_the_next_rate_while_the_predicted_time_falls() -> None:
    slopes = np.repeat([0.001, 0.01, 0.02, 0.005, *[0.005] * 10], 5)  # in a period: better, worse
    losses = 1.0 / (0.2 + 2.0 * np.concatenate(([0.0], np.cumsum(slopes))))
    policy = Adsp(10.0, 8)
    options = {"rate": 0.1, "evaluate_s": 2.0, "smooth": 1, "horizon_s": 90.0, "seed": 0}
    train(Falls(losses), spread_workers(3, 1.0, 0.5, 0.1, 0.1), policy, target=0.01, **options)
    assert policy.chosen == [(0.0, 1), (10.0, 2), (20.0, 3), (30.0, 4), (40.0, 3), (80.0, 1)]


def test_adsp_gives_all_workers_the_same_commits_and_nobody_waits() -> None:
    found = train(
        Falls(1.0 for _ in range(1000)), WORKERS, Adsp(20.0, 1, 3), rate=0.1, target=0.0,
        evaluate_s=2.0, smooth=1, horizon_s=400.0, seed=0,
    )  # fmt: skip
    commits = [[e for e in found.events if e.steps and e.worker == w] for w in range(4)]
    assert [len(own) for own in commits] == pytest.approx([60] * 4, abs=2)
    steps = [sum(e.steps for e in own) for own in commits]
    busy = np.array(steps) * WORKERS.step_s + np.array([len(own) for own in commits]) * 1.0
    assert busy == pytest.approx([400.0] * 4, abs=10.0)


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (lambda: spread_workers(0, 1.0, 1.0, 0.0, 0.0), "count"),
        (lambda: spread_workers(2, 0.5, 1.0, 0.0, 0.0), "heterogeneity"),
        (lambda: spread_workers(2, 1.0, 0.0, 0.0, 0.0), "step_s"),
        (lambda: LocalSteps(0, 0), "local_steps"),
        (lambda: LocalSteps(1, -1), "ahead"),
        (lambda: AdaComm(1, 1.0, 0.0), "decay"),
        (lambda: Adsp(0.0, 1), "check_s"),
    ],
)
def test_bad_arguments_are_named(made: Any, told: str) -> None:
    with refusal(told):
        made()
