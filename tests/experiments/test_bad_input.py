"""Bad input of every kind, through the apps: one line, exit code 2, nothing half written."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from layered_step import layered_step

from envs.graphs.storage import save_graph
from experiments.run.app import run_app
from tests.paths import CONF

APPS = {
    "benchmark": ("BenchmarkConfig", "benchmark"),
    "capture": ("CaptureConfig", "capture"),
    "step.evaluate_step": ("EvaluateConfig", "evaluate_step"),
    "learning.export_run": ("ExportConfig", "export_run"),
    "learning.main_job": ("MainConfig", "main_job"),
    "plan": ("PlanConfig", "plan"),
    "plot": ("PlotConfig", "plot"),
    "learning.train_step": ("TrainConfig", "train_step"),
}
Document = dict[str, Any]
Edit = Callable[[Document], object]


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a graph in two forms, a topology file and a plan; the working directory."""
    graph = layered_step(3, 2)
    save_graph(graph, tmp_path / "graph.npz")
    save_graph(graph, tmp_path / "graph.json")
    (tmp_path / "cluster.yaml").write_text((CONF / "topology/mixed_v100_p100.yaml").read_text())
    placement = dict.fromkeys(graph.op_names, "server0/V100-16GB/0")
    plan = {"kind": "meshwright.plan", "schema_version": 1, "placement": placement}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    (tmp_path / "folder.npz").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["app"])
    return tmp_path


def refused(
    work: Path, app: str, arguments: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> str:
    """The one line that `app` refuses `arguments` with; nothing new may lie in the folder."""
    where = next((name for name in APPS if name.partition(".")[2].startswith(app)), app)
    module = import_module(f"experiments.{where}")
    schema, task = (getattr(module, name) for name in APPS[where])
    before = {path for path in work.rglob("*") if path.is_file()}
    capsys.readouterr()
    code = run_app(app, schema, task, list(arguments))
    out, err = capsys.readouterr()
    assert code == 2, err
    assert out == ""
    assert err.startswith("error: ")
    assert len(err.strip().splitlines()) == 1
    assert {path for path in work.rglob("*") if path.is_file()} == before
    return err


COMMANDS: dict[str, list[str]] = {
    "evaluate grph=gpt2": ["'grph'", "graph", "topology"],
    "evaluate graph.batc=1": ["'graph.batc'", "batch", "sequence"],
    "evaluate env.starts.complete=1": ["'env.starts.complete'", "completed"],
    "evaluate topology.servers.0.cout=1": ["'topology.servers.0.cout'", "count"],
    "evaluate topology.servers.9.count=1": ["'topology.servers.9'", "0, 1"],
    "evaluate topology.servers[0].count=1": ["topology.servers[0].count=1", "key=value"],
    "evaluate seed=1,2": ["'seed=1,2'", "several"],
    "evaluate env=nope": ["env=nope", "placement_toy"],
    "evaluate agent=null": ["agent=null", "heft", "annealing"],
    "evaluate cost=nope": ["cost=nope", "roofline"],
    "evaluate order=nope": ["order=nope", "one_f_one_b"],
    "train model=nope": ["model=nope", "message_passing"],
    "main agent@quick.heft=nope": ["agent@quick.heft=nope", "contiguous"],
    "main quick.heft=nope": ["'quick.heft'", "'nope'"],
    "main single_device=nope": ["'single_device'", "contiguous_speed"],
    "main budget_s=inf": ["'budget_s'", "inf"],
    "evaluate seed=-1": ["'seed'", "-1", "4294967295"],
    "evaluate agent=random agent.seed=-1": ["'agent.seed'", "-1"],
    "evaluate --frobnicate": ["--frobnicate", "--help"],
    "evaluate -m seed=1,2": ["'-m'", "--help"],
    "evaluate hydra.foo=1": ["hydra.foo"],
    "evaluate hydra.run.dir=plan.json": ["plan.json", "run folder"],
    "evaluate agent=checkpoint": ["'agent.checkpoint'", "missing"],
    "evaluate agent=checkpoint agent.checkpoint=null": ["'agent.checkpoint'", "None"],
    "evaluate graph=graph.npz agent=checkpoint agent.checkpoint=folder.npz": [
        "folder.npz/spec.json", "no such file",
    ],
    "evaluate agent=agents.placement.heft.Nope": ["agent._target_", "agents.placement.heft.Nope"],
    "evaluate graph=graph.npz agent=fractions.Fraction": ["'agent'", "neither plans nor acts"],
    "evaluate graph=graph.npz topology=fractions.Fraction": ["'topology'", "no topology"],
    "evaluate graph=graph.npz cost=fractions.Fraction": ["'cost'", "no cost model"],
    "evaluate graph=graph.npz communication=fractions.Fraction": ["'communication'"],
    "evaluate graph=fractions.Fraction": ["'graph'", "Fraction"],
    "evaluate graph=graph.npz agent=heft agent.groups=[0]": ["groups", "0 is below 1"],
    "plan graph=graph.npz agent=dp agent.ideals=0": ["ideals", "0 is below 1"],
    "plan graph=graph.npz agent=cp_sat agent.workers=257": ["workers", "1..256"],
    "plan graph=graph.npz agent=cp_sat agent.hint_seconds=nan": ["hint_seconds", "nan"],
    "plan graph=graph.npz agent=cp_sat agent.hint_limit=0": ["hint_limit", "0 is below 1"],
    "plan graph=graph.npz agent=local_search agent.workers=0": ["workers", "1..256"],
    "plan graph=graph.npz agent=milp agent.formulation.gap=nan": ["gap", "nan"],
    "plan graph=graph.npz agent=milp agent.formulation.at_once=0": ["at_once", "0 is below 1"],
    "capture graph.micro_batches=0": ["micro_batches", "0 is not a positive"],
    "capture graph.micro_batches=3": ["micro_batches", "does not divide", "32"],
    "capture graph.sequence=0": ["sequence", "0"],
    "capture graph.sequence=600": ["sequence", "600", "512"],
    "capture graph.dtype=int8": ["dtype", "int8", "bfloat16"],
    "capture graph.batch=": ["'graph.batch'", "integer"],
    "capture graph=graph.npz": ["'graph'", "no model"],
    "evaluate graph=folder.npz": ["folder.npz", "is a folder"],
    "evaluate graph=file graph.path=folder.npz": ["folder.npz", "cannot be read"],
    "evaluate graph=file": ["'graph.path'", "missing"],
    "plot": ["'plan'", "missing"],
    "plot graph=graph.npz plan=absent.json": ["absent.json", "cannot be read"],
    "evaluate graph=graph.npz plan=folder.npz": ["folder.npz", "cannot be read"],
    "train warm_start.budget_s=3": ["'warm_start.budget_s'", "no planner"],
    "train warm_start=planner warm_start.budget_s=0": ["'warm_start.budget_s'", "0"],
    "train graph=graph.npz warm_start=planner": ["'warm_start'", "PlacementEnv"],
    "train graph=graph.npz warm_start=planner training.budget_s=50": ["leaves nothing", "50"],
    "train graph=graph.npz training.draws=0": ["draws", "0 is below 1"],
    "train agent=heft": ["'training.ppo'", "Heft", "PPOSettings"],
    "train training.ppo=null": ["'training.ppo'", "None"],
    "train resume=absent": ["absent", "config.yaml"],
    "train graph=graph.npz env.starts.completed=7": ["completed", "7"],
    "train graph=graph.npz env.starts.attempts=0": ["attempts", "0"],
    "train graph=graph.npz env.passes=0": ["passes", "0"],
    "train graph=graph.npz env.max_groups=0": ["max_groups", "0"],
    "train graph=graph.npz model.initial_candidate_weights=abc": ["initial_candidate_weights"],
    "export": ["'run'", "missing"],
    "export run=absent": ["absent", "config.yaml"],
    "benchmark suite=seeds suite.seeds=[1]": ["suite.seeds'", "two or more"],
    "benchmark suite=seeds suite.seeds=[-1,2]": ["suite.seeds'", "-1"],
    "benchmark suite=seeds suite.app=plan": ["app", "main, train"],
    "benchmark suite=team +suite.job.budget_s=3": ["'budget_s'", "baseline_budget_s"],
    "train baseline_budget_s=0": ["'baseline_budget_s'", "0"],
    "benchmark suite=seeds +suite.job.grph=x": ["'grph'", "graph"],
    "benchmark suite=seeds +suite.job.graph=x": ["graph=x", "bert_large"],
    "plan grph=gpt2": ["'grph'", "graph", "budget_s"],
    "plan agent=nope": ["agent=nope", "local_search", "cp_sat"],
    "plan problem=": ["problem=", "max_load", "latency"],
    "plan graph=absent.json": ["absent.json", "no such file"],
    "plan graph=folder.npz": ["folder.npz", "is a folder"],
    "plan budget_s=nan": ["'budget_s'", "nan"],
    "plan budget_s=null": ["'budget_s'", "None"],
    "plan deterministic_limit=0.5": ["'deterministic_limit'", "0.5"],
    "plan problem.memory=null": ["'problem.memory'", "None", "true or false"],
    "plan agent=annealing agent.groups=2.5": ["'agent.groups'", "2.5", "integer"],
    "plan agent=m_sct agent.lp_seconds=[]": ["'agent.lp_seconds'", "[]", "number"],
    "plan agent=fusion_milp agent.levels=8": ["'agent.levels'", "8", "list"],
    "plan agent=fusion_milp agent.levels=[a]": ["'agent.levels[0]'", "'a'", "integer"],
    "plan agent=milp agent.formulation=abc": ["'agent.formulation'", "'abc'", "function"],
    "plan agent=milp agent.formulation=null": ["'agent.formulation'", "None", "function"],
    "plan agent=milp agent.warm_start=heft": ["'agent.warm_start'", "'heft'", "Planner"],
    "plan agent=milp agent.warm_start={_target_:fractions.Fraction}": [
        "'agent.warm_start'", "fractions.Fraction", "Planner",
    ],
    "plan agent=cp_sat agent.partition_hint=1": ["'agent.partition_hint'", "PartitionPlanner"],
    "plan agent=cp_sat agent.workers=true": ["'agent.workers'", "True", "integer"],
    "plan agent=local_search agent.partitions._target_=agents.placement.heft.Heft": [
        "'agent.partitions'", "Heft", "PartitionPlanner",
    ],
    "plan topology=own_devices topology.otherwise=3": ["'topology.otherwise'", "3", "Topology"],
    "plan graph=graph.npz topology=from_graph": ["'topology'", "without devices"],
    "plan graph=graph.npz agent=fractions.Fraction": ["'agent'", "does not plan"],
    "plan graph=graph.npz agent=heft problem=latency": ["'agent'", "does not plan", "latency"],
    "benchmark suit=placement": ["'suit'", "suite", "workers"],
    "benchmark suite=nope": ["suite=nope", "placement_quick", "step_time"],
    "benchmark suite=plan.json": ["plan.json", "_target_"],
    "benchmark suite=placement suite=nope": ["suite=nope"],
    "benchmark workers=0": ["'workers'", "0", "below 1"],
    "benchmark workers=nan": ["'workers'", "nan"],
    "benchmark seed=-1": ["'seed'", "-1"],
    "benchmark resume=absent": ["absent", "config.yaml"],
    "benchmark suite=search_ratio suite.unfused_limit_s=true": ["'suite.unfused_limit_s'", "True"],
    "benchmark suite=step_time suite.budget_s=-1": ["'suite'", "budget_s", "-1"],
    "benchmark suite=placement suite.best_known=[]": ["best_known"],
}  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_refused_by_name(
    command: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    app, *arguments = command.split()
    line = refused(work, app, arguments, capsys)
    for word in COMMANDS[command]:
        assert word in line


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
    "NaN": (lambda d: d["operators"][1].update(flop=np.nan), ["forward.0.1", "flop", "nan"]),
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
def test_a_graph_file_is_refused_with_record_and_field(
    fault: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit, words = GRAPHS[fault]
    document = json.loads((work / "graph.json").read_text())
    edit(document)
    (work / "graph.json").write_text(json.dumps(document))
    line = refused(work, "evaluate", ["graph=graph.json"], capsys)
    for word in words:
        assert word in line


DEEP = b'{"format": "meshwright.graph", "a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
CONTENTS = {
    "empty": (b"", "is empty"),
    "binary garbage": (bytes(range(256)), "no known format"),
    "no whole archive": (b"PK" + bytes(100), "truncated or damaged"),
    "truncated gzip": (b"\x1f\x8b\x08\x00\x00", "truncated or damaged"),
    "nested too deeply": (DEEP, "not JSON"),
}


@pytest.mark.parametrize("content", CONTENTS)
def test_a_file_that_is_no_graph_is_refused(
    content: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, words = CONTENTS[content]
    (work / "graph.npz").write_bytes(data)
    line = refused(work, "evaluate", ["graph=graph.npz"], capsys)
    assert "graph.npz: " in line
    assert words in line


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
    "unknown interpolation": (lambda d: d.update(name="${nope}"), ["nope"]),
    "no importable target": (lambda d: d.update(_target_=5), ["_target_", "'5'"]),
}  # fmt: skip


@pytest.mark.parametrize("fault", TOPOLOGIES)
def test_a_topology_file_is_refused_with_its_key(
    fault: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit, words = TOPOLOGIES[fault]
    document = yaml.safe_load((work / "cluster.yaml").read_text())
    edit(document)
    (work / "cluster.yaml").write_text(yaml.safe_dump(document))
    line = refused(work, "evaluate", ["graph=graph.npz", "topology=cluster.yaml"], capsys)
    assert "cluster.yaml" in line
    for word in words:
        assert word in line


def test_a_key_that_stands_twice_in_a_topology_file_is_refused(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (work / "cluster.yaml").open("a") as file:
        file.write("name: again\n")
    line = refused(work, "evaluate", ["graph=graph.npz", "topology=cluster.yaml"], capsys)
    for word in ("cluster.yaml", "line ", "'name'", "twice"):
        assert word in line


def test_a_node_of_a_topology_file_that_contains_itself_is_refused(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (work / "cluster.yaml").write_text("_target_: a.b\nservers: &again\n- [*again]\n")
    line = refused(work, "plan", ["graph=graph.npz", "topology=cluster.yaml"], capsys)
    for word in ("cluster.yaml", "line 2", "itself"):
        assert word in line


def test_a_plan_with_a_hash_of_the_wrong_type_is_refused(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads((work / "plan.json").read_text())
    (work / "plan.json").write_text(json.dumps({**document, "graph": {"sha256": [1]}}))
    line = refused(work, "plot", ["graph=graph.npz", "plan=plan.json"], capsys)
    assert "plan.json: field 'graph'" in line


def test_the_folder_of_another_run_is_not_taken(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (work / "old").mkdir()
    (work / "old" / "config.yaml").write_text("seed: 1\n")
    line = refused(work, "evaluate", ["graph=graph.npz", "hydra.run.dir=old"], capsys)
    assert "old: holds a run already" in line
