"""Max-min programs against linear programs written out, and finish-time fairness by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import default_rng
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from scipy.optimize import linprog

from agents.cluster.fairness import (
    FinishTimeFairness,
    OnePool,
    SeveralPools,
    isolated_shares,
    least_worst_rho,
    max_min_program,
)
from agents.cluster.replay import simulate
from agents.cluster.rounds import Demand
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.workload.trace import Trace
from tests.agents.cluster.further_policies import in_rounds
from tests.strength import SEEDS, examples

FloatArray = NDArray[np.float64]


def best(
    cost: FloatArray, rates: FloatArray, gpus: FloatArray, capacity: FloatArray, least: FloatArray
) -> float:
    """The greatest cost @ X where gang m has a throughput of at least least[m]."""
    gangs, pools = rates.shape
    rows, limits = [], []
    for m in range(gangs):
        row = np.zeros((gangs, pools))
        row[m] = -rates[m]
        rows.append(row.ravel())
        limits.append(-least[m])
        row = np.zeros((gangs, pools))
        row[m] = 1.0
        rows.append(row.ravel())
        limits.append(1.0)
    for p in range(pools):
        row = np.zeros((gangs, pools))
        row[:, p] = gpus
        rows.append(row.ravel())
        limits.append(capacity[p])
    result = linprog(-cost.ravel(), A_ub=np.array(rows), b_ub=limits, bounds=(0, 1))
    assert result.status == 0
    return float(-result.fun)


def random_program(seed: int, pools: int) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    rng = default_rng(seed)
    gangs = int(rng.integers(1, 9))
    rates = rng.uniform(0.1, 1.0, (gangs, pools))
    if pools > 1:
        rates[rng.random(rates.shape) < 0.2] = 0.0
        rates[np.arange(gangs), rng.integers(0, pools, gangs)] = 1.0
    gpus = rng.choice([0.5, 1.0, 2.0, 4.0], gangs)
    capacity = rng.integers(1, 9, pools).astype(float)
    return rates, gpus, capacity, rng.uniform(0.05, 2.0, gangs)


@examples(60)
@given(seed=SEEDS, pools=st.integers(1, 3))
def test_shares_are_max_min_fair(seed: int, pools: int) -> None:
    """Nobody can have more without taking it from one who has no more than he."""
    rates, gpus, capacity, asked = random_program(seed, pools)
    shares = max_min_program(rates, gpus, capacity).shares(asked)
    assert (shares >= 0.0).all()
    assert (shares.sum(axis=1) <= 1.0 + 1e-6).all()
    assert (gpus @ shares <= capacity + 1e-6).all()
    assert (shares[rates == 0.0] == 0.0).all() or pools == 1
    got = (rates * shares).sum(axis=1)
    ratio = got / asked
    for gang in range(len(gpus)):
        poorer = ratio <= ratio[gang] + 1e-6
        least = np.where(poorer, got * (1.0 - 1e-7) - 1e-7, 0.0)
        cost = np.zeros(rates.shape)
        cost[gang] = rates[gang]
        assert best(cost, rates, gpus, capacity, least) <= got[gang] + 1e-3


@examples(60)
@given(seed=SEEDS, pools=st.integers(1, 3))
def test_level_is_the_optimum(seed: int, pools: int) -> None:
    rates, gpus, capacity, asked = random_program(seed, pools)
    level = max_min_program(rates, gpus, capacity).level(asked)
    zero = np.zeros(rates.shape)
    best(zero, rates, gpus, capacity, asked * level * (1.0 - 1e-6))  # feasible
    with pytest.raises(AssertionError):
        best(zero, rates, gpus, capacity, asked * level * 1.001)


@examples(40)
@given(seed=SEEDS)
def test_the_closed_form_is_what_the_solver_finds(seed: int) -> None:
    rates, gpus, capacity, asked = random_program(seed, 1)
    closed = OnePool(rates[:, 0], gpus, float(capacity[0]))
    solver = SeveralPools(rates, gpus, capacity)
    assert solver.level(asked) == pytest.approx(closed.level(asked), rel=1e-6)
    assert_allclose(solver.shares(asked), closed.shares(asked), atol=1e-6)


def test_equal_gpus_capped_at_the_gang() -> None:
    """Gangs of 1, 1, 2 and 8 on 8 GPUs: 1, 1, 2 and the 4 that are left of 8."""
    gpus = np.array([1.0, 1.0, 2.0, 8.0])
    shares = max_min_program(np.ones((4, 1)), gpus, np.array([8.0])).shares(1.0 / gpus)
    assert_allclose(shares[:, 0], [1.0, 1.0, 1.0, 0.5])
    shares = max_min_program(np.ones((4, 1)), gpus, np.array([3.0])).shares(1.0 / gpus)
    assert_allclose(shares[:, 0], [0.75, 0.75, 0.375, 0.75 / 8])


def test_a_gang_goes_where_it_gains_most() -> None:
    """Two gangs, a V100 and a K80: the one that is 10 times faster on the V100 gets most of it."""
    rates = np.array([[1.0, 0.1], [1.0, 0.5]])
    program = max_min_program(rates, np.ones(2), np.ones(2))
    shares = program.shares(np.ones(2))
    got = (rates * shares).sum(axis=1)
    # x on the V100 for the first: x + 0.1 (1 - x) = (1 - x) + 0.5 x  =>  x = 9 / 14
    assert_allclose(shares[0], [9 / 14, 5 / 14], atol=1e-6)
    assert_allclose(got, [9 / 14 + 0.5 / 14] * 2, atol=1e-6)


def test_asking_again_does_not_remember() -> None:
    rates, gpus, capacity, asked = random_program(3, 3)
    program = max_min_program(rates, gpus, capacity)
    first = (rates * program.shares(asked)).sum(axis=1)
    program.level(asked[::-1].copy())
    assert_allclose((rates * program.shares(asked)).sum(axis=1), first, atol=1e-6)


@pytest.mark.parametrize("seed", [295, 429, 1761])
def test_what_gangs_ask_for_may_span_orders_of_magnitude(seed: int) -> None:
    """With the least slack alone, HiGHS calls these infeasible when levels are held."""
    rng = default_rng(seed)
    gangs = int(rng.integers(10, 80))
    rates = np.array([1.0, 0.75, 0.5]) * rng.uniform(0.9, 1.1, (gangs, 3))
    gpus = rng.choice([1.0, 2.0, 4.0, 8.0, 16.0, 32.0], gangs)
    asked = 10.0 ** rng.uniform(-rng.integers(1, 7), rng.integers(0, 3), gangs)
    program = SeveralPools(rates, gpus, np.full(3, 32.0))
    shares = program.shares(asked)
    assert (gpus @ shares <= 32.0 + 1e-5).all()
    assert (shares.sum(axis=1) <= 1.0 + 1e-6).all()
    least = ((rates * shares).sum(axis=1) / asked).min()
    assert least == pytest.approx(program.level(asked), rel=2e-4)


def feasible(rates: FloatArray, gpus: FloatArray, capacity: FloatArray, least: FloatArray) -> bool:
    """Whether all gangs can have a throughput of at least `least`."""
    gangs, pools = rates.shape
    eye = np.eye(gangs)
    throughput = np.concatenate([-eye * rates[:, p] for p in range(pools)], axis=1)
    time = np.concatenate([eye] * pools, axis=1)
    held = np.kron(np.eye(pools), gpus)
    result = linprog(
        np.zeros(gangs * pools),
        A_ub=np.concatenate([throughput, time, held]),
        b_ub=np.concatenate([-least, np.ones(gangs), capacity]),
        bounds=(0, None),
    )
    return bool(result.status == 0)


@examples(60)
@given(seed=SEEDS, pools=st.integers(1, 3))
def test_no_smaller_worst_rho_is_possible(seed: int, pools: int) -> None:
    rng = default_rng(seed)
    gangs = int(rng.integers(1, 8))
    rates = rng.uniform(0.1, 1.0, (gangs, pools))
    gpus = rng.choice([1.0, 2.0, 4.0], gangs)
    capacity = rng.integers(4, 9, pools).astype(float)
    demand = Demand(np.arange(gangs), gpus, rates, capacity)
    elapsed, remaining = rng.uniform(0, 5000, gangs), rng.uniform(1, 5000, gangs)
    isolated = isolated_shares(demand)
    fair = rng.uniform(0, 3000, gangs) + remaining / (rates * isolated).sum(axis=1)
    shares = least_worst_rho(rates, gpus, capacity, elapsed, remaining, fair, isolated)
    assert (shares.sum(axis=1) <= 1.0 + 1e-6).all()
    assert (gpus @ shares <= capacity + 1e-6).all()
    throughput = (rates * shares).sum(axis=1)
    worst = float(((elapsed + remaining / throughput) / fair).max())
    better = worst * (1.0 - 1e-4) * fair - elapsed
    assert (better <= 0.0).any() or not feasible(rates, gpus, capacity, remaining / better)


def test_isolated_shares() -> None:
    """4 GPUs for two jobs: a gang of 1 runs all the time on its 2, a gang of 4 half of it."""
    demand = Demand(np.arange(2), np.array([1.0, 4.0]), np.ones((2, 1)), np.array([4.0]))
    assert_allclose(isolated_shares(demand)[:, 0], [1.0, 0.5])


def test_equal_jobs_have_equal_shares_and_the_late_one_less() -> None:
    """One GPU: 100 s left each; one has waited 100 s, the other 0 s; both need 200 s isolated.

    (100 + 100 / x) = 100 / (1 - x): x = 0.618, the golden section.
    """
    left = np.full(2, 100.0)
    shares = least_worst_rho(
        np.ones((2, 1)), np.ones(2), np.ones(1), np.array([100.0, 0.0]), left, 2 * left,
        np.full((2, 1), 0.5),
    )  # fmt: skip
    assert_allclose(shares[:, 0], [(5**0.5 - 1) / 2, (3 - 5**0.5) / 2], atol=1e-5)


def test_a_hopeless_job_does_not_hold_back_the_others() -> None:
    """The first has waited too long for any rho that the others could come to: it gets all it can.

    What is left of two GPUs makes the rho of the others equal.
    """
    shares = least_worst_rho(
        np.ones((3, 1)), np.ones(3), np.array([2.0]), np.array([9000.0, 0.0, 0.0]),
        np.array([100.0, 100.0, 200.0]), np.full(3, 300.0), np.full((3, 1), 2 / 3),
    )  # fmt: skip
    assert_allclose(shares[:, 0], [1.0, 1 / 3, 2 / 3], atol=1e-5)


def test_what_was_received_before_counts() -> None:
    """One GPU; equal jobs of 3600 s, the second 1800 s late.

    By then the first has had 1800 s alone, which took 1800 s isolated, and 1800 s are left: (1800 +
    1800 / x) / (1800 + 3600) = (3600 / (1 - x)) / 7200, x = 1 / 2. It ends at 5400 s.
    """
    trace = Trace.of("two", [0, 1800], [3600, 3600], [1, 1])
    simulator = ClusterSimulator(Cluster.uniform(1, 1), trace)
    schedule = simulate(in_rounds(FinishTimeFairness()), simulator)
    assert schedule.finish[0] == pytest.approx(5400.0, abs=360.0)
    assert schedule.finish[1] == 7200.0
