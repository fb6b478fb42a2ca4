"""Pairs on the GPUs, and PCIe and network port of the nodes, both at once."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from made_up import named_trace, profiles, step_model

from envs.cluster.interference.analytic import SharedBottleneck
from envs.cluster.interference.rates import GPU_TIME
from envs.cluster.interference.shared_hosts import SharedHosts
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.errors import InputError

A, B = "('a', 1)", "('b', 1)"
PAIR = {("a", "a"): 0.6, ("a", "b"): 0.8, ("b", "a"): 0.75, ("b", "b"): 0.25}


@pytest.fixture
def model(tmp_path: Path) -> SharedHosts:
    rows = {
        A: {"null": 10.0, A: [6.0, 6.0], B: [8.0, 3.0]},
        B: {"null": 4.0, A: [3.0, 8.0], B: [0.0, 0.0]},
    }
    path = tmp_path / "table.json"
    path.write_text(json.dumps({"y": rows, "y_unconsolidated": rows}))
    return SharedHosts(profiles(), step_model(), str(path), "y", 0.25, 0)


def test_pairs_multiply_what_the_hosts_leave(model: SharedHosts) -> None:
    """Of three jobs on a node, two share its GPUs; inputs of all ask for 1.6 of its PCIe."""
    trace = named_trace(["hungry", "mute", "hungry"], [2, 2, 2], [500, 500, 1000])
    simulator = ClusterSimulator(Cluster.uniform(1, 4), trace, rates=model)
    simulator.advance()
    simulator.start(0, [(0, 2)])
    simulator.start(1, [(0, 2)], int(simulator.state.nodes[0]["partial"]))
    simulator.start(2, [(0, 2)])
    tables = simulator.tables
    first, second = ("ab"[tables.row[tables.profile[job], 0]] for job in range(2))
    rates = simulator.state.jobs["rate"].tolist()
    assert rates == pytest.approx([PAIR[first, second] / 1.6, PAIR[second, first], 1 / 1.6])
    simulator.preempt(1)
    assert simulator.state.jobs["rate"][[0, 2]].tolist() == pytest.approx([1 / 1.6, 1 / 1.6])
    simulator.preempt(2)
    assert simulator.state.jobs["rate"][0] == 1.0


def test_alone_it_is_the_step_model(model: SharedHosts) -> None:
    trace = named_trace(["mute", "chatty", "hungry"] * 9, [1, 2, 3] * 9)
    cluster = Cluster.uniform(2, 4, gpu_types=("V100", "T4"))
    ours = model.tables(trace, cluster)
    theirs = SharedBottleneck(profiles(), step_model(), 0).tables(trace, cluster)
    for column in ("speed", "locality", "demand", "communication"):
        one, other = getattr(ours, column), getattr(theirs, column)
        np.testing.assert_array_equal(one[ours.profile], other[theirs.profile])
    assert (ours.demand[:, GPU_TIME] > 0.0).any()  # in the tables, but not read
    rows = ours.row[ours.profile, 0]
    assert {(p, r) for p, r in zip(theirs.profile, rows, strict=True)} == {
        (p, r) for p in range(3) for r in range(2)
    }  # a row is drawn whatever the profile is


def test_wrong_numbers_are_named(model: SharedHosts) -> None:
    path = str(model.pairs.path)
    with pytest.raises(InputError, match="turns"):
        SharedHosts(profiles(), step_model(), path, "y", 0.75, 0)
    with pytest.raises(InputError, match="no table of GPU type 'x'"):
        SharedHosts(profiles(), step_model(), path, "x", 0.5, 0)
