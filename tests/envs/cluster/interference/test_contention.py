"""Contention of all-reduces against its closed form."""

from __future__ import annotations

import pytest
from made_up import named_trace, profiles, step_model

from envs.cluster.interference.analytic import AllReduceContention
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.errors import InputError

BETA, ETA = 2.0, 0.5


def simulator(models: list[str], gangs: list[int]) -> ClusterSimulator:
    model = AllReduceContention(profiles(), step_model(), BETA, ETA, 0)
    cluster = Cluster.uniform(4, 8, nodes_per_rack=2)
    result = ClusterSimulator(cluster, named_trace(models, gangs), rates=model)
    result.advance()
    return result


def test_k_all_reduces_on_a_port() -> None:
    sim = simulator(["chatty"] * 5, [2] * 5)
    near, c = 1.1 / 2.0, 1 / 2  # on one rack: 1 s of computation, 1 s of communication
    for k in range(1, 6):
        sim.start(k - 1, [(0, 1), (1, 1)])
        slow = (k * BETA + (k - 1) * ETA) / BETA
        for job in range(k):
            expected = near / (1 - c + c * slow)
            assert sim.state.jobs[job]["rate"] == pytest.approx(expected, rel=1e-12)


def test_the_fullest_port_counts_and_only_spanning_jobs_that_communicate() -> None:
    sim = simulator(["chatty", "chatty", "chatty", "mute", "chatty"], [2, 2, 2, 2, 4])
    sim.start(0, [(0, 1), (1, 1)])
    sim.start(3, [(0, 1), (1, 1)])
    sim.start(4, [(0, 4)])
    assert sim.state.jobs[0]["rate"] == pytest.approx(1.1 / 2)
    assert sim.state.jobs[3]["rate"] == 1.0
    assert sim.state.jobs[4]["rate"] == 1.0
    sim.start(1, [(1, 1), (2, 1)])
    sim.start(2, [(1, 1), (3, 1)])
    third = (3 * BETA + 2 * ETA) / BETA
    assert sim.state.jobs[0]["rate"] == pytest.approx(1.1 / 2 / (0.5 + 0.5 * third))
    assert sim.state.jobs[1]["rate"] == pytest.approx(1.1 / 3 / (1 / 3 + 2 / 3 * third))


def test_beta_and_eta_are_checked() -> None:
    with pytest.raises(InputError, match="'beta': 0 is not above 0"):
        AllReduceContention(profiles(), step_model(), 0.0, 0.0, 0)
    with pytest.raises(InputError, match=r"'eta': -1.0 is negative"):
        AllReduceContention(profiles(), step_model(), 1.0, -1.0, 0)
