"""Plan files: what is written is read back, and every fault names its record."""

from __future__ import annotations

import json
from collections.abc import Sequence
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


@pytest.fixture
def path(tmp_path: Path, plan: Plan, problem: StepProblem) -> Path:
    file = tmp_path / "plan.json"
    write_plan(file, plan, problem, Provenance(seed=3, inputs={"graph": "abc"}))
    return file


GONE = object()


def change(path: Path, where: Sequence[str | int], what: object = GONE) -> None:
    """Put a value, what a function makes of it, or nothing in a place of the file."""
    document: Any = read_json(path)
    at, (*way, last) = document, where
    for key in way:
        at = at[key]
    if what is GONE:
        del at[last]
    else:
        at[last] = what(at[last]) if callable(what) else what
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
    change(path, ["order"])
    read = read_plan(path, problem, OneFOneB())
    assert_array_equal(read.order, OneFOneB()(problem.graph, plan.placement.device))


def test_graph_and_topology_may_be_left_out(path: Path, problem: StepProblem) -> None:
    for key in ("graph", "topology"):
        change(path, [key])
    assert read_plan(path, problem, OneFOneB()).violations(problem) == []


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
    change(shared, ["bandwidth", network.channel_names[0]])
    read = read_bandwidth(shared, network)
    assert read is not None
    assert read.rate[0] == 0.0
    assert (read.rate[1:] > 0.0).all()


CHANNEL = "server0/nic0 -> switch -> server1/nic0"


def test_a_channel_that_stands_twice_is_a_fault(shared: Path, problem: StepProblem) -> None:
    line = f'"{CHANNEL}": 1.0, "{CHANNEL}":'
    shared.write_text(shared.read_text().replace(f'"{CHANNEL}":', line))
    with refusal("stands twice"):
        read_bandwidth(shared, problem.topology.network)


@pytest.fixture
def weighed(tmp_path: Path, plan: Plan, problem: StepProblem) -> Path:
    """A plan file in which the transfers between the first two devices have weights."""
    weights = PairWeights.fair(problem.topology.num_devices)
    weights.weight[0, 1], weights.weight[1, 0] = 7, MOST_WEIGHT
    write_plan(tmp_path / "weighed.json", plan, problem, Provenance(seed=3), weights)
    return tmp_path / "weighed.json"


def test_weights_survive_the_round_trip(
    weighed: Path, shared: Path, path: Path, problem: StepProblem
) -> None:
    topology = problem.topology
    assert read_json(weighed)["schema_version"] == 4
    assert sorted(read_json(weighed)["weights"].values()) == [7, MOST_WEIGHT]
    read = read_allocation(weighed, topology)
    assert isinstance(read, PairWeights)
    assert (read.weight[0, 1], read.weight[1, 0]) == (7, MOST_WEIGHT)
    assert isinstance(read_allocation(shared, topology), BandwidthAllocation)
    assert read_allocation(path, topology) is None


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
    change(moved, ["residence"], {})
    assert not np.any(read_plan(moved, problem, OneFOneB()).residence)


PAIR = "server0/V100-16GB/0 -> server0/V100-16GB/1"
Fault = tuple[str, Sequence[str | int], object, str, str]
FAULTS: list[Fault] = [  # the file, where it becomes what, the record that is named, what is said
    ("path", ["placement", "ghost"], "server0/V100-16GB/0", "ghost", "unknown operator"),
    ("path", ["placement", "forward.0.0"], "gpu9", "forward.0.0", "gpu9"),
    ("path", ["placement", "forward.0.3"], GONE, "forward.0.3", "is not placed"),
    ("path", ["placement"], [1, 2], "", "is not a mapping"),
    ("path", ["order"], lambda ops: [*ops, "update.0"], "update.0", "stands twice"),
    ("path", ["order"], lambda ops: [x for x in ops if x != "update.0"], "update.0", "not ordered"),
    ("path", ["order", 0], "ghost", "ghost", "unknown operator"),
    ("path", ["order"], lambda ops: ops[::-1], "forward.0.1", "before its input"),
    ("path", ["kind"], "meshwright.result", "", "meshwright.result"),
    ("path", ["schema_version"], 99, "", "99"),
    ("path", ["graph", "sha256"], "0" * 64, "", "another graph"),
    ("path", ["topology"], "torus", "", "torus"),
    ("shared", ["bandwidth", "ghost"], 1.0, "ghost", CHANNEL),
    ("shared", ["bandwidth", CHANNEL], -1, CHANNEL, "-1 is not"),
    ("shared", ["bandwidth", CHANNEL], np.inf, CHANNEL, "inf is not"),
    ("shared", ["bandwidth", CHANNEL], np.nan, CHANNEL, "nan is not"),
    ("shared", ["bandwidth", CHANNEL], "1GB/s", CHANNEL, "'1GB/s'"),
    ("shared", ["bandwidth", CHANNEL], True, CHANNEL, "True"),
    ("shared", ["bandwidth", CHANNEL], 10**400, CHANNEL, "is not"),
    ("shared", ["bandwidth", CHANNEL], 1e12, "server0/nic0 -> switch", "bytes/s too many"),
    ("shared", ["bandwidth"], [1.0], "", "is not a mapping"),
    ("shared", ["bandwidth"], None, "", "is missing"),
    ("shared", ["bandwith"], {}, "", "unknown key"),
    ("shared", ["schema_version"], 2.0, "", "2.0 is not"),
    ("weighed", ["weights", "a -> b"], 2, "a -> b", "unknown pair"),
    ("weighed", ["weights", PAIR], MOST_WEIGHT + 1, PAIR, str(MOST_WEIGHT + 1)),
    ("weighed", ["weights", PAIR], 1.5, PAIR, "1.5 is not an integer"),
    ("moved", ["residence"], GONE, "", "is missing"),
    ("moved", ["residence"], [], "", "is not a mapping"),
    ("moved", ["residence", "nobody"], "keep", "nobody", "unknown operator"),
    ("moved", ["residence", "forward.0.0"], "swap", "forward.0.0",
     "'swap' is not 'keep', 'recompute' or 'offload'"),
    ("moved", ["residence", "backward.0.0"], "recompute", "backward.0.0", "no forward operator"),
]  # fmt: skip


@pytest.mark.parametrize(("file", "where", "what", "record", "words"), FAULTS)
def test_a_fault_names_file_record_and_field(
    file: str,
    where: Sequence[str | int],
    what: object,
    record: str,
    words: str,
    problem: StepProblem,
    request: pytest.FixtureRequest,
) -> None:
    path = request.getfixturevalue(file)
    change(path, where, what)
    with refusal() as caught:
        read_plan(path, problem, OneFOneB())
        read_allocation(path, problem.topology)
    assert (str(caught.value.file), caught.value.record or "") == (str(path), record)
    assert caught.value.field == where[0]
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("file", "field", "version"),
    [("shared", "bandwidth", 2), ("moved", "residence", 3), ("weighed", "weights", 4)],
)
def test_an_older_version_has_not_what_a_later_one_brings(
    file: str, field: str, version: int, problem: StepProblem, request: pytest.FixtureRequest
) -> None:
    path = request.getfixturevalue(file)
    change(path, ["schema_version"], 1)
    with refusal(f"'{field}'.* needs schema_version {version}"):
        read_plan(path, problem, OneFOneB())


def test_transfers_have_weights_or_rates(weighed: Path, problem: StepProblem) -> None:
    change(weighed, ["bandwidth"], {})
    with refusal("'weights'.* stands beside 'bandwidth'"):
        read_weights(weighed, problem.topology)
