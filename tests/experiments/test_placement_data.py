"""`experiments.train labels=`: missing shards are made, what stands is kept."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from commands import environment, ran, result
from layered_step import layered_step

from agents.placement.labelling import LabelledProblem, read_dataset
from envs.cost import RooflineCost
from envs.hardware.builders import DEVICES, mixed
from envs.hardware.servers import PcieServer
from envs.placement.generator import TrainingProblems
from experiments.config.config_source import SHIPPED_CONFIGS
from experiments.run.display import ProgressDisplay
from experiments.run.one_run import RunConsole
from experiments.step import training_graphs
from experiments.step.placement_data import PlacementDataConfig, labelled
from experiments.step.training_graphs import TrainingGraphs
from experiments.studies.study import Study
from tests.paths import CONF
from tests.refusal import refusal

QUICK = PlacementDataConfig(
    distribution={
        "_target_": "envs.placement.generator.TrainingProblems", "captured": [],
        "captured_share": 0.0, "inference": 0.1, "tabulated": 0.2, "most_groups": 32,
        "most_devices": 8,
    },
    teacher={"_target_": "agents.placement.baselines.SingleDevice"},
    labels="", problems=5, shard_size=2, first_stage=0.0, last_stage=0.2, budget_s=0.05,
    piece_s=0.001, processes=1, seed=3, json=False,
)  # fmt: skip


def made(folder: Path, **changes: Any) -> dict[int, LabelledProblem]:
    config = replace(QUICK, labels=str(folder), **changes)
    return {one.number: one for one in labelled(config, ProgressDisplay(RunConsole(quiet=True)))}


def test_a_dataset_is_made_and_gone_on_with(tmp_path: Path) -> None:
    data = tmp_path / "data"
    first = made(data)
    assert 3 <= len(first) <= 5
    kept = (data / "shard00000.npz").stat().st_mtime_ns
    (data / "shard00001.npz").unlink()
    (data / "shard00002.npz").unlink()
    assert read_dataset(data).numbers == tuple(number for number in first if number < 2)
    again = made(data)
    assert (data / "shard00000.npz").stat().st_mtime_ns == kept
    assert again.keys() == first.keys()
    for number, item in again.items():
        assert item.problem.op_seconds.tolist() == first[number].problem.op_seconds.tolist()
    with refusal("another dataset stands there"):
        made(data, seed=4)


def test_the_app_says_what_it_made(work: Path) -> None:
    words = [
        "labels=data", "problems=2", "last_stage=0", "budget_s=0.05", "agent@teacher=contiguous",
        "distribution.captured_share=0",
    ]  # fmt: skip
    found = ran("placement_data", *words)
    assert found["problems"] == len(read_dataset("data")) == 2 - found["without_a_label"]
    assert found["median_gain_over_cheap_plans"] >= 1.0


def test_a_command_and_its_helpers_load_side_by_side(tmp_path: Path) -> None:
    """Its own process once held a lock on the package, for which threads of its pool waited."""
    words = [
        "labels=data", "problems=2", "shard_size=1", "processes=2", "budget_s=0.05",
        "agent@teacher=heft", "distribution.captured_share=0", "hydra.run.dir=run",
    ]  # fmt: skip
    command = [sys.executable, "-m", "experiments.train", *words]
    subprocess.run(command, check=True, cwd=tmp_path, env=environment(), timeout=200)
    assert result(tmp_path / "run")["problems"] == 2


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
    one_of_each = mixed("all", [PcieServer(kind, 1, network) for kind in DEVICES], network)
    expected = RooflineCost().operator_seconds(whole, one_of_each).sum(axis=0)
    np.testing.assert_allclose(graph.profile_seconds.sum(axis=0), expected)
    assert graph.profile_classes == DEVICES
    assert len(list(tmp_path.iterdir())) == 1
    source = TrainingProblems(graphs, 1.0, 0.0, 0.0, 128, 8)
    problem = source(np.random.default_rng(1))
    kinds = [graph.profile_classes.index(d.spec.name) for d in problem.topology.devices]
    ratio = problem.op_seconds.sum(axis=0) / graph.profile_seconds[:, kinds].sum(axis=0)
    assert ratio.max() <= 4.0
    with refusal("model 1"):
        TrainingGraphs([{"name": "gpt2"}, {"batch": 4}], 5)  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("name", "least", "clusters"), [("held_out", 60, 5), ("validation", 20, 4)]
)
def test_the_fixed_problems_are_enough_and_of_no_graph_or_cluster_of_training(
    name: str, least: int, clusters: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MESHWRIGHT_DATA", "data")
    parts = yaml.safe_load((CONF / f"problem_set/{name}.yaml").read_text())
    study = Study(title="", problem_sets=parts, solvers={"one": []})
    cells = study.cells(0)
    assert len(cells) == len({cell.words for cell in cells}) >= least
    assert len(parts["captured"]["topology"]) >= clusters
    trained = SHIPPED_CONFIGS.node("distribution/training")
    models = {model["name"] for model in trained["captured"]["models"]}
    if name == "held_out":
        assert not models & set(parts["captured"]["graph"])
    other = yaml.safe_load((CONF / "problem_set/held_out.yaml").read_text())
    if name == "validation":
        assert not set(parts["captured"]["topology"]) & set(other["captured"]["topology"])
        assert not set(parts["captured"]["graph"]) & set(other["captured"]["graph"])
