"""`experiments.plan`: objectives are judged here, in the input's own units."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import ran
from layered_step import layered_step
from refusals import Refuses

from envs.cost import RooflineCost
from envs.files import read_json
from envs.graphs.storage import save_graph
from envs.step.order import OneFOneB
from envs.step.problem import StepProblem
from envs.step.step import StepSimulator
from experiments.step.plan_file import read_plan
from tests.envs.topologies import topology_named, topology_text

# A chain of 2 ms and 3 ms on two accelerators, 0.5 ms to the host; the CPU is slow.
CHAIN: dict[str, Any] = {
    "maxFPGAs": 2,
    "maxCPUs": 1,
    "maxSizePerFPGA": 10,
    "nodes": [
        {"id": 4, "name": "a", "cpuLatency": 90, "fpgaLatency": 2, "size": 6,
         "supportedOnFpga": 1, "isBackwardNode": 0},
        {"id": 9, "name": "b", "cpuLatency": 90, "fpgaLatency": 3, "size": 4,
         "supportedOnFpga": 1, "isBackwardNode": 0},
    ],
    "edges": [{"sourceId": 4, "destId": 9, "cost": 0.5, "size": 1}],
}  # fmt: skip


@pytest.fixture
def work(work: Path) -> Path:
    """The working directory: a graph of ours, one with devices of its own, and a tight cluster."""
    save_graph(layered_step(6, 2), work / "graph.npz")
    (work / "chain.json").write_text(json.dumps(CHAIN))
    return work


def ask(*arguments: str, run: str = "run") -> dict[str, Any]:
    return ran("plan", *arguments, run=run)


def test_a_makespan_is_that_of_the_plan_file_in_the_simulator(work: Path) -> None:
    found = ask("agent=heft", "agent.groups=[6]", "graph=graph.npz", "seed=3")
    topology = topology_named("mixed_v100_p100")
    problem = StepProblem.build(layered_step(6, 2), topology, RooflineCost())
    written = read_plan(work / "run" / "plan.json", problem, OneFOneB())
    simulated = StepSimulator(problem).step_time(written.placement.device, written.order)
    assert found["objective"] == found["objective_s"] == simulated
    assert 0 < found["lower_bound"] <= found["objective"]
    assert found["gap"] == pytest.approx(simulated / found["lower_bound"] - 1)
    assert (found["feasible"], found["violations"], found["unit"]) == (True, [], "s")
    assert (found["agent"], found["problem"], found["graph"]) == (
        "heft",
        "makespan",
        "layered_step",
    )
    assert (found["topology"], found["devices"]) == ("mixed_v100_p100", 4)
    assert found["trajectory"][-1][1] == simulated
    assert found["provenance"]["seed"] == 3
    assert "graph.npz" in found["provenance"]["inputs_sha256"]


def test_max_load_is_told_in_the_milliseconds_of_the_file(work: Path) -> None:
    found = ask("agent=asked_agents.Exhaustive", "problem=max_load", "graph=chain.json")
    assert found["objective"] == pytest.approx(3.5)  # b's compute and what it receives
    assert found["lower_bound"] == pytest.approx(3.5)
    assert found["objective_s"] == pytest.approx(3.5e-3)
    assert (found["unit"], found["unit_s"], found["feasible"]) == ("ms", 1e-3, True)
    assert found["trajectory"] == [[0.05, pytest.approx(3.5)]]
    assert (found["topology"], found["devices"]) == ("chain", 3)
    partition = read_json(work / "run/partition.json")
    assert partition["kind"] == "meshwright.partition"
    assert partition["problem"] == "max_load"
    assert sorted(partition["placement"].values()) == ["accelerator0", "accelerator1"]


def test_latency_adds_up_along_the_calls(work: Path) -> None:
    found = ask("agent=asked_agents.Exhaustive", "problem=latency", "graph=chain.json")
    assert found["objective"] == pytest.approx(5.0)  # both in one call


def test_the_makespan_of_a_file_with_devices_is_in_its_unit_too(work: Path) -> None:
    found = ask("agent=single_device", "graph=chain.json")
    assert found["objective"] == pytest.approx(5.0)
    assert found["unit"] == "ms"


def test_the_unit_is_that_of_the_graph_that_is_planned(work: Path) -> None:
    found = ask("agent=single_device", "env=placement_toy", "graph=chain.json")
    assert found["graph"] != "chain"
    assert found["unit"] == "s"  # not the milliseconds of the file


def test_without_memory_everything_fits(work: Path) -> None:
    tight = {**CHAIN, "maxSizePerFPGA": 9}
    (work / "chain.json").write_text(json.dumps(tight))
    found = ask("agent=single_device", "graph=chain.json")
    assert found["objective"] == pytest.approx(180.0)  # only the CPU holds both
    free = ask("agent=single_device", "graph=chain.json", "problem.memory=false", run="free")
    assert free["objective"] == pytest.approx(5.0)


def test_a_person_sees_a_row_for_each_figure(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ask("agent=single_device", "graph=chain.json")
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in lines if line.startswith(" ")]
    for row in (["operators", "2"], ["objective", "5"], ["unit", "ms"], ["feasible", "True"]):
        assert row in rows
    assert all(len(row) >= 2 for row in rows)  # nothing without a value
    assert not any("_s" in row[0] for row in rows)  # every figure once


def test_an_agent_without_a_plan_has_no_objective(work: Path) -> None:
    save_graph(layered_step(50, 1), work / "graph.npz")  # 20 GB of state
    found = ask("agent=single_device", "graph=graph.npz")
    assert (found["objective"], found["feasible"], found["plan"]) == (None, False, None)
    assert found["status"] == "infeasible"
    assert "does not fit" in found["reason"]
    assert found["lower_bound"] > 0


def test_a_plan_that_breaks_a_rule_is_not_feasible(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = ask("agent=asked_agents.Careless", "graph=graph.npz")
    assert f"violated: {found['violations'][0]}" in capsys.readouterr().out
    assert found["feasible"] is False
    assert "co-location" in found["violations"][0]
    assert found["objective"] > 1e-6


def test_the_first_search_of_a_process_is_not_counted(work: Path) -> None:
    found = ask("agent=asked_agents.SlowToBegin", "graph=graph.npz", "deterministic_limit=77")
    assert found["seconds"] < 0.9
    assert (found["evaluations"], found["deterministic_limit"]) == (77, 77)


def test_what_fits_nowhere_is_refused_with_the_number_of_bytes(
    work: Path, refuses: Refuses
) -> None:
    save_graph(layered_step(600, 1), work / "graph.npz")
    refuses("plan", ["agent=single_device", "graph=graph.npz"], "does not fit", "too many")


def test_a_proof_that_no_partition_exists_is_told(work: Path, refuses: Refuses) -> None:
    small = work / "small.yaml"
    small.write_text(topology_text("single_v100"))
    save_graph(layered_step(100, 1), work / "graph.npz")  # 40 GB of state
    words = ["agent=asked_agents.Exhaustive", "problem=max_load", "graph=graph.npz"]
    refuses("plan", [*words, "topology=small.yaml"], "no split fits", "layered_step")


def test_published_files_have_their_own_units(work: Path, data: Path) -> None:
    folder = data / "graphs"
    moirai = ask("agent=heft", f"graph={folder / 'moirai' / 'example-1.xls'}")
    assert (moirai["unit"], moirai["unit_s"]) == ("the file's own", 1.0)
    assert moirai["objective"] >= 30.0  # the published optimum
    pipedream = folder / "pipedream" / "image_classification-alexnet.txt"
    found = ask("agent=single_device", f"graph={pipedream}", run="pipedream")
    total = sum(
        float(line.partition("forward_compute_time=")[2].partition(",")[0])
        for line in pipedream.read_text().splitlines()
        if "forward_compute_time=" in line and "-- Input" not in line
    )
    assert found["unit"] == "ms"
    assert found["objective"] == pytest.approx(total)
