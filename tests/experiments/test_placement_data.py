"""`experiments.placement_data`: missing shards are made, labels that stand are improved."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from layered_step import layered_step

from agents.placement.labelled import read_dataset
from envs.cost import RooflineCost
from envs.errors import InputError
from envs.hardware.builders import mixed
from envs.hardware.devices import CATALOGUE
from envs.hardware.servers import PcieServer
from envs.placement.distribution import TrainingProblems
from experiments.placement_data import PlacementDataConfig, placement_data
from experiments.run.app import run_app
from experiments.step import training_graphs
from experiments.step.suites.cell import Cases
from experiments.step.training_graphs import TrainingGraphs
from tests.paths import CONF

QUICK = [
    "problems=5", "shard_size=2", "last_stage=0.2", "budget_s=0.05", "processes=1",
    "distribution.captured_share=0", "agent@teacher=contiguous", "seed=3",
]  # fmt: skip


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["app"])
    return tmp_path


def ran(work: Path, run: str, *words: str) -> dict[str, Any]:
    given = [*QUICK, *words, f"hydra.run.dir={run}"]
    assert run_app("placement_data", PlacementDataConfig, placement_data, given) == 0
    found: dict[str, Any] = json.loads((work / run / "result.json").read_text())
    return found


def test_a_dataset_is_made_gone_on_with_and_improved(work: Path) -> None:
    result = ran(work, "one", "folder=data")
    first = {item.number: item for item in read_dataset("data")}
    assert result["problems"] == len(first) == 5 - result["without_a_label"]
    kept = (work / "data" / "shard00000.npz").read_bytes()
    (work / "data" / "shard00001.npz").unlink()
    (work / "data" / "shard00002.npz").unlink()
    assert read_dataset("data").numbers == [n for n in first if n < 2]
    ran(work, "two", "folder=data")
    assert (work / "data" / "shard00000.npz").read_bytes() == kept
    again = {item.number: item for item in read_dataset("data")}
    assert again.keys() == first.keys()
    for number, item in again.items():
        assert item.problem.op_seconds.tolist() == first[number].problem.op_seconds.tolist()
    plans = {str(n): item.device[None] for n, item in first.items()}
    np.savez(work / "plans.npz", allow_pickle=False, **plans)  # type: ignore[arg-type]
    ran(work, "three", "folder=better", "improve=data", "plans=plans.npz")
    for item in read_dataset("better"):
        known = min(first[item.number].seconds, again[item.number].seconds)
        assert item.seconds <= known * (1 + 1e-9)


def test_another_dataset_is_not_gone_on_with(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran(work, "one", "folder=data", "problems=1")
    words = [*QUICK, "problems=1", "folder=data", "seed=4", "hydra.run.dir=two"]
    assert run_app("placement_data", PlacementDataConfig, placement_data, words) == 2
    assert "another dataset stands there" in capsys.readouterr().err
    (work / "plans.npz").write_bytes(b"PK")
    words = [*QUICK, "folder=new", "improve=data", "plans=plans.npz", "hydra.run.dir=three"]
    assert run_app("placement_data", PlacementDataConfig, placement_data, words) == 2
    assert "plans.npz: is no file of plans" in capsys.readouterr().err


def test_captured_steps_have_the_seconds_of_every_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MESHWRIGHT_CACHE", str(tmp_path))
    whole, asked = layered_step(12, 4), []
    monkeypatch.setattr(
        training_graphs, "zoo_graph", lambda name, **shape: asked.append((name, shape)) or whole
    )
    graphs = TrainingGraphs([{"name": "gpt2", "batch": 4}], 5)
    graph = graphs[0]
    assert (asked, len(graphs)) == ([("gpt2", {"batch": 4})], 1)
    assert graph.num_groups <= 5
    network = {"medium": "Ethernet", "bandwidth": "25Gbps", "latency": "5us"}
    one_of_each = mixed("all", [PcieServer(kind, 1, network) for kind in CATALOGUE], network)
    expected = RooflineCost().operator_seconds(whole, one_of_each).sum(axis=0)
    np.testing.assert_allclose(graph.profile_seconds.sum(axis=0), expected)
    assert graph.profile_classes == tuple(CATALOGUE)
    assert len(list(tmp_path.iterdir())) == 1
    source = TrainingProblems(graphs, 1.0, 0.0, 0.0, 128, 8)
    problem = source(np.random.default_rng(1))
    kinds = [graph.profile_classes.index(d.spec.name) for d in problem.topology.devices]
    ratio = problem.op_seconds.sum(axis=0) / graph.profile_seconds[:, kinds].sum(axis=0)
    assert ratio.max() <= 4.0
    with pytest.raises(InputError, match="model 1"):
        TrainingGraphs([{"name": "gpt2"}, {"batch": 4}], 5)  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("name", "least", "clusters"), [("held_out", 60, 5), ("validation", 20, 4)]
)
def test_the_fixed_problems_are_enough_and_of_no_graph_or_cluster_of_training(
    name: str, least: int, clusters: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MESHWRIGHT_DATA", "data")
    parts = {
        label: {key: value for key, value in part.items() if key != "_target_"}
        for label, part in yaml.safe_load((CONF / f"problem_set/{name}.yaml").read_text()).items()
    }
    cases = [case for part in parts.values() for case in Cases(**part)]
    assert len(cases) == len({case.overrides for case in cases}) >= least
    assert len(parts["captured"]["topologies"]) >= clusters
    trained = yaml.safe_load((CONF / "distribution/training.yaml").read_text())
    models = {model["name"] for model in trained["captured"]["models"]}
    if name == "held_out":
        assert not models & set(parts["captured"]["graphs"])
    other = yaml.safe_load((CONF / "problem_set/held_out.yaml").read_text())
    if name == "validation":
        assert not set(parts["captured"]["topologies"]) & set(other["captured"]["topologies"])
        assert not set(parts["captured"]["graphs"]) & set(other["captured"]["graphs"])
