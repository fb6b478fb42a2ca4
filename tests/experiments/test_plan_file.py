"""Plan files: what is written is read back, and every fault names its record."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from envs.files import read_json
from envs.graphs.op_graph import Phase
from envs.step.allocated import uniform_allocation
from envs.step.order import OneFOneB
from envs.step.plans import MOST_WEIGHT, BandwidthAllocation, PairWeights, Plan
from envs.step.problem import StepProblem
from envs.step.rematerialise import Residence
from experiments.run.provenance import Provenance
from experiments.step.plan_file import (
    read_allocation,
    read_bandwidth,
    read_kept_plan,
    read_plan,
    read_weights,
    write_plan,
)
from tests.refusal import refusal

Document = dict[str, Any]


@pytest.fixture
def path(tmp_path: Path, plan: Plan, problem: StepProblem) -> Path:
    file = tmp_path / "plan.json"
    write_plan(file, plan, problem, Provenance(seed=3, inputs={"graph": "abc"}))
    return file


def change(path: Path, edit: Callable[[Document], object]) -> None:
    document = read_json(path)
    edit(document)
    path.write_text(json.dumps(document))


def test_a_plan_survives_the_round_trip(path: Path, plan: Plan, problem: StepProblem) -> None:
    read = read_plan(path, problem, OneFOneB())
    assert_array_equal(read.placement.device, plan.placement.device)
    assert_array_equal(read.order, plan.order)


def test_the_file_tells_where_it_comes_from(path: Path) -> None:
    document = read_json(path)
    assert document["schema_version"] == 1
    assert document["units"]["time"] == "s"
    origin = document["provenance"]
    assert origin["seed"] == 3
    assert origin["inputs_sha256"] == {"graph": "abc"}
    assert {"package_version", "git_commit", "command", "created"} <= origin.keys()


def test_without_an_order_the_rule_gives_it(path: Path, plan: Plan, problem: StepProblem) -> None:
    change(path, lambda document: document.pop("order"))
    read = read_plan(path, problem, OneFOneB())
    assert_array_equal(read.order, OneFOneB()(problem.graph, plan.placement.device))


def test_graph_and_topology_may_be_left_out(path: Path, problem: StepProblem) -> None:
    change(path, lambda document: (document.pop("graph"), document.pop("topology")))
    assert read_plan(path, problem, OneFOneB()).violations(problem) == []


FAULTS: dict[str, tuple[Callable[[Document], object], str, str]] = {
    "unknown operator": (
        lambda d: d["placement"].update(ghost="server0/V100-16GB/0"), "ghost", "placement",
    ),
    "unknown device": (
        lambda d: d["placement"].update({"forward.0.0": "gpu9"}), "forward.0.0", "placement",
    ),
    "unplaced operator": (
        lambda d: d["placement"].pop("forward.0.3"), "forward.0.3", "placement",
    ),
    "operator ordered twice": (lambda d: d["order"].append("update.0"), "update.0", "order"),
    "operator not ordered": (lambda d: d["order"].remove("update.0"), "update.0", "order"),
    "unknown operator in the order": (
        lambda d: d["order"].__setitem__(0, "ghost"), "ghost", "order",
    ),
    "consumer before producer": (lambda d: d["order"].reverse(), "", "order"),
    "another kind of file": (lambda d: d.update(kind="meshwright.result"), "", "kind"),
    "another version": (lambda d: d.update(schema_version=99), "", "schema_version"),
    "another graph": (lambda d: d["graph"].update(sha256="0" * 64), "", "graph"),
    "another topology": (lambda d: d.update(topology="torus"), "", "topology"),
    "placement of the wrong type": (lambda d: d.update(placement=[1, 2]), "", "placement"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_names_file_record_and_field(fault: str, path: Path, problem: StepProblem) -> None:
    edit, record, field = FAULTS[fault]
    change(path, edit)
    with refusal() as caught:
        read_plan(path, problem, OneFOneB())
    assert str(path) in str(caught.value)
    assert caught.value.field == field
    if record:
        assert caught.value.record == record


def test_an_operator_placed_twice_is_a_fault(path: Path, problem: StepProblem) -> None:
    text = path.read_text().replace('"forward.0.1":', '"forward.0.0":')
    path.write_text(text)
    with refusal("stands twice"):
        read_plan(path, problem, OneFOneB())


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"kind": 3}', "\x00"])
def test_what_is_no_plan_is_refused(content: str, tmp_path: Path, problem: StepProblem) -> None:
    file = tmp_path / "plan.json"
    file.write_text(content)
    with refusal(str(file)):
        read_plan(file, problem, OneFOneB())


def test_a_missing_file_is_named(tmp_path: Path, problem: StepProblem) -> None:
    with refusal("cannot be read"):
        read_plan(tmp_path / "none.json", problem, OneFOneB())


@pytest.fixture
def shared(tmp_path: Path, plan: Plan, problem: StepProblem) -> Path:
    """A plan file with bandwidth; the topology has one link each way between its two servers."""
    file = tmp_path / "shared.json"
    rates = uniform_allocation(problem.topology.network)
    write_plan(file, plan, problem, Provenance(seed=3), rates)
    return file


def test_bandwidth_survives_the_round_trip(
    shared: Path, path: Path, plan: Plan, problem: StepProblem
) -> None:
    network = problem.topology.network
    read = read_bandwidth(shared, network)
    assert read is not None
    assert_array_equal(read.rate, uniform_allocation(network).rate)
    assert read_json(shared)["schema_version"] == 2
    assert_array_equal(read_plan(shared, problem, OneFOneB()).order, plan.order)
    assert read_bandwidth(path, network) is None


def test_a_channel_that_is_left_out_gets_nothing(shared: Path, problem: StepProblem) -> None:
    network = problem.topology.network
    change(shared, lambda document: document["bandwidth"].pop(network.channel_names[0]))
    read = read_bandwidth(shared, network)
    assert read is not None
    assert read.rate[0] == 0.0
    assert (read.rate[1:] > 0.0).all()


CHANNEL = "server0/nic0 -> switch -> server1/nic0"
BANDWIDTH_FAULTS: dict[str, tuple[Callable[[Document], object], str, str, str]] = {
    "unknown channel": (lambda d: d["bandwidth"].update(ghost=1.0), "ghost", "bandwidth", CHANNEL),
    "negative": (
        lambda d: d["bandwidth"].update({CHANNEL: -1}), CHANNEL, "bandwidth", "-1 is not",
    ),
    "infinite": (
        lambda d: d["bandwidth"].update({CHANNEL: np.inf}), CHANNEL, "bandwidth", "inf is not",
    ),
    "not a number": (
        lambda d: d["bandwidth"].update({CHANNEL: np.nan}), CHANNEL, "bandwidth", "nan is not",
    ),
    "a text": (
        lambda d: d["bandwidth"].update({CHANNEL: "1GB/s"}), CHANNEL, "bandwidth", "'1GB/s'",
    ),
    "true": (lambda d: d["bandwidth"].update({CHANNEL: True}), CHANNEL, "bandwidth", "True"),
    "more than a float holds": (
        lambda d: d["bandwidth"].update({CHANNEL: 10**400}), CHANNEL, "bandwidth", "is not",
    ),
    "a link over its capacity": (
        lambda d: d["bandwidth"].update({CHANNEL: 1e12}), "server0/nic0 -> switch", "bandwidth",
        "bytes/s too many",
    ),
    "a list": (lambda d: d.update(bandwidth=[1.0]), "", "bandwidth", "is not a mapping"),
    "none": (lambda d: d.update(bandwidth=None), "", "bandwidth", "is missing"),
    "another spelling": (
        lambda d: d.update(bandwith=d.pop("bandwidth")), "", "bandwith", "unknown key",
    ),
    "an older version": (
        lambda d: d.update(schema_version=1), "", "bandwidth", "needs schema_version 2",
    ),
    "a version that is no integer": (
        lambda d: d.update(schema_version=2.0), "", "schema_version", "2.0 is not",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", BANDWIDTH_FAULTS)
def test_a_fault_of_bandwidth_names_file_record_and_field(
    fault: str, shared: Path, problem: StepProblem
) -> None:
    edit, record, field, words = BANDWIDTH_FAULTS[fault]
    change(shared, edit)
    with refusal() as caught:
        read_bandwidth(shared, problem.topology.network)
    assert str(shared) in str(caught.value)
    assert words in str(caught.value)
    assert caught.value.field == field
    assert (caught.value.record or "") == record


def test_a_channel_that_stands_twice_is_a_fault(shared: Path, problem: StepProblem) -> None:
    line = f'"{CHANNEL}": 1.0, "{CHANNEL}":'
    shared.write_text(shared.read_text().replace(f'"{CHANNEL}":', line))
    with refusal("stands twice"):
        read_bandwidth(shared, problem.topology.network)


def test_weights_survive_the_round_trip(
    tmp_path: Path, shared: Path, path: Path, plan: Plan, problem: StepProblem
) -> None:
    topology, file = problem.topology, tmp_path / "weighed.json"
    weights = PairWeights.fair(topology.num_devices)
    weights.weight[0, 1], weights.weight[1, 0] = 7, MOST_WEIGHT
    write_plan(file, plan, problem, Provenance(seed=3), weights)
    assert read_json(file)["schema_version"] == 4
    assert len(read_json(file)["weights"]) == 2
    read = read_allocation(file, topology)
    assert isinstance(read, PairWeights)
    assert_array_equal(read.weight, weights.weight)
    assert isinstance(read_allocation(shared, topology), BandwidthAllocation)
    assert read_allocation(path, topology) is None
    first, second, *_ = topology.device_names
    faults: dict[str, Callable[[Document], object]] = {
        "unknown pair": lambda d: d["weights"].update({"a -> b": 2}),
        "4097": lambda d: d["weights"].update({f"{first} -> {second}": 4097}),
        "1.5 is not an integer": lambda d: d["weights"].update({f"{first} -> {second}": 1.5}),
        "needs schema_version 4": lambda d: d.update(schema_version=1),
        "stands beside 'bandwidth'": lambda d: d.update(bandwidth={}),
    }
    for message, fault in faults.items():
        write_plan(file, plan, problem, Provenance(seed=3), weights)
        change(file, fault)
        with refusal() as error:
            read_weights(file, topology)
        assert message in str(error.value)
        assert error.value.field == "weights"


@pytest.fixture
def moved(tmp_path: Path, plan: Plan, problem: StepProblem) -> Path:
    """A plan file whose first forward operator is computed again and whose second is offloaded."""
    forward = np.flatnonzero(problem.graph.phase == Phase.FORWARD)
    residence = np.zeros(problem.graph.num_operators, dtype=np.int64)
    residence[forward[0]], residence[forward[1]] = Residence.RECOMPUTE, Residence.OFFLOAD
    write_plan(
        tmp_path / "moved.json", replace(plan, residence=residence), problem, Provenance(seed=0)
    )
    return tmp_path / "moved.json"


def test_what_is_not_kept_survives_the_round_trip(moved: Path, problem: StepProblem) -> None:
    document = read_json(moved)
    assert document["schema_version"] == 3
    assert sorted(document["residence"].values()) == ["offload", "recompute"]
    read = read_plan(moved, problem, OneFOneB())
    assert read.residence is not None
    assert sorted(read.residence[read.residence != 0].tolist()) == [1, 2]
    with refusal("not known here"):
        read_kept_plan(moved, problem, OneFOneB())
    change(moved, lambda document: document["residence"].clear())
    assert not np.any(read_plan(moved, problem, OneFOneB()).residence)


RESIDENCE_FAULTS: dict[str, tuple[Callable[[Document], object], str]] = {
    "an older version": (lambda d: d.update(schema_version=1), "needs schema_version 3"),
    "missing": (lambda d: d.pop("residence"), "is missing"),
    "no mapping": (lambda d: d.update(residence=[]), "is not a mapping"),
    "an unknown operator": (lambda d: d["residence"].update(nobody="keep"), "unknown operator"),
    "an unknown move": (
        lambda d: d["residence"].update(dict.fromkeys(d["residence"], "swap")),
        "'swap' is not 'keep', 'recompute' or 'offload'",
    ),
    "a backward operator": (
        lambda d: d["residence"].update(dict.fromkeys(d["placement"], "recompute")),
        "is no forward operator",
    ),
}


@pytest.mark.parametrize("fault", RESIDENCE_FAULTS)
def test_a_fault_of_residence_names_file_and_field(
    moved: Path, problem: StepProblem, fault: str
) -> None:
    edit, words = RESIDENCE_FAULTS[fault]
    change(moved, edit)
    with refusal() as caught:
        read_plan(moved, problem, OneFOneB())
    assert words in str(caught.value)
    assert "field 'residence'" in str(caught.value)
