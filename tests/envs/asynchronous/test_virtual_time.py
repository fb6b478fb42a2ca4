"""The virtual clock: rounds and orders by hand, one worker against torch's SGD, bounds, repeats."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agents.asynchronous.adsp import Adsp
from agents.asynchronous.policies import AdaComm, LocalSteps
from envs.asynchronous.simulation import Policy, Training, staleness, train, violations
from envs.asynchronous.workers import Workers, spread_workers
from models.asynchronous.characters import CharacterModel, CharacterShape
from tests.strength import examples

TEXT = bytes(range(32, 64)) * 8
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
    """The mean over places p of (x - p)² / 2, whose least is at the mean place, by noisy steps."""

    PLACES = np.array([[1.0, 2.0], [3.0, -2.0], [2.0, 3.0]])

    def start(self) -> Any:
        return np.full(2, 9.0, np.float32)

    def step(self, rows: Any, worker: Any, count: Any, rate: float) -> None:
        for i, (w, j) in enumerate(zip(worker, count, strict=True)):
            rows[i] -= rate * (rows[i] - self.PLACES[(w + j) % 3])

    def loss(self, parameters: Any) -> float:
        return float(((parameters - self.PLACES) ** 2).sum(1).mean() / 2.0)


def run(model: Any, workers: Workers, policy: Policy, seconds: float, **changed: Any) -> Training:
    options = {"rate": 0.3, "target": -1.0, "evaluate_s": 1.0, "smooth": 1, "seed": 0} | changed
    found = train(model, workers, policy, horizon_s=seconds, **options)
    assert violations(found, workers, policy.ahead) == []
    return found


def two(step: list[float], push: list[float], pull: list[float], serve: float = 0.0) -> Workers:
    return Workers(np.array(step), np.array(push), np.array(pull), 0.0, serve)


def test_a_round_of_bsp_lasts_as_long_as_its_slowest_worker() -> None:
    found = run(Bowl(), two([1.0, 2.0], [0.5, 1.0], [0.25, 0.5]), LocalSteps(1, 0), 20.0)
    ends = [event.time for event in found.events if event.commit and event.worker == 1]
    assert ends == [3.0 + 3.5 * k for k in range(5)]  # a pull, a step and a push of worker 1


def test_commits_of_tap_come_in_the_order_of_the_clock_and_ties_by_worker() -> None:
    found = run(Bowl(), two([1.0, 2.0], [0.0, 0.0], [0.0, 0.0]), LocalSteps(1, math.inf), 5.0)
    commits = [(e.time, e.worker, e.staleness) for e in found.events if e.commit]
    by_hand = [(1, 0, 0), (2, 0, 0), (2, 1, 2), (3, 0, 1), (4, 0, 0), (4, 1, 2), (5, 0, 1)]
    assert commits == by_hand
    assert staleness(found).tolist() == [3, 2, 2]


def test_the_server_applies_one_commit_at_a_time() -> None:
    found = run(Bowl(), two([1.0, 1.0], [0.0, 0.0], [0.0, 0.0], 0.5), LocalSteps(1, 0), 5.0)
    commits = [(e.time, e.worker) for e in found.events if e.commit]
    assert commits[:4] == [(1.5, 0), (2.0, 1), (3.5, 0), (4.0, 1)]


def test_bsp_is_one_step_along_the_mean_gradient() -> None:
    found = run(Bowl(), two([1.0, 1.0], [0.0, 0.0], [0.0, 0.0]), LocalSteps(1, 0), 1.0)
    by_hand = 9.0 - 0.3 * np.mean([9.0 - Bowl.PLACES[0], 9.0 - Bowl.PLACES[1]], axis=0)
    np.testing.assert_allclose(found.parameters, by_hand, rtol=1e-6)


@pytest.mark.parametrize("name", POLICIES)
def test_one_worker_is_plain_sgd_to_the_bit(name: str) -> None:
    model = CharacterModel(TEXT, CharacterShape(3, 4, 8), 4, seed=1)
    found = run(model, spread_workers(1, 4.0, 0.5, 0.2, 0.3, 0.1), POLICIES[name], 30.0)
    done = sum(event.steps for event in found.events if event.commit)
    assert done >= 10
    parameters = torch.nn.Parameter(torch.from_numpy(model.start()[None].copy()))
    optimiser = torch.optim.SGD([parameters], lr=0.3)
    for count in range(done):
        optimiser.zero_grad()
        model.objective(parameters, *model.windows(model.places(0, count)[None])).backward()
        optimiser.step()
    assert found.parameters.tobytes() == parameters.detach().numpy().tobytes()


@pytest.mark.parametrize("name", POLICIES)
def test_a_run_repeated_is_the_same_to_the_bit(name: str) -> None:
    workers = spread_workers(5, 4.0, 1.0, 0.5, 0.5, 0.3, 0.1)
    first, again = (
        run(CharacterModel(TEXT, CharacterShape(3, 4, 8), 4, seed=2), workers, POLICIES[name], 30.0)
        for _ in range(2)
    )
    assert first.events == again.events
    assert (first.times, first.losses) == (again.times, again.losses)
    assert first.parameters.tobytes() == again.parameters.tobytes()
    assert first.losses[-1] < first.losses[0]


@examples(20)
@given(
    count=st.integers(1, 6),
    heterogeneity=st.floats(1.0, 8.0),
    delay=st.floats(0.0, 3.0),
    jitter=st.sampled_from([0.0, 0.5]),
    serve=st.sampled_from([0.0, 0.2]),
    name=st.sampled_from(sorted(POLICIES)),
    seed=st.integers(0, 9),
)
def test_a_convex_problem_is_solved_and_no_bound_broken(
    count: int, heterogeneity: float, delay: float, jitter: float, serve: float, name: str,
    seed: int,
) -> None:  # fmt: skip
    workers = spread_workers(count, heterogeneity, 1.0, delay, delay, jitter, serve)
    found = run(Bowl(), workers, POLICIES[name], 250.0, rate=0.05, seed=seed)
    np.testing.assert_allclose(found.parameters, Bowl.PLACES.mean(0), atol=0.4)
    assert found.reached == math.inf


def test_gradients_computed_together_are_those_computed_alone() -> None:
    model = CharacterModel(TEXT, CharacterShape(3, 4, 8), 4, seed=3)
    rng = np.random.default_rng(0)
    rows = model.start() + rng.normal(0.0, 0.1, (4, len(model.start()))).astype(np.float32)
    alone = rows.copy()
    worker, count = np.array([0, 3, 1, 2]), np.array([5, 0, 300, 7])
    model.step(rows, worker, count, 0.5)
    for i in range(4):
        model.step(alone[i : i + 1], worker[i : i + 1], count[i : i + 1], 0.5)
    np.testing.assert_allclose(rows, alone, atol=1e-6)
