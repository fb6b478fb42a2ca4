"""A graph and a topology told as plain data are placed as the environment's policy places them."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from agents.decision import StateError
from agents.exported import decider_kind, load_decider
from agents.placement.live import PlacementDecider
from agents.placement.policy import LearnedPlanner
from envs.cost import CostByGraph
from envs.graphs.op_graph import OpGraph
from envs.graphs.storage import graph_document
from envs.graphs.synthetic import synthetic_training_graph
from envs.hardware.builders import mixed
from envs.hardware.servers import NvlinkServer, PcieServer
from envs.step.problem import StepProblem
from envs.step.timeline import single_device_peak
from models.export.checkpoint import ModelCard
from models.export.placer import export_placer
from tests.asking import planned
from tests.models.step.test_placer import SEQUENTIAL, policy_of
from tests.refusal import refusal

pytestmark = [pytest.mark.proof, pytest.mark.slow]

WITHOUT = """
import sys
for name in ("torch", "ray", "torch_geometric", "fastapi", "onnx", "hydra"):
    sys.modules[name] = None
import json
from agents.exported import decider_kind, load_decider
print(json.dumps(load_decider(sys.argv[1]).decide(json.load(sys.stdin)).actions))
"""
PCIE = {"medium": "PCIe", "bandwidth": "15.75GB/s", "latency": "2us"}
NVLINK = {"medium": "NVLink", "bandwidth": "50GB/s", "latency": "2us"}
ETHERNET = {"medium": "Ethernet", "bandwidth": "25Gbps", "latency": "5us"}
TOPOLOGY: dict[str, Any] = {
    "servers": [
        {"device": "V100-16GB", "count": 2, "pcie": PCIE, "nvlink": NVLINK},
        {"device": "P100-16GB", "count": 1, "pcie": PCIE},
    ],
    "network": ETHERNET,
}


def graph() -> OpGraph:
    return synthetic_training_graph(np.random.default_rng(3))


def problem() -> StepProblem:
    servers = [NvlinkServer("V100-16GB", 2, 2, NVLINK, PCIE), PcieServer("P100-16GB", 1, PCIE)]
    return StepProblem.build(graph(), mixed("live", servers, ETHERNET), CostByGraph())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    policy = policy_of(replace(SEQUENTIAL, rounds=1, sweeps=("sequential", "parallel")))
    card = ModelCard("Drawn", "Never trained.", "seed: 0\n", {})
    return str(export_placer(policy, tmp_path_factory.mktemp("placement") / "checkpoint", card))


def test_it_places_as_the_planner(folder: str) -> None:
    planner = LearnedPlanner(
        checkpoint=folder, groups=128, rounds=1, moves=0, temperature=0.0, search=None, seed=3
    )  # fmt: skip
    found = planned(planner, problem(), 1.0)
    decider = load_decider(folder)
    state = json.dumps({"graph": graph_document(graph()), "topology": TOPOLOGY}).encode()
    decision = decider.decide_json(state)
    names = [device.name for device in problem().topology.devices]
    placement = dict(
        zip(graph().op_names, (names[d] for d in found.solution.placement.device), strict=True)
    )
    answer = decision.document()
    assert answer["plan"]["placement"] == placement
    assert answer["step_time_s"] == pytest.approx(found.value, rel=1e-12)
    assert 0 < answer["lower_bound_s"] <= answer["step_time_s"]
    assert (answer["feasible"], answer["violations"]) == (True, [])
    for action in decision.actions:
        assert {placement[name] for name in action["operators"]} == {action["device"]}
        scores = action["log_probabilities"]
        assert np.exp(scores[action["device"]]) == pytest.approx(action["probability"])
        assert np.exp(list(scores.values())).sum() == pytest.approx(1.0)
    assert decider.decide(json.loads(state)).document() == answer
    for schema, instance in ((decider.schema, state), (decider.answer_schema, json.dumps(answer))):
        assert list(Draft202012Validator(schema).iter_errors(json.loads(instance))) == []


def test_objects_are_taken_where_they_are_at_hand(folder: str) -> None:
    decider = load_decider(folder)
    assert isinstance(decider, PlacementDecider)
    answer = decider.decide({"graph": graph_document(graph()), "topology": TOPOLOGY}).document()
    for topology in (problem().topology, TOPOLOGY):
        assert decider.decide({"graph": graph(), "topology": topology}).document() == answer


def test_wrong_steps_are_refused(folder: str) -> None:
    decider = load_decider(folder, most_operators=10_000, most_devices=3)
    document, servers = graph_document(graph()), TOPOLOGY["servers"]
    of = {"count": 1, "pcie": PCIE}
    wrong: list[tuple[Any, Any, str]] = [
        (document, None, "topology.*required"),
        ({}, TOPOLOGY, "is no graph file"),
        ({**document, "operators": [{}]}, TOPOLOGY, "graph.*operators"),
        (document, {**TOPOLOGY, "servers": []}, "at least 1 item"),
        (document, {"servers": servers}, "what joins"),
        (document, {**TOPOLOGY, "_target_": "os.system"}, "is no field"),
        (document, {"servers": [{**of, "device": "X1"}]}, "X1"),
        (document, {"servers": [{**of, "device": "H100", "island": 1}]}, "goes with nvlink"),
        (document, {"servers": [{**of, "device": "H100", "count": 4}]}, "4 devices.*at most 3"),
    ]
    for graph_file, topology, message in wrong:
        state = {"graph": graph_file, "topology": topology}
        with pytest.raises(StateError, match=f"(?i){message}"):
            decider.decide({key: part for key, part in state.items() if part is not None})
    with refusal("known: most_operators, most_devices"):
        load_decider(folder, window=3)


def test_it_needs_no_torch_and_no_ray(folder: str) -> None:
    state = {"graph": graph_document(graph()), "topology": TOPOLOGY}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, folder],
        input=json.dumps(state), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout) == load_decider(folder).decide(state).actions


def test_what_the_policy_would_overfill_is_fitted(folder: str) -> None:
    whole = problem()
    need = single_device_peak(whole.graph)
    devices = [
        replace(device, spec=replace(device.spec, memory_bytes=0.6 * need))
        for device in whole.topology.devices
    ]
    tight = replace(whole.topology, devices=tuple(devices))
    decision = load_decider(folder).decide({"graph": graph(), "topology": tight}).document()
    assert decision["feasible"], decision["violations"]


def test_one_that_is_shipped_has_a_name() -> None:
    assert decider_kind("any_step") == "placement"
    assert decider_kind("unknown_durations") == "cluster"
    with refusal("neither a folder nor shipped"):
        decider_kind("nobody")
