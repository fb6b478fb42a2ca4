"""What the studies of unseen graphs and of tight memory stand on: models, devices, second looks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from commands import ran
from layered_step import layered_step

from envs.cost import RooflineCost
from envs.graphs.op_graph import Kind
from envs.graphs.readers import MoiraiReader, PipeDreamReader
from envs.graphs.readers.graph_file import GraphFile
from envs.graphs.storage import save_graph
from envs.step.plans import Placement, Plan
from envs.step.problem import StepProblem
from envs.step.step import StepSimulator
from experiments.run.provenance import Provenance
from experiments.step.captured_models import MODELS, Captured
from experiments.step.plan_file import write_plan
from experiments.step.problem import StoredGraph, TightMemory
from experiments.step.tasks import StepTask
from tests.envs.topologies import topology_named
from tests.refusal import refusal

PROFILE = """\
a -- Input -- forward_compute_time=5.0, backward_compute_time=0.0, activation_size=8.0, parameter_size=0.0
b -- Linear(2, 2) -- forward_compute_time=1.0, backward_compute_time=3.0, activation_size=4.0, parameter_size=6.0
\ta -- b
"""  # noqa: E501


def test_devices_hold_their_share_of_what_the_simulator_finds_on_one() -> None:
    graph = layered_step(6, 3)
    base = topology_named("nvlink_islands")
    problem = StepProblem.build(graph, base, RooflineCost())
    simulator = StepSimulator(problem)
    alone = np.zeros(graph.num_operators, dtype=np.int64)
    peak = simulator.run(alone, simulator.order(alone)).peak_memory[0]
    tight = TightMemory(base, 0.3)(GraphFile(graph, None, {}))
    assert tight.memory_bytes.tolist() == pytest.approx([0.3 * peak] * 8)
    assert tight.network is not None
    assert tight.link_class is base.link_class
    with refusal("share"):
        TightMemory(base, 0.0)


def test_a_profile_is_cut_into_micro_batches_and_nothing_else_is(tmp_path: Path) -> None:
    path = tmp_path / "profile.txt"
    path.write_text(PROFILE)
    assert StoredGraph(str(path)).load().graph.num_operators == 2
    cut = StoredGraph(str(path), micro_batches=4).load().graph
    assert (cut.num_operators, cut.num_micro_batches) == (12, 4)
    assert cut.profile_seconds.sum() == pytest.approx(0.004)
    two = StoredGraph(str(path), PipeDreamReader(devices=2), 4).load().topology
    assert two is not None
    assert two.num_devices == 2
    save_graph(layered_step(2, 2), tmp_path / "graph.npz")
    for source in (str(tmp_path / "graph.npz"), None), (str(path), MoiraiReader()):
        with refusal(r"'graph.micro_batches': only a PipeDream profile"):
            StoredGraph(*source, 4).load()
    with refusal("micro_batches"):
        StoredGraph(str(path), micro_batches=0)


def test_a_plan_is_judged_from_its_file(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written is read and judged again: another plan on disk ends the run."""
    save_graph(layered_step(6, 2), work / "graph.npz")
    given = ["agent=contiguous", "graph=graph.npz", "topology=mixed_v100_p100"]
    ran("plan", *given)

    def other(task: StepTask, folder: Path, plan: Plan, provenance: Provenance) -> Path:
        one = replace(plan, placement=Placement(np.zeros_like(plan.placement.device)))
        write_plan(folder / "plan.json", one, task.step, provenance, None)
        return folder / "plan.json"

    monkeypatch.setattr(StepTask, "write", other)
    with pytest.raises(AssertionError, match="on a second look"):
        ran("plan", *given, run="again")


def test_a_model_of_ones_own_is_captured_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MESHWRIGHT_CACHE", str(tmp_path))
    source = Captured("recommender", 64, 2)
    graph = source.load().graph
    assert graph.num_micro_batches == 2
    tables = graph.parameter_bytes[[n.startswith("tables") for n in graph.parameter_names]]
    assert tables.tolist() == [400_000 * 128 * 4.0] * 16
    assert (graph.kind == Kind.EMBEDDING).sum() >= 2 * 16
    assert len(list(tmp_path.iterdir())) == 1
    for arguments, word in (
        (("alexnet", 64, 2), "swin"),
        (("clip", 9, 2), "9"),
        (("clip", 0, 1), "0"),
    ):
        with refusal(word):
            Captured(*arguments)


@pytest.mark.proof
@pytest.mark.parametrize("name", MODELS)
def test_every_model_has_work_both_ways(name: str) -> None:
    graph = Captured(name, 4, 2).capture()
    assert graph.backward_flop() > graph.forward_flop() > 0
