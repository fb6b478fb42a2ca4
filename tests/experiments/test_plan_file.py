"""Plan files: what is written is read back, and every fault names its record."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from envs.errors import InputError
from envs.plans import Plan
from envs.simulation.order import OneFOneB
from envs.simulation.problem import StepProblem
from experiments.plan_file import read_plan, write_plan
from experiments.provenance import Provenance

Document = dict[str, Any]


@pytest.fixture
def path(tmp_path: Path, plan: Plan, problem: StepProblem) -> Path:
    file = tmp_path / "plan.json"
    write_plan(file, plan, problem, Provenance(seed=3, inputs={"graph": "abc"}))
    return file


def change(path: Path, edit: Callable[[Document], object]) -> None:
    document = json.loads(path.read_text())
    edit(document)
    path.write_text(json.dumps(document))


def test_a_plan_survives_the_round_trip(path: Path, plan: Plan, problem: StepProblem) -> None:
    read = read_plan(path, problem, OneFOneB())
    np.testing.assert_array_equal(read.placement.device, plan.placement.device)
    np.testing.assert_array_equal(read.order, plan.order)


def test_the_file_tells_where_it_comes_from(path: Path) -> None:
    document = json.loads(path.read_text())
    assert document["schema_version"] == 1
    assert document["units"]["time"] == "s"
    origin = document["provenance"]
    assert origin["seed"] == 3
    assert origin["inputs_sha256"] == {"graph": "abc"}
    assert {"package_version", "git_commit", "command", "created"} <= origin.keys()


def test_without_an_order_the_rule_gives_it(path: Path, plan: Plan, problem: StepProblem) -> None:
    change(path, lambda document: document.pop("order"))
    read = read_plan(path, problem, OneFOneB())
    np.testing.assert_array_equal(read.order, OneFOneB()(problem.graph, plan.placement.device))


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
    with pytest.raises(InputError) as caught:
        read_plan(path, problem, OneFOneB())
    assert str(path) in str(caught.value)
    assert caught.value.field == field
    if record:
        assert caught.value.record == record


def test_an_operator_placed_twice_is_a_fault(path: Path, problem: StepProblem) -> None:
    text = path.read_text().replace('"forward.0.1":', '"forward.0.0":')
    path.write_text(text)
    with pytest.raises(InputError, match="stands twice"):
        read_plan(path, problem, OneFOneB())


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"kind": 3}', "\x00"])
def test_what_is_no_plan_is_refused(content: str, tmp_path: Path, problem: StepProblem) -> None:
    file = tmp_path / "plan.json"
    file.write_text(content)
    with pytest.raises(InputError, match=str(file)):
        read_plan(file, problem, OneFOneB())


def test_a_missing_file_is_named(tmp_path: Path, problem: StepProblem) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_plan(tmp_path / "none.json", problem, OneFOneB())
