"""The least worst rho against feasibility programs, and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import linprog

from agents.cluster.fairness import (
    FinishTimeFairness,
    isolated_shares,
    least_worst_rho,
)
from agents.cluster.replay import simulate
from agents.cluster.rounds import Demand
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.workload.trace import Trace
from tests.agents.cluster.further_policies import in_rounds
from tests.strength import examples

FloatArray = NDArray[np.float64]


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
@given(seed=st.integers(0, 10**6), pools=st.integers(1, 3))
def test_no_smaller_worst_rho_is_possible(seed: int, pools: int) -> None:
    rng = np.random.default_rng(seed)
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
    np.testing.assert_allclose(isolated_shares(demand)[:, 0], [1.0, 0.5])


def test_equal_jobs_have_equal_shares_and_the_late_one_less() -> None:
    """One GPU: 100 s left each; one has waited 100 s, the other 0 s; both need 200 s isolated.

    (100 + 100 / x) = 100 / (1 - x): x = 0.618, the golden section.
    """
    left = np.full(2, 100.0)
    shares = least_worst_rho(
        np.ones((2, 1)), np.ones(2), np.ones(1), np.array([100.0, 0.0]), left, 2 * left,
        np.full((2, 1), 0.5),
    )  # fmt: skip
    np.testing.assert_allclose(shares[:, 0], [(5**0.5 - 1) / 2, (3 - 5**0.5) / 2], atol=1e-5)


def test_a_hopeless_job_does_not_hold_back_the_others() -> None:
    """The first has waited too long for any rho that the others could come to: it gets all it can.

    What is left of two GPUs makes the rho of the others equal.
    """
    shares = least_worst_rho(
        np.ones((3, 1)), np.ones(3), np.array([2.0]), np.array([9000.0, 0.0, 0.0]),
        np.array([100.0, 100.0, 200.0]), np.full(3, 300.0), np.full((3, 1), 2 / 3),
    )  # fmt: skip
    np.testing.assert_allclose(shares[:, 0], [1.0, 1 / 3, 2 / 3], atol=1e-5)


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
