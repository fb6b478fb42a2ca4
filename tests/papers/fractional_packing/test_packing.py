"""`meshwright packing`: arrivals, a literal first fit, the published figures, refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import default_rng
from omegaconf import OmegaConf
from PIL import Image

from agents.cluster.rules.fractional import BestFit, FirstFit, FractionalRule, RandomFit
from agents.cluster.rules.fragmentation import FragmentationGradientDescent
from envs.cluster.nodes import Cluster
from envs.cluster.workload.readers.openb import OpenbReader, read_openb_nodes
from envs.files import read_json
from experiments.command_line import main_of
from experiments.config.composing import typed
from experiments.papers.fractional_packing.command import PackingConfig, draw_arrivals, pack
from tests.agents.cluster.rules.fractional_cases import Row, cluster_of, clusters, requests_of, rows
from tests.experiments.refusals import option_refused, run_refused
from tests.refusal import refusal
from tests.strength import SEEDS, examples

main = main_of("packing")
pytestmark = pytest.mark.slow
NODES_HEADER = "sn,cpu_milli,memory_mib,gpu,model"
PODS_HEADER = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec"
FILES = "pods=pods.csv nodes=nodes.csv"
PUBLISHED = {"fgd": 95.4, "best_fit": 93.1, "random_fit": 87.5}  # percent of the GPUs


@pytest.fixture
def work(work: Path) -> Path:
    files = {
        "pods": [PODS_HEADER, "a,1000,1024,1,500,", "b,1000,1024,2,1000,G2", "c,1000,1024,0,0,"],
        "nodes": [NODES_HEADER, "n0,64000,262144,4,G2", "n1,64000,262144,2,P100"],
        "bare": [NODES_HEADER, "n0,64000,262144,0,G2"],
        "idle": [PODS_HEADER, "c,1000,1024,0,0,"],
    }
    for name, lines in files.items():
        (work / f"{name}.csv").write_text("\n".join([*lines, ""]))
    return work


def first_fit(cluster: Cluster, workload: list[Row]) -> list[bool]:
    """Written down once more: the lowest node, and there the GPU with the least left."""
    free = [[1000] * gpus for gpus in cluster.gpus.tolist()]
    cpu, memory, fitted = cluster.cpu_milli.tolist(), cluster.memory_mib.tolist(), []
    for cores, mib, gpus, milli, types in workload:
        for node, own in enumerate(free):
            kind = cluster.gpu_types[cluster.gpu_type[node]]
            fitting = sorted((left, slot) for slot, left in enumerate(own) if left >= milli)
            room = cpu[node] >= cores and memory[node] >= mib and len(fitting) >= gpus
            if room and (not types or kind in types.split("|")):
                cpu[node] -= cores
                memory[node] -= mib
                for _, slot in fitting[:gpus]:
                    own[slot] -= milli
                fitted.append(True)
                break
        else:
            fitted.append(False)
    return fitted


@examples(40)
@given(clusters, rows)
def test_what_fits_is_packed(cluster: Cluster, workload: list[Row]) -> None:
    numbers = np.arange(len(workload))
    found = pack(FirstFit(), cluster, requests_of(workload), numbers, default_rng(0))
    assert found.tolist() == first_fit(cluster, workload)


@given(SEEDS, st.sampled_from([0.01, 0.9, 1.3]))
def test_arrivals_ask_for_the_load_and_not_for_a_job_more(seed: int, load: float) -> None:
    cluster = cluster_of([(8000, 8192, 4, "A")] * 3)
    workload = requests_of([(0, 0, 0, 1000, ""), (0, 0, 1, 330, ""), (0, 0, 4, 1000, "")])
    arrivals = draw_arrivals(workload, cluster, load, default_rng(seed))
    asked = workload.demand_milli[arrivals].sum()
    assert load * 12_000 <= asked < load * 12_000 + 4000


@pytest.mark.parametrize("load", [0.0, -1.0, float("inf"), float("nan")])
def test_a_load_is_positive_and_finite(load: float) -> None:
    with refusal("load"):
        draw_arrivals(requests_of([(0, 0, 1, 500, "")]), cluster_of([(0, 0, 1, "A")]), load,
                      default_rng(0))  # fmt: skip


def test_the_result_file(work: Path) -> None:
    assert main([*FILES.split(), "runs=3", "load=2", "hydra.run.dir=run"]) == 0
    found = read_json(work / "run/result.json")
    assert (found["nodes"], found["gpus"], found["pods"], found["seeds"]) == (2, 6, 3, [0, 1, 2])
    names = [row["rule"] for row in found["rules"]]
    assert names == ["fgd", "best_fit", "random_fit", "first_fit", "dot_product", "gpu_packing"]
    assert found["demand_percent"][-1] == 200.0
    for row in found["rules"]:
        assert row["mean_allocation_percent"] == pytest.approx(np.mean(row["allocation_percent"]))
        assert row["curve_percent"][0] == 0.0
        assert np.all(np.diff(row["curve_percent"]) >= 0)
        assert row["curve_percent"][-1] <= max(row["allocation_percent"]) <= 100.0
    assert sorted(found["provenance"]["inputs_sha256"]) == ["nodes.csv", "pods.csv"]
    assert Image.open(work / "run" / "packing.png").size[0] > 500
    table = (work / "run" / "table.md").read_text()
    assert all(name in table for name in names)


def test_one_run_has_no_deviation_and_rules_can_be_left_out(work: Path) -> None:
    left_out = [f"~packing_rule@rules.{name}" for name in ("first_fit", "dot_product")]
    asked = [*FILES.split(), "runs=1", "seed=7", "rules.fgd.score_levels=0", *left_out]
    assert main([*asked, "hydra.run.dir=run"]) == 0
    found = read_json(work / "run/result.json")
    assert found["seeds"] == [7]
    assert len(found["rules"]) == 4
    assert found["rules"][0]["standard_deviation"] is None


RUNS = {
    "pods=nodes.csv nodes=nodes.csv": ["nodes.csv", "header", "'name'"],
    "pods=idle.csv nodes=nodes.csv": ["idle", "'num_gpus'", "no GPUs"],
    "pods=pods.csv nodes=bare.csv": ["bare", "no GPUs"],
    f"{FILES} rules.fgd.typical_share=2": ["typical_share", "2"],
    f"{FILES} rules.fgd=1": ["rules.fgd"],
    f"{FILES} seed=4294967290": ["'runs'"],
}


@pytest.mark.parametrize("command", RUNS)
def test_a_run_is_refused_by_name(
    command: str, work: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run_refused("packing", command.split(), RUNS[command], work, capfd)


def test_there_are_rules_and_their_keys() -> None:
    option_refused("packing_rule=fgd packing_rule.score_levels=-1", ["score_levels"])
    few = {"pods": "p", "nodes": "n", "load": 1.0, "runs": 1, "seed": 0, "json": False}
    with refusal("'rules'"):
        typed(OmegaConf.create({**few, "rules": {}}), PackingConfig)


def test_the_published_allocation(data: Path) -> None:
    """One draw; the means of ten are within half a point of what was published."""
    folder = data / "traces" / "openb"
    cluster = read_openb_nodes(folder / "openb_node_list_gpu_node.csv.gz")
    workload = OpenbReader().read_requests(folder / "openb_pod_list_default.csv.gz")
    arrivals = draw_arrivals(workload, cluster, 1.3, default_rng(0))
    rules: tuple[FractionalRule, ...] = (
        FragmentationGradientDescent(0.95, 100), BestFit(), RandomFit(),
    )  # fmt: skip
    found = {}
    for rule in rules:
        fitted = pack(rule, cluster, workload, arrivals, default_rng(1))
        allocated = workload.demand_milli[arrivals[fitted]].sum()
        found[rule.name] = allocated / (10 * cluster.num_gpus)
    for name, published in PUBLISHED.items():
        assert found[name] == pytest.approx(published, abs=1.5)
    assert found["fgd"] > found["best_fit"] > found["random_fit"]
