"""Themis's auction against all choices, and leases by hand."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from agents.cluster.themis import Themis, knapsack
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from tests.agents.cluster.further_policies import on_nodes, trace_of
from tests.agents.cluster.small_clusters import LowestNodes
from tests.strength import examples


@examples(100)
@given(
    items=st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 8)), min_size=1, max_size=8),
    capacity=st.integers(1, 20),
)
def test_knapsack_is_exact(items: list[tuple[int, int]], capacity: int) -> None:
    worth = np.array([float(w) for w, _ in items])
    weights = np.array([g for _, g in items])
    chosen = knapsack(worth, weights, capacity)
    assert weights[chosen].sum() <= capacity
    every = [c for n in range(len(items) + 1) for c in combinations(range(len(items)), n)]
    best = max(worth[list(c)].sum() for c in every if weights[list(c)].sum() <= capacity)
    assert worth[chosen].sum() == best


def test_leases_by_hand() -> None:
    """One GPU, two jobs of 100 s, leases of 40 s; the ideal of both is 200 s.

    Half of the bidders are asked: the one with the greater elapsed + remaining. Equal at 0, 80 and
    160, where the first in number wins.
    """
    policy = Themis(LowestNodes(), fairness=0.5, lease_s=40.0)
    schedule = on_nodes(policy, [(0, 100, 1)] * 2, 1, 1, keep_runs=True)
    assert schedule.runs is not None
    runs = sorted(schedule.runs[["start", "job"]].tolist())
    assert runs == [(0, 0), (40, 1), (80, 0), (120, 1), (160, 0), (180, 1)]
    assert schedule.finish.tolist() == [180.0, 200.0]


def test_without_filter_the_shortest_gains_most() -> None:
    """f = 0: the product of 1 / rho grows most with the job whose elapsed + remaining is least."""
    policy = Themis(LowestNodes(), fairness=0.0, lease_s=40.0)
    assert on_nodes(policy, [(0, 400, 1), (0, 100, 1)], 1, 1).finish.tolist() == [500.0, 100.0]


def test_leases_are_kept_while_the_queue_is_empty() -> None:
    policy = Themis(LowestNodes(), lease_s=40.0)
    assert on_nodes(policy, [(0, 5000, 1), (1000, 10, 1)], 1, 1).preemptions[0] <= 1


def test_rho() -> None:
    """4 GPUs; a gang of 4 alone for 100 s, then with another one for 100 s: n = 1.5."""
    trace = trace_of([(0, 1000, 4), (100, 1000, 4)])
    simulator = ClusterSimulator(Cluster.uniform(1, 4), trace)
    policy = Themis(LowestNodes(), fairness=0.0, lease_s=10_000.0)
    policy.reset(simulator)
    for until in (0.0, 100.0, 200.0):
        simulator.advance(until)
        policy.decide(simulator)
    rho = policy.rho(simulator, np.array([0, 1]))
    np.testing.assert_allclose(rho, [(200 + 800) / 1500, (100 + 1000) / 2000])
