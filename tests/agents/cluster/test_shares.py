"""Shares against linear programs written out, GPUs one by one against all others, and by hand."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import default_rng
from numpy.testing import assert_allclose
from scipy.optimize import OptimizeResult, linprog

from agents.cluster.elastic import ApatheticFutureShare, apathetic_gpus, gainful_gpus
from agents.cluster.shares import (
    Demand,
    FinishTimeFairness,
    LeastAttainedService,
    MaxMinFairness,
    OnePool,
    SeveralPools,
    ShareRule,
    isolated_shares,
    least_worst_rho,
    max_min_program,
)
from envs.arrays import FloatArray, IntArray
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from tests.agents.cluster.further_policies import GivenShares, Jobs, in_rounds, on_nodes, trace_of
from tests.refusal import refusal
from tests.strength import SEEDS, examples

Problem = tuple[FloatArray, FloatArray, FloatArray]  # rates, gpus, capacity


def best(problem: Problem, least: FloatArray, cost: FloatArray) -> OptimizeResult:
    """SciPy's greatest cost @ X where gang m has a throughput of at least least[m]."""
    rates, gpus, capacity = problem
    gangs, pools = rates.shape
    rows = [
        np.hstack([-np.diag(rate) for rate in rates.T]),
        np.tile(np.eye(gangs), pools),
        np.kron(np.eye(pools), gpus),
    ]
    limits = np.concatenate([-least, np.ones(gangs), capacity])
    return linprog(-cost.T.ravel(), A_ub=np.concatenate(rows), b_ub=limits, bounds=(0, 1))


def is_feasible(problem: Problem, least: FloatArray) -> bool:
    return bool(best(problem, least, np.zeros(problem[0].shape)).status == 0)


def random_program(seed: int, pools: int) -> tuple[Problem, FloatArray]:
    rng = default_rng(seed)
    gangs = int(rng.integers(1, 9))
    rates = rng.uniform(0.1, 1.0, (gangs, pools))
    if pools > 1:
        rates[rng.random(rates.shape) < 0.2] = 0.0
        rates[np.arange(gangs), rng.integers(0, pools, gangs)] = 1.0
    gpus = rng.choice([0.5, 1.0, 2.0, 4.0], gangs)
    capacity = rng.integers(1, 9, pools).astype(float)
    return (rates, gpus, capacity), rng.uniform(0.05, 2.0, gangs)


def check(shares: FloatArray, problem: Problem, spare: float = 1e-6) -> FloatArray:
    """(A,) throughputs of shares of time that there is."""
    rates, gpus, capacity = problem
    assert (shares >= 0.0).all()
    assert (shares.sum(axis=1) <= 1.0 + 1e-6).all()
    assert (gpus @ shares <= capacity + spare).all()
    throughput: FloatArray = (rates * shares).sum(axis=1)
    return throughput


@examples(60)
@given(seed=SEEDS, pools=st.integers(1, 3))
def test_shares_are_max_min_fair_and_their_level_is_the_optimum(seed: int, pools: int) -> None:
    """Nobody can have more without taking it from one who has no more than he."""
    problem, asked = random_program(seed, pools)
    rates, program = problem[0], max_min_program(*problem)
    shares = program.shares(asked)
    got = check(shares, problem)
    assert pools == 1 or (shares[rates == 0.0] == 0.0).all()
    ratio = got / asked
    for gang in range(len(asked)):
        poorer = ratio <= ratio[gang] + 1e-6
        least = np.where(poorer, got * (1.0 - 1e-7) - 1e-7, 0.0)
        found = best(problem, least, rates * (np.arange(len(asked)) == gang)[:, None])
        assert found.status == 0
        assert -found.fun <= got[gang] + 1e-3
    level = program.level(asked)
    assert is_feasible(problem, asked * level * (1.0 - 1e-6))
    assert not is_feasible(problem, asked * level * 1.001)


@examples(40)
@given(seed=SEEDS)
def test_the_closed_form_is_what_the_solver_finds(seed: int) -> None:
    (rates, gpus, capacity), asked = random_program(seed, 1)
    closed = OnePool(rates[:, 0], gpus, float(capacity[0]))
    solver = SeveralPools(rates, gpus, capacity)
    assert solver.level(asked) == pytest.approx(closed.level(asked), rel=1e-6)
    assert_allclose(solver.shares(asked), closed.shares(asked), atol=1e-6)


@pytest.mark.parametrize(
    ("rates", "gangs", "gpus", "expected"),
    [
        # equal GPUs, capped at the gang: 1, 1, 2 and the 4 that are left
        ([[1.0]] * 4, [1.0, 1.0, 2.0, 8.0], [8.0], [[1.0], [1.0], [1.0], [0.5]]),
        ([[1.0]] * 4, [1.0, 1.0, 2.0, 8.0], [3.0], [[0.75], [0.75], [0.375], [0.75 / 8]]),
        # Of two gangs, a V100 and a K80 the one that is 10 times faster on the V100 gets most of
        # it: x + 0.1 (1 - x) = (1 - x) + 0.5 x  =>  x = 9 / 14
        ([[1.0, 0.1], [1.0, 0.5]], [1.0] * 2, [1.0] * 2, [[9 / 14, 5 / 14], [5 / 14, 9 / 14]]),
    ],
)
def test_shares_by_hand(
    rates: list[Any], gangs: list[float], gpus: list[float], expected: list[Any]
) -> None:
    size = np.array(gangs)
    shares = max_min_program(np.array(rates), size, np.array(gpus)).shares(1.0 / size)
    assert_allclose(shares, expected, atol=0.0 if len(gpus) == 1 else 1e-6)


def test_asking_again_does_not_remember() -> None:
    problem, asked = random_program(3, 3)
    program = max_min_program(*problem)
    first = check(program.shares(asked), problem)
    program.level(asked[::-1].copy())
    assert_allclose(check(program.shares(asked), problem), first, atol=1e-6)


@pytest.mark.parametrize("seed", [295, 429, 1761])
def test_what_gangs_ask_for_may_span_orders_of_magnitude(seed: int) -> None:
    """With the least slack alone, HiGHS calls these infeasible when levels are held."""
    rng = default_rng(seed)
    gangs = int(rng.integers(10, 80))
    rates = np.array([1.0, 0.75, 0.5]) * rng.uniform(0.9, 1.1, (gangs, 3))
    gpus = rng.choice([1.0, 2.0, 4.0, 8.0, 16.0, 32.0], gangs)
    asked = 10.0 ** rng.uniform(-rng.integers(1, 7), rng.integers(0, 3), gangs)
    problem = rates, gpus, np.full(3, 32.0)
    program = SeveralPools(*problem)
    got = check(program.shares(asked), problem, spare=1e-5)
    assert (got / asked).min() == pytest.approx(program.level(asked), rel=2e-4)


@examples(60)
@given(seed=SEEDS, pools=st.integers(1, 3))
def test_no_smaller_worst_rho_is_possible(seed: int, pools: int) -> None:
    rng = default_rng(seed)
    gangs = int(rng.integers(1, 8))
    rates = rng.uniform(0.1, 1.0, (gangs, pools))
    gpus = rng.choice([1.0, 2.0, 4.0], gangs)
    problem = rates, gpus, rng.integers(4, 9, pools).astype(float)
    elapsed, remaining = rng.uniform(0, 5000, gangs), rng.uniform(1, 5000, gangs)
    isolated = isolated_shares(*problem)
    fair = rng.uniform(0, 3000, gangs) + remaining / (rates * isolated).sum(axis=1)
    throughput = check(least_worst_rho(*problem, elapsed, remaining, fair, isolated), problem)
    worst = float(((elapsed + remaining / throughput) / fair).max())
    better = worst * (1.0 - 1e-4) * fair - elapsed
    assert (better <= 0.0).any() or not is_feasible(problem, remaining / better)


def test_isolated_shares() -> None:
    """4 GPUs for two jobs: a gang of 1 runs all the time on its 2, a gang of 4 half of it."""
    shares = isolated_shares(np.ones((2, 1)), np.array([1.0, 4.0]), np.array([4.0]))
    assert_allclose(shares[:, 0], [1.0, 0.5])


@pytest.mark.parametrize(
    ("elapsed", "left", "fair", "gpus", "expected"),
    [
        # One GPU: 100 s left each; one has waited 100 s, the other 0 s; both need 200 s isolated.
        # (100 + 100 / x) = 100 / (1 - x): x = 0.618, the golden section.
        ([100.0, 0.0], [100.0] * 2, [200.0] * 2, 1.0, [(5**0.5 - 1) / 2, (3 - 5**0.5) / 2]),
        # The first has waited too long for any rho that the others could come to: it gets all it
        # can. What is left of two GPUs makes the rho of the others equal.
        ([9000.0, 0.0, 0.0], [100.0, 100.0, 200.0], [300.0] * 3, 2.0, [1.0, 1 / 3, 2 / 3]),
    ],
    ids=["equal jobs, one of them late", "a hopeless job does not hold back the others"],
)
def test_least_worst_rho(
    elapsed: list[float], left: list[float], fair: list[float], gpus: float, expected: list[float]
) -> None:
    one = np.ones(len(fair))
    problem = one[:, None], one, np.array([gpus])
    jobs = np.array([elapsed, left, fair])
    shares = least_worst_rho(*problem, *jobs, isolated_shares(*problem))
    assert_allclose(shares[:, 0], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("rule", "jobs", "finish"),
    [
        # Equal jobs of 3600 s, the second 1800 s late. By then the first has had 1800 s alone,
        # which took 1800 s isolated, and 1800 s are left: (1800 + 1800 / x) / (1800 + 3600) =
        # (3600 / (1 - x)) / 7200, x = 1 / 2. It ends at 5400 s.
        (
            FinishTimeFairness(),
            [(0, 3600, 1), (1800, 3600, 1)],
            [pytest.approx(5400.0, abs=360.0), 7200.0],
        ),
        # short jobs first where GPUs are few
        (
            ApatheticFutureShare(),
            [(0, 7200, 1), (0, 360, 1), (0, 720, 1)],
            [8280.0, 360.0, 1080.0],
        ),
    ],
)
def test_turns_on_one_gpu(rule: ShareRule, jobs: Jobs, finish: list[Any]) -> None:
    assert on_nodes(in_rounds(rule), jobs, 1, 1).finish.tolist() == finish


@pytest.mark.parametrize("rule", [LeastAttainedService(), MaxMinFairness()])
def test_fair_shares_of_gangs(rule: ShareRule) -> None:
    """Gangs of 1, 1, 2 and 5 on 2 GPUs: as many GPUs each on average; 5 cannot run at all."""
    gangs = np.array([1.0, 1.0, 2.0, 5.0])
    simulator = ClusterSimulator(Cluster.uniform(1, 5), trace_of([(0, 10, g) for g in gangs]))
    rule.reset(simulator)
    rates = np.array([[1.0], [1.0], [1.0], [0.0]])
    shares = rule.shares(Demand(simulator, np.arange(4), gangs, rates, np.array([2.0])))
    assert_allclose(shares, [[2 / 3], [2 / 3], [1 / 3], [0.0]])


def by_the_book(service: list[float], gangs: list[int], gpus: int) -> list[int]:
    """The paper's comparison with throughputs p(w) = w / gang, written out."""
    w = [0] * len(gangs)

    def speed(job: int, more: int = 0) -> float:
        return (w[job] + more) / gangs[job]

    def time(job: int) -> float:
        return np.inf if w[job] == 0 else service[job] / gangs[job] / speed(job)

    def better(best: int, job: int) -> int:
        if w[job] == w[best] == 0:
            return job if service[job] < service[best] else best
        a, b = (job, best) if time(job) < time(best) else (best, job)
        gain_b = (speed(b, 1) - speed(b)) / speed(b, 1)
        gain_a = (speed(a, 1) - speed(a)) / speed(a)
        return b if gain_b - gain_a > 1e-12 else a

    while sum(w) < min(gpus, sum(gangs)):
        w[reduce(better, [job for job, gang in enumerate(gangs) if w[job] < gang])] += 1
    return w


def some_jobs(most: int, gangs: list[int]) -> Any:
    """(GPU-seconds, gang) of each."""
    job = st.tuples(st.integers(1, 10**6), st.sampled_from(gangs))
    return st.lists(job, min_size=1, max_size=most).map(lambda jobs: np.array(jobs).T)


@examples(200)
@given(jobs=some_jobs(9, [1, 2, 4, 8]), gpus=st.integers(1, 20))
def test_the_papers_comparison(jobs: IntArray, gpus: int) -> None:
    service, gangs = jobs.astype(float)[0], jobs[1]
    handed_out = apathetic_gpus(service, gangs, gpus).tolist()
    assert handed_out == by_the_book(service.tolist(), gangs.tolist(), gpus)
    assert sum(handed_out) == min(gpus, gangs.sum())


@examples(100)
@given(jobs=some_jobs(4, [1, 2, 4]), more=st.integers(0, 8))
def test_the_sum_of_remaining_times_is_least(jobs: IntArray, more: int) -> None:
    service, gangs = jobs.astype(float)[0], jobs[1]
    gpus = len(gangs) + more
    handed_out = gainful_gpus(service, gangs, gpus)
    assert handed_out.sum() == min(gpus, gangs.sum())
    assert (handed_out <= gangs).all()
    choices = product(*(range(1, gang + 1) for gang in gangs))
    least = min((service / w).sum() for w in choices if sum(w) <= gpus)
    assert (service / handed_out).sum() == pytest.approx(least)


@pytest.mark.parametrize(
    ("hand_out", "service", "gang", "gpus", "expected"),
    [
        # the shorter job stays ahead: the long one gets a GPU whenever it is two behind
        (apathetic_gpus, [10.0, 99.0], 8, 2, [2, 0]),
        (apathetic_gpus, [10.0, 99.0], 8, 3, [2, 1]),
        (apathetic_gpus, [10.0, 99.0], 8, 8, [5, 3]),
        (gainful_gpus, [9.0, 1.0, 5.0], 4, 2, [1, 1, 0]),  # few go to those that came first
        # 50, then 100 / 6 against 15, then 100 / 12 against 15
        (gainful_gpus, [100.0, 30.0], 8, 4, [3, 1]),
        (gainful_gpus, [100.0, 30.0], 8, 5, [3, 2]),
    ],
)
def test_gpus_by_hand(
    hand_out: Callable[..., IntArray], service: list[float], gang: int, gpus: int, expected: Any
) -> None:
    gangs = np.full(len(service), gang)
    assert hand_out(np.array(service), gangs, gpus).tolist() == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([0.5, 0.5], r"shape \(2,\), not a part of the time for each of 2 gangs on 1 pools"),
        ([[np.nan], [0.5]], "below 0 or none"),
        ([[-0.5], [0.5]], "below 0 or none"),
        ([[1.5], [0.5]], "gives a gang 1.5 of the time"),
        ([[1.0], [1.0]], "gives more GPUs than there are"),
    ],
)
def test_what_is_no_share_is_refused_by_the_name_of_its_rule(given: Any, expected: str) -> None:
    with refusal(f"share rule given.*{expected}"):
        on_nodes(in_rounds(GivenShares(given)), [(0, 100, 3), (0, 100, 2)], 1, 4)
