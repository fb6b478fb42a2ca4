"""Pairs on the GPUs, and PCIe and network port of the nodes, both at once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up import arrived, named_trace, play, profiles, step_model
from numpy.testing import assert_array_equal

from agents.cluster.replay import replay
from envs.cluster.interference.analytic import SharedBottleneck
from envs.cluster.interference.rates import GPU_TIME
from envs.cluster.interference.shared_hosts import SharedHosts
from envs.cluster.nodes import Cluster
from envs.cluster.workload.trace import Trace
from tests.agents.cluster.further_policies import joint_choice
from tests.refusal import refusal

A, B = "('a', 1)", "('b', 1)"
PAIR = {("a", "a"): 0.6, ("a", "b"): 0.8, ("b", "a"): 0.75, ("b", "b"): 0.25}


def hosts(path: object, table: str = "y", turns: float = 0.25, **changed: Any) -> SharedHosts:
    settings = {"cores": None, "core_input": 800.0, "uplink": None, **changed}
    return SharedHosts(profiles(), step_model(), str(path), table, turns, **settings)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    rows = {
        A: {"null": 10.0, A: [6.0, 6.0], B: [8.0, 3.0]},
        B: {"null": 4.0, A: [3.0, 8.0], B: [0.0, 0.0]},
    }
    path = tmp_path / "table.json"
    path.write_text(json.dumps({"y": rows, "y_unconsolidated": rows}))
    return path


def test_pairs_multiply_what_the_hosts_leave(path: Path) -> None:
    """Of three jobs on a node, two share its GPUs; inputs of all ask for 1.6 of its PCIe."""
    trace = named_trace(["hungry", "mute", "hungry"], [2, 2, 2], [500, 500, 1000])
    simulator = arrived(hosts(path), Cluster.uniform(1, 4), trace)
    tables = simulator.tables
    first, second = ("ab"[tables.row[tables.profile[job], 0]] for job in range(2))
    rates = play(simulator, {0: [(0, 2)], 1: [(0, 2)], 2: [(0, 2)]})
    assert rates == pytest.approx([PAIR[first, second] / 1.6, PAIR[second, first], 1 / 1.6])
    assert play(simulator, {1: None}) == pytest.approx([1 / 1.6, 0.0, 1 / 1.6])
    assert play(simulator, {2: None})[0] == 1.0


def test_alone_it_is_the_step_model(path: Path) -> None:
    trace = named_trace(["mute", "chatty", "hungry"] * 9, [1, 2, 3] * 9)
    cluster = Cluster.uniform(2, 4, gpu_types=("V100", "T4"))
    ours = hosts(path).tables(trace, cluster)
    theirs = SharedBottleneck(profiles(), step_model(), 0).tables(trace, cluster)
    for column in ("speed", "locality", "communication"):
        one, other = getattr(ours, column), getattr(theirs, column)
        assert_array_equal(one[ours.profile], other[theirs.profile])
    demand = theirs.demand[theirs.profile]
    assert_array_equal(ours.demand[ours.profile], np.pad(demand, ((0, 0), (0, 2))))
    assert (ours.demand[:, GPU_TIME] > 0.0).any()  # in the tables, but not read
    rows = ours.row[ours.profile, 0]
    assert {(p, r) for p, r in zip(theirs.profile, rows, strict=True)} == {
        (p, r) for p in range(3) for r in range(2)
    }  # a row is drawn whatever the profile is


def test_processors_prepare_the_inputs_of_a_node(path: Path) -> None:
    """Each GPU of `hungry` asks for half of the only core: two for all of it, three for 1.5."""
    trace = named_trace(["hungry", "hungry", "mute", "hungry"], [1, 1, 1, 1])
    simulator = arrived(hosts(path, cores=1), Cluster.uniform(2, 4), trace)
    assert play(simulator, {job: [(0, 1)] for job in range(3)}) == [1.0, 1.0, 1.0, 0.0]
    rates = play(simulator, {3: [(0, 1)]})
    assert rates == pytest.approx([1 / 1.5, 1 / 1.5, 1.0, 1 / 1.5])
    assert play(simulator, {0: None}) == [0.0, 1.0, 1.0, 1.0]


def test_gangs_on_several_racks_share_the_uplinks(path: Path) -> None:
    """Between racks `chatty` sends 100 bytes in 3 s: two thirds of the uplink of 50 bytes/s."""
    trace, cluster = named_trace(["chatty"] * 3, [2] * 3), Cluster.uniform(4, 4, nodes_per_rack=2)
    simulator = arrived(hosts(path, uplink=50.0), cluster, trace)
    near, far = 1.1 / 2.0, 1.1 / 3.0
    # The second stays in its rack; on node 0 both ask for the whole port.
    alone = play(simulator, {0: [(0, 1), (2, 1)], 1: [(0, 1), (1, 1)]})
    assert alone == pytest.approx([far, near, 0.0])
    rates = play(simulator, {2: [(1, 1), (3, 1)]})  # no node with the first, but both racks
    assert rates == pytest.approx([far / (4 / 3), near, far / (4 / 3)])
    assert play(simulator, {2: None}) == alone


def test_pairs_may_be_predicted(path: Path) -> None:
    def predicted(models: Sequence[str]) -> np.ndarray:
        return np.full((len(models), len(models)), 0.5) + 0.25 * (np.array(models) == "b")

    trace, cluster = named_trace(["mute", "mute"], [1, 1]), Cluster.uniform(1, 1)
    measured, learned = (hosts(path, predicted=p).tables(trace, cluster) for p in (None, predicted))
    assert learned.pair.tolist() == [[0.5, 0.75], [0.5, 0.75]]
    assert_array_equal(learned.row, measured.row)


def test_it_can_be_believed_without_a_look_at_durations(path: Path) -> None:
    trace = Trace.of("t", range(0, 40, 4), [30] * 10, [1, 2] * 5)
    trace = replace(trace, gpu_milli=np.full(10, 500, np.int32))
    policy, cluster, model = joint_choice(), Cluster.uniform(2, 2), hosts(path)
    finish = replay(policy, cluster, trace, rates=model).finish
    policy.believed = model
    assert_array_equal(replay(policy, cluster, trace, rates=model).finish, finish)


@pytest.mark.parametrize(
    ("field", "value"),
    [("turns", 0.75), ("table", "x"), ("cores", 0), ("core_input", "3kg"), ("uplink", 49.0)],
)
def test_wrong_numbers_are_named(path: Path, field: str, value: Any) -> None:
    with refusal("no table of GPU type 'x'" if value == "x" else field):
        hosts(path, **{field: value})
