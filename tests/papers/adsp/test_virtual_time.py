"""The virtual clock: rounds and orders by hand, one worker against torch's SGD, bounds, repeats."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from experiments.papers.adsp.characters import CharacterModel
from experiments.papers.adsp.policies import AdaComm, Adsp, LocalSteps, predicted
from experiments.papers.adsp.simulation import (
    Policy,
    Training,
    Workers,
    spread_workers,
    train,
    violations,
)
from tests.refusal import refusal
from tests.strength import examples

TEXT = bytes(range(32, 64)) * 8
FOUR = spread_workers(4, 4.0, 1.0, 0.5, 0.5)
POLICIES: dict[str, Policy] = {
    "bsp": LocalSteps(1, 0),
    "ssp": LocalSteps(1, 2),
    "tap": LocalSteps(1, math.inf),
    "local": LocalSteps(3, 0),
    "adacomm": AdaComm(5, 4.0, 0.5),
    "adsp": Adsp(4.0, 3),
    "adsp_fixed": Adsp(5.0, 1, 2),
}


class Bowl:
    """The mean over places p of (x - p)² / 2, whose least is at the mean place, by noisy steps.

    With `losses` its loss is the next of these.
    """

    PLACES = np.array([[1.0, 2.0], [3.0, -2.0], [2.0, 3.0]])

    def __init__(self, losses: Any = None) -> None:
        self._losses = losses and iter(losses)

    def start(self) -> Any:
        return np.full(2, 9.0, np.float32)

    def step(self, rows: Any, worker: Any, count: Any, rate: float) -> None:
        for i, (w, j) in enumerate(zip(worker, count, strict=True)):
            rows[i] -= rate * (rows[i] - self.PLACES[(w + j) % 3])

    def loss(self, parameters: Any) -> float:
        if self._losses:
            return float(next(self._losses))
        return float(((parameters - self.PLACES) ** 2).sum(1).mean() / 2.0)


def run(model: Any, workers: Workers, policy: Policy, seconds: float, **changed: Any) -> Training:
    options = {"rate": 0.3, "target": -1.0, "evaluate_s": 1.0, "smooth": 1, "seed": 0} | changed
    found = train(model, workers, policy, horizon_s=seconds, **options)
    assert violations(found, workers, policy.ahead) == []
    return found


def two(step: list[float], push: list[float], pull: list[float]) -> Workers:
    return Workers(np.array(step), np.array(push), np.array(pull))


def test_the_order_of_tap_and_the_mean_gradient_of_bsp_by_hand() -> None:
    found = run(Bowl(), two([1.0, 2.0], [0.0, 0.0], [0.0, 0.0]), LocalSteps(1, math.inf), 5.0)
    commits = [(e.time, e.worker, e.staleness) for e in found.events if e.steps]
    by_hand = [(1, 0, 0), (2, 0, 0), (2, 1, 2), (3, 0, 1), (4, 0, 0), (4, 1, 2), (5, 0, 1)]
    assert commits == by_hand
    found = run(Bowl(), two([1.0, 1.0], [0.0, 0.0], [0.0, 0.0]), LocalSteps(1, 0), 1.0)
    assert_allclose(found.parameters, 9.0 - 0.3 * (9.0 - Bowl.PLACES[:2].mean(0)), rtol=1e-6)


@pytest.mark.parametrize("name", POLICIES)
def test_one_worker_is_plain_sgd_to_the_bit(name: str) -> None:
    model = CharacterModel(TEXT, 4, seed=1)
    found = run(model, spread_workers(1, 4.0, 0.5, 0.2, 0.3, 0.1), POLICIES[name], 30.0)
    done = sum(event.steps for event in found.events)
    assert done >= 10
    parameters = torch.nn.Parameter(torch.from_numpy(model.start()[None].copy()))
    optimiser = torch.optim.SGD([parameters], lr=0.3)
    for count in range(done):
        optimiser.zero_grad()
        model.objective(parameters, model.places(0, count)[None]).backward()
        optimiser.step()
    assert found.parameters.tobytes() == parameters.detach().numpy().tobytes()


@pytest.mark.parametrize("name", POLICIES)
def test_a_run_repeated_is_the_same_to_the_bit_and_solves_a_convex_problem(name: str) -> None:
    workers = spread_workers(5, 4.0, 1.0, 0.5, 0.5, 0.3)
    first, again = (run(Bowl(), workers, POLICIES[name], 150.0, rate=0.1) for _ in range(2))
    assert (first.events, first.losses) == (again.events, again.losses)
    assert first.parameters.tobytes() == again.parameters.tobytes()
    assert_allclose(first.parameters, Bowl.PLACES.mean(0), atol=0.25)


def step_by_step(
    model: Any, workers: Workers, policy: Policy, until: float, rate: float
) -> tuple[list[tuple[float, int]], Any]:
    """Commits and the last parameters, every step computed when it begins, without a queue."""
    n, server = len(workers.step_s), model.start()
    base, own = [server] * n, [server[None].copy() for _ in range(n)]
    made, taken, since = np.zeros(n, int), [0] * n, [0] * n
    phase, due = ["waits"] * n, [0.0] * n
    commits: list[tuple[float, int]] = []

    def begins(w: int, now: float) -> None:
        model.step(own[w], np.array([w]), np.array([taken[w]]), rate)
        taken[w] += 1
        phase[w], due[w] = "steps", now + workers.step_s[w]

    def pulls(now: float) -> None:
        for w in range(n):
            if phase[w] == "waits" and made[w] - made.min() <= policy.ahead:
                base[w], own[w], since[w] = server, server[None].copy(), 0
                begins(w, now + (workers.pull_s[w] if commits else 0.0))

    policy.begin(workers, -1.0)
    pulls(0.0)
    while True:
        now, w = min((due[w], w) for w in range(n) if phase[w] != "waits")
        if now > until:
            return commits, server
        if phase[w] == "steps":
            since[w] += 1
            if policy.commits(w, since[w], now, made):
                phase[w], due[w] = "pushes", now + workers.push_s[w]
            else:
                begins(w, now)
        else:
            share = np.float32(1.0 / n)
            server = (server - share * base[w]) + share * own[w][0]
            commits.append((now, w))
            made[w] += 1
            phase[w] = "waits"
            pulls(now)


@examples(100, 10)
@given(
    count=st.integers(1, 6),
    heterogeneity=st.sampled_from([1.0, 2.0, 5.5]),
    delay=st.sampled_from([0.0, 0.5, 3.0]),
    steps=st.integers(1, 4),
    ahead=st.sampled_from([0.0, 1.0, 3.0, math.inf]),
)
def test_the_clock_does_what_a_plain_loop_does(
    count: int, heterogeneity: float, delay: float, steps: int, ahead: float
) -> None:
    workers = spread_workers(count, heterogeneity, 1.0, delay, delay / 2.0)
    found = run(Bowl(), workers, LocalSteps(steps, ahead), 40.0, rate=0.1)
    commits, parameters = step_by_step(Bowl(), workers, LocalSteps(steps, ahead), 40.0, 0.1)
    assert [(e.time, e.worker) for e in found.events if e.steps] == commits
    assert found.parameters.tobytes() == parameters.tobytes()


def test_what_breaks_a_bound_is_found() -> None:
    workers = two([1.0, 3.0], [0.5, 0.5], [0.5, 0.5])
    found = run(Bowl(), workers, LocalSteps(1, math.inf), 20.0)
    assert any("commits ahead" in fault for fault in violations(found, workers, 1.0))
    slower = two([1.5, 3.0], [0.5, 0.5], [0.5, 0.5])
    assert any("took less than" in fault for fault in violations(found, slower, math.inf))


def test_gradients_computed_together_are_those_computed_alone() -> None:
    model = CharacterModel(TEXT, 4, seed=3)
    noise = np.random.default_rng(0).normal(0.0, 0.1, (4, len(model.start())))
    rows = model.start() + noise.astype(np.float32)
    alone = rows.copy()
    worker, count = np.array([0, 3, 1, 2]), np.array([5, 0, 300, 7])
    model.step(rows, worker, count, 0.5)
    for i in range(4):
        model.step(alone[i : i + 1], worker[i : i + 1], count[i : i + 1], 0.5)
    assert_allclose(rows, alone, atol=1e-6)


def test_a_known_curve_is_extrapolated() -> None:
    times = np.linspace(30.0, 60.0, 13)
    losses = 1.0 / (0.02 * times + 0.3) + 0.98 * 0.5
    assert predicted(times, losses, 0.5) == pytest.approx((1.0 / 0.01 - 0.3) / 0.02, rel=1e-3)
    assert predicted(times, losses[::-1], 0.5) == math.inf


def test_rounds_of_adacomm_follow_the_root_of_the_loss_and_then_halve() -> None:
    policy = AdaComm(8, 10.0, 0.5)
    policy.begin(FOUR, 0.0)
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
    equal = spread_workers(3, 1.0, 0.5, 0.1, 0.1)
    run(Bowl(losses.tolist()), equal, policy, 90.0, target=0.01, evaluate_s=2.0)
    assert policy.chosen == [(0.0, 1), (10.0, 2), (20.0, 3), (30.0, 4), (40.0, 3), (80.0, 1)]


def test_adsp_gives_all_workers_the_same_commits_and_none_waits() -> None:
    found = run(Bowl(itertools.repeat(1.0)), FOUR, Adsp(20.0, 1, 3), 400.0, evaluate_s=2.0)
    commits = [[e.steps for e in found.events if e.steps and e.worker == w] for w in range(4)]
    assert [len(own) for own in commits] == pytest.approx([60] * 4, abs=2)
    busy = [sum(own) * FOUR.step_s[w] + len(own) * 1.0 for w, own in enumerate(commits)]
    assert busy == pytest.approx([400.0] * 4, abs=10.0)


def test_bad_arguments_are_named() -> None:
    for field, made in {
        "heterogeneity": lambda: spread_workers(2, 0.5, 1.0, 0.0, 0.0),
        "ahead": lambda: LocalSteps(1, -1),
        "decay": lambda: AdaComm(1, 1.0, 0.0),
        "check_s": lambda: Adsp(0.0, 1),
    }.items():
        with refusal(field):
            made()
