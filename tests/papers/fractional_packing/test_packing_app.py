"""`experiments.packing`, from the command line to the result file, and the published figures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf
from PIL import Image

from agents.cluster.rules.fractional import BestFit, FractionalRule, RandomFit
from agents.cluster.rules.fragmentation import FragmentationGradientDescent
from envs.cluster.workload.readers.openb import OpenbReader, read_openb_nodes
from envs.files import read_json
from experiments.config.composing import typed
from experiments.papers.fractional_packing.command import PackingConfig
from experiments.papers.fractional_packing.packing import draw_arrivals, pack
from experiments.command_line import run_job
from tests.experiments.refusals import command_refused, option_refused, run_refused
from tests.refusal import refusal

PODS = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec
a,1000,1024,1,500,
b,1000,1024,2,1000,G2
c,1000,1024,0,0,
"""
NODES = """\
sn,cpu_milli,memory_mib,gpu,model
n0,64000,262144,4,G2
n1,64000,262144,2,P100
"""
FEW = {"pods": "p", "nodes": "n", "load": 1.0, "runs": 1, "seed": 0, "json": False}
FILES = ["pods=pods.csv", "nodes=nodes.csv"]
PUBLISHED = {"fgd": 95.4, "best_fit": 93.1, "random_fit": 87.5}  # percent of the GPUs


@pytest.fixture
def work(work: Path) -> Path:
    (work / "pods.csv").write_text(PODS)
    (work / "nodes.csv").write_text(NODES)
    return work


def test_the_result_file(work: Path) -> None:
    asked = [*FILES, "runs=3", "load=2", "hydra.run.dir=run"]
    assert run_job("packing", asked) == 0
    found = read_json(work / "run/result.json")
    assert (found["nodes"], found["gpus"], found["pods"], found["seeds"]) == (2, 6, 3, [0, 1, 2])
    names = [row["rule"] for row in found["rules"]]
    assert names == ["fgd", "best_fit", "random_fit", "first_fit", "dot_product", "gpu_packing"]
    assert found["demand_percent"][-1] == 200.0
    for row in found["rules"]:
        assert len(row["allocation_percent"]) == 3
        assert row["mean_allocation_percent"] == pytest.approx(np.mean(row["allocation_percent"]))
        assert row["curve_percent"][0] == 0.0
        assert np.all(np.diff(row["curve_percent"]) >= 0)
        assert max(row["allocation_percent"]) <= 100.0
    assert sorted(found["provenance"]["inputs_sha256"]) == ["nodes.csv", "pods.csv"]
    assert Image.open(work / "run" / "packing.png").size[0] > 500
    table = (work / "run" / "table.md").read_text()
    assert all(name in table for name in names)


def test_one_run_has_no_deviation_and_rules_can_be_left_out(work: Path) -> None:
    left_out = [f"~packing_rule@rules.{name}" for name in ("first_fit", "dot_product")]
    asked = [*FILES, "runs=1", "seed=7", "rules.fgd.score_levels=0", *left_out]
    assert run_job("packing", [*asked, "hydra.run.dir=run"]) == 0
    found = read_json(work / "run/result.json")
    assert found["seeds"] == [7]
    assert len(found["rules"]) == 4
    assert found["rules"][0]["standard_deviation"] is None


FILES_OF = "pods=pods.csv nodes=nodes.csv"
RUNS = {
    "pods=absent.csv nodes=nodes.csv": ["absent.csv", "cannot be read"],
    "pods=nodes.csv nodes=nodes.csv": ["nodes.csv", "header", "'name'"],
    "pods=idle.csv nodes=nodes.csv": ["idle", "'num_gpus'", "no GPUs"],
    "pods=pods.csv nodes=bare.csv": ["bare", "no GPUs"],
    f"{FILES_OF} rules.fgd.typical_share=2": ["typical_share", "2"],
    f"{FILES_OF} seed=4294967290": ["'runs'"],
}
COMMANDS = {  # refused before there is a run
    "pods=pods.csv": ["config key 'nodes' is missing"],
    f"{FILES_OF} runs=0": ["'runs'", "0 is below 1"],
    f"{FILES_OF} load=-1": ["'load'", "-1"],
}


@pytest.mark.parametrize("command", RUNS)
def test_a_run_is_refused_by_name(
    command: str, work: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (work / "bare.csv").write_text(f"{NODES.splitlines()[0]}\nn0,64000,262144,0,G2\n")
    (work / "idle.csv").write_text(f"{PODS.splitlines()[0]}\nc,1000,1024,0,0,\n")
    run_refused("packing", command.split(), RUNS[command], work, capfd)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_refused_by_name(command: str) -> None:
    command_refused("packing", command.split(), COMMANDS[command])


def test_a_rule_is_refused_by_its_key() -> None:
    option_refused("packing_rule=fgd packing_rule.score_levels=-1", ["score_levels"])


def test_no_rule_and_something_else_are_refused(
    work: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run_refused("packing", [*FILES, "rules.fgd=1"], ["rules.fgd"], work, capfd)
    with refusal("'rules'"):
        typed(OmegaConf.create({**FEW, "rules": {}}), PackingConfig)


def test_the_published_allocation(data: Path) -> None:
    """One draw; the means of ten are within half a point of what was published."""
    folder = data / "traces" / "openb"
    cluster = read_openb_nodes(folder / "openb_node_list_gpu_node.csv.gz")
    workload = OpenbReader().read_requests(folder / "openb_pod_list_default.csv.gz")
    arrivals = draw_arrivals(workload, cluster, 1.3, np.random.default_rng(0))
    rules: tuple[FractionalRule, ...] = (
        FragmentationGradientDescent(0.95, 100), BestFit(), RandomFit(),
    )  # fmt: skip
    found = {}
    for rule in rules:
        packed = pack(rule, cluster, workload, arrivals, np.random.default_rng(1))
        found[rule.name] = packed.allocated_milli[-1] / (10 * cluster.num_gpus)
    for name, published in PUBLISHED.items():
        assert found[name] == pytest.approx(published, abs=1.5)
    assert found["fgd"] > found["best_fit"] > found["random_fit"]
