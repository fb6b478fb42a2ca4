"""Bad input of every kind: one line that names what is wrong, and nothing half written.

Where a fault is found decides how it is tested: composing a command line, building an option,
reading a file. One run of each family shows the line, the exit code and the folder.
"""

from __future__ import annotations

import gzip
import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from layered_step import layered_step
from refusals import Refuses, command_refused, option_of, option_refused, refused, write_traces
from test_flows_app import TEXT as FLOWS
from test_measured_tables import TABLES as MEASURED
from test_plan import CHAIN
from test_trace_app import ITP, PHILLY

from agents.step.problems import require_fit
from envs.files import read_json
from envs.graphs.storage import save_graph
from experiments.step.objectives import Makespan
from experiments.step.plan_file import read_plan
from experiments.step.planning import planner_of
from experiments.step.problem import (
    LoadedProblem,
    communication_of,
    load_problem,
    order_rule_of,
    topology_file,
)
from tests.envs.topologies import topology_text
from tests.strength import at_full_strength

Document = dict[str, Any]
Edit = Callable[[Document], object]
ENV = option_of("env=placement")["env"]
NODES = {"env": ENV, **option_of("topology=mixed_v100_p100"), **option_of("cost=by_graph")}
OTHER = {"_target_": "fractions.Fraction"}  # an object that is nothing here
# Of a family the commands, and of a command the words of its line.
REFUSED = yaml.safe_load(Path(__file__).with_name("refused.yaml").read_text(encoding="utf-8"))
EVERY = 1 if at_full_strength() else 2  # of the commands of a family


@pytest.fixture
def work(work: Path) -> Path:
    """A folder with a graph in two forms, a topology file, a plan and traces; the working one."""
    graph = layered_step(3, 2)
    save_graph(graph, work / "graph.npz")
    save_graph(graph, work / "graph.json")
    (work / "cluster.yaml").write_text(topology_text("mixed_v100_p100"))
    placement = dict.fromkeys(graph.op_names, "server0/V100-16GB/0")
    plan = {"kind": "meshwright.plan", "schema_version": 1, "placement": placement}
    (work / "plan.json").write_text(json.dumps(plan))
    (work / "folder.npz").mkdir()
    write_traces(work)
    (work / "chain.json").write_text(json.dumps(CHAIN))
    (work / "philly.csv").write_text(PHILLY)
    (work / "itp.csv.gz").write_bytes(gzip.compress(ITP.encode()))
    (work / "wrong.csv").write_text(FLOWS.replace("0,1,1676.8", "0,2,1676.8"))
    for kind, text in MEASURED.items():
        (work / f"{kind}.csv").write_text(text)
    return work


def loaded(path: str = "graph.npz", **nodes: object) -> LoadedProblem:
    """The problem of a graph file; `nodes` take the place of other parts."""
    stored = {"_target_": "experiments.step.problem.StoredGraph", "path": path}
    return load_problem(**{"graph": stored, **NODES, **nodes})  # type: ignore[arg-type]


@pytest.mark.parametrize("command", list(REFUSED["runs"])[::EVERY])
def test_a_run_is_refused_by_name(command: str, work: Path, refuses: Refuses) -> None:
    app, *arguments = shlex.split(command)
    refuses(app, arguments, *REFUSED["runs"][command])
    assert not list(work.glob("outputs/*/*"))


@pytest.mark.parametrize("command", list(REFUSED["commands"])[::EVERY])
def test_a_command_is_refused_by_name(command: str, work: Path) -> None:
    app, *arguments = shlex.split(command)
    command_refused(app, arguments, REFUSED["commands"][command])


@pytest.mark.parametrize("text", REFUSED["options"])
def test_an_option_is_refused_by_name(text: str) -> None:
    option_refused(text, REFUSED["options"][text])


def test_what_describes_something_else_is_refused_by_its_key(work: Path) -> None:
    refused(lambda: loaded(topology=OTHER), ["'topology'", "no topology"])
    refused(lambda: loaded(cost=OTHER), ["'cost'", "no cost model"])
    refused(lambda: loaded(graph=OTHER), ["'graph'", "Fraction"])
    refused(lambda: communication_of(OTHER), ["'communication'"])
    refused(lambda: order_rule_of(OTHER), ["'order'"])
    refused(lambda: planner_of(OTHER, "agent", Makespan()), ["'agent'", "does not plan"])
    from_graph = option_of("topology=from_graph")["topology"]
    refused(lambda: loaded(topology=from_graph), ["'topology'", "without devices"])


def test_a_folder_is_no_file(work: Path) -> None:
    refused(lambda: loaded("folder.npz"), ["folder.npz", "cannot be read"])
    rule = order_rule_of(option_of("order=one_f_one_b")["order"])
    refused(
        lambda: read_plan("folder.npz", loaded().problem, rule), ["folder.npz", "cannot be read"]
    )


def repeat_an_operator(document: Document) -> None:
    document["operators"][1]["name"] = document["operators"][0]["name"]


def close_a_cycle(document: Document) -> None:
    last, first = (document["operators"][index]["name"] for index in (-1, 0))
    document["tensors"].append(
        {**document["tensors"][0], "producer": last, "consumers": [first]}
    )  # fmt: skip


GRAPHS: dict[str, tuple[Edit, list[str]]] = {
    "cycle": (close_a_cycle, ["forward.0.0", "update.2", "topological"]),
    "negative cost": (lambda d: d["operators"][1].update(flop=-1), ["forward.0.1", "flop", "-1"]),
    "missing cost": (lambda d: d["operators"][1].pop("flop"), ["operators[1]", "flop", "missing"]),
    "NaN": (lambda d: d["operators"][1].update(flop=np.nan), ["operators[1]", "flop", "nan"]),
    "unknown node": (
        lambda d: d["tensors"][1].update(consumers=["ghost"]), ["tensors[1]", "consumers", "ghost"],
    ),
    "duplicate id": (repeat_an_operator, ["operators[1]", "name", "forward.0.0"]),
    "no operators": (
        lambda d: d.update(operators=[], tensors=[], parameters=[]), ["no operators"],
    ),
    "too large a model": (
        lambda d: d["parameters"][0].update(parameter_bytes=1e12),
        ["does not fit", "bytes of parameters and state", "too many"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", GRAPHS)
def test_a_graph_file_is_refused_with_record_and_field(fault: str, work: Path) -> None:
    edit, words = GRAPHS[fault]
    document = read_json(work / "graph.json")
    edit(document)
    (work / "graph.json").write_text(json.dumps(document))
    refused(lambda: require_fit(loaded("graph.json").problem), words)


DEEP = b'{"format": "meshwright.graph", "a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
CONTENTS = {
    "empty": (b"", "is empty"),
    "binary garbage": (bytes(range(256)), "no known format"),
    "no whole archive": (b"PK" + bytes(100), "truncated or damaged"),
    "truncated gzip": (b"\x1f\x8b\x08\x00\x00", "truncated or damaged"),
    "nested too deeply": (DEEP, "not JSON"),
}


@pytest.mark.parametrize("content", CONTENTS)
def test_a_file_that_is_no_graph_is_refused(content: str, work: Path) -> None:
    data, words = CONTENTS[content]
    (work / "graph.npz").write_bytes(data)
    refused(loaded, ["graph.npz: ", words])


TOPOLOGIES: dict[str, tuple[Edit, list[str]]] = {
    "unknown device": (lambda d: d["servers"][0].update(device="V9"), ["device", "V9", "H100"]),
    "wrong unit": (
        lambda d: d["network"].update(bandwidth="25GFoo"), ["network.bandwidth", "25GFoo"],
    ),
    "missing key": (lambda d: d["network"].pop("latency"), ["network.latency", "missing"]),
    "servers of null": (lambda d: d.update(servers=None), ["topology.servers", "not a list"]),
    "a server that is a text": (lambda d: d.update(servers=["a"]), ["topology.servers[0]", "'a'"]),
    "a server without target": (
        lambda d: d["servers"][1].pop("_target_"), ["topology.servers[1]", "_target_"],
    ),
    "unknown interpolation": (lambda d: d.update(name="${nope}"), ["topology.name", "${"]),
    "no importable target": (lambda d: d.update(_target_=5), ["topology._target_", "5"]),
}  # fmt: skip


@pytest.mark.parametrize("fault", TOPOLOGIES)
def test_a_topology_file_is_refused_with_its_key(fault: str, work: Path) -> None:
    edit, words = TOPOLOGIES[fault]
    document = yaml.safe_load((work / "cluster.yaml").read_text())
    edit(document)
    (work / "cluster.yaml").write_text(yaml.safe_dump(document))
    refused(lambda: topology_file("cluster.yaml"), ["cluster.yaml", *words])


def test_a_key_that_stands_twice_in_a_topology_file_is_refused(work: Path) -> None:
    with (work / "cluster.yaml").open("a") as file:
        file.write("name: again\n")
    refused(lambda: topology_file("cluster.yaml"), ["cluster.yaml", "line ", "'name'", "twice"])


def test_a_node_of_a_topology_file_that_contains_itself_is_refused(work: Path) -> None:
    (work / "cluster.yaml").write_text("_target_: a.b\nservers: &again\n- [*again]\n")
    refused(lambda: topology_file("cluster.yaml"), ["cluster.yaml", "line 2", "itself"])


def test_a_plan_with_a_hash_of_the_wrong_type_is_refused(work: Path) -> None:
    document = read_json(work / "plan.json")
    (work / "plan.json").write_text(json.dumps({**document, "graph": {"sha256": [1]}}))
    rule = order_rule_of(option_of("order=one_f_one_b")["order"])
    words = ["plan.json: ", "field 'graph'", "[1]"]
    refused(lambda: read_plan("plan.json", loaded().problem, rule), words)


def test_files_at_fault_are_told_by_the_app(work: Path, refuses: Refuses) -> None:
    (work / "cluster.yaml").write_text("_target_: a.b\n")
    asked = ["graph=graph.npz", "topology=cluster.yaml"]
    refuses("evaluate", asked, "cluster.yaml", "_target_")
    (work / "graph.npz").write_bytes(b"")
    refuses("evaluate", asked[:1], "graph.npz: ", "is empty")


def test_the_folder_of_another_run_is_not_taken(work: Path, refuses: Refuses) -> None:
    (work / "old").mkdir()
    (work / "old" / "config.yaml").write_text("seed: 1\n")
    asked = ["graph=graph.npz", "hydra.run.dir=old"]
    refuses("evaluate", asked, "old: holds a run already")
