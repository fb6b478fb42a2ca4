"""A state told as plain data is decided on as the same state in the simulator is."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from live_replays import agrees_with_the_simulator

from agents.decision import Decider, StateError
from agents.exported import load_decider
from envs.cluster.nodes import Cluster
from envs.cluster.workload.trace import Labels, Trace
from tests.refusal import refusal

SHIPPED = "unknown_durations"
WITHOUT = """
import sys
for name in ("torch", "ray", "torch_geometric", "fastapi", "onnx", "hydra"):
    sys.modules[name] = None
import json
from agents.exported import load_decider
print(json.dumps(load_decider("unknown_durations").decide(json.loads(sys.argv[1])).actions))
"""


@pytest.fixture(scope="module")
def decider() -> Decider:
    return load_decider(SHIPPED)


def state() -> dict[str, Any]:
    """Two servers of two; `a` runs on the first, `b` and `c` wait, `d` has finished."""
    return {
        "now_s": 5000.0,
        "nodes": [{"id": name, "gpu_type": "V100", "num_gpus": 2} for name in ("n0", "n1")],
        "jobs": [
            {"id": "d", "submit_s": 0.0, "num_gpus": 1, "held_s": 80.0, "finish_s": 90.0},
            {"id": "a", "submit_s": 10.0, "num_gpus": 2, "since_s": 20.0, "held_s": 4980.0,
             "holds": {"n0": 2}},
            {"id": "b", "submit_s": 4000.0, "num_gpus": 2, "user": "x"},
            {"id": "c", "submit_s": 4500.0, "num_gpus": 4},
        ],
    }  # fmt: skip


def test_replays_agree_action_by_action() -> None:
    rng = np.random.default_rng(5)
    gpus, duration = rng.choice([1, 1, 2, 4, 8], 16), rng.lognormal(8, 1.2, 16).astype(int) + 60
    submit = np.sort(rng.integers(0, 6_000, 16))
    cluster = Cluster.uniform(4, 4, nodes_per_rack=2, gpu_types=("V100", "P100"))
    trace = replace(
        Trace.of("drawn", submit, duration, gpus),
        user=Labels.of(rng.choice(["ann", "bob"], len(gpus)).tolist()),
        queue=Labels.of(rng.choice(["", "vc"], len(gpus)).tolist()),
    )
    decisions = agrees_with_the_simulator(SHIPPED, cluster, trace)
    kinds = {action["action"] for decision in decisions for action in decision.actions}
    assert kinds == {"start", "stop"}
    fates = {fate["decision"] for decision in decisions for fate in decision.document()["jobs"]}
    assert fates >= {"start", "keep", "stop", "wait"}


def test_a_waiting_job_gets_the_free_server(decider: Decider) -> None:
    decision = decider.decide(state())
    ((start,)) = decision.actions
    assert (start["action"], start["job"], start["on"]) == ("start", "b", {"n1": 2})
    assert 0.5 < start["probability"] <= 1.0
    fates = {fate["job"]: fate for fate in decision.document()["jobs"]}
    assert {job: fate["decision"] for job, fate in fates.items()} == {
        "a": "keep", "b": "start", "c": "wait",
    }  # fmt: skip
    assert sorted(fate["rank"] for fate in fates.values()) == [1, 2, 3]
    assert all(fate["remaining_s"] > 0 and fate["remaining_factor"] >= 1 for fate in fates.values())
    in_order = sorted(fates.values(), key=lambda fate: fate["rank"])
    assert [fate["priority"] for fate in in_order] == sorted(
        (fate["priority"] for fate in in_order), reverse=True
    )


@pytest.mark.parametrize("told", [{"free_gpus": 0}, {"up": False}])
def test_what_is_not_free_is_given_to_nobody(decider: Decider, told: dict[str, Any]) -> None:
    taken = state()
    taken["nodes"][1] |= told
    assert not any("n1" in action["on"] for action in decider.decide(taken).actions)


def test_nothing_to_decide_is_decided(decider: Decider) -> None:
    for jobs in ([], state()["jobs"][:1]):
        decision = decider.decide({**state(), "jobs": jobs})
        assert decision.actions == []
        assert decision.document()["jobs"] == []


def test_the_limit_of_actions_is_told() -> None:
    one = {"submit_s": 0.0, "num_gpus": 1}
    jobs = [{**one, "id": str(number)} for number in range(3)]
    limited = load_decider(SHIPPED, most_actions=2)
    decision = limited.decide({**state(), "jobs": jobs})
    assert len(decision.actions) == 2
    assert decision.document()["complete"] is False
    assert decision.document()["wait_probability"] == 0.0


TOO_LARGE: list[tuple[dict[str, Any], str]] = [
    ({"num_gpus": 99}, "99 GPUs"),
    ({"num_gpus": 1, "gpu_types": ["K80"]}, "K80"),
    ({"num_gpus": 5, "gpu_types": ["K80", "V100"]}, "has 4"),
    ({"num_gpus": 99, "finish_s": 4600.0}, "nothing is learned"),
]


@pytest.mark.parametrize(("job", "told"), TOO_LARGE)
@pytest.mark.parametrize("listed", [False, True])
def test_what_the_cluster_cannot_run_is_named_and_the_others_decided_on(
    decider: Decider, job: dict[str, Any], told: str, listed: bool
) -> None:
    alone, larger = state(), state()
    larger["jobs"].insert(0, {"id": "large", "submit_s": 4100.0, **job})
    waits = "finish_s" not in job
    if listed:
        alone["waiting"] = ["c", "b"]
        larger["waiting"] = ["c", "large", "b"] if waits else ["c", "b"]
    decision, expected = decider.decide(larger), decider.decide(alone)
    assert decision.actions == expected.actions != []
    assert expected.warnings == expected.document()["warnings"] == []
    ((name, message),) = [warning.values() for warning in decision.warnings]
    assert name == "large"
    assert told in message
    answer = json.loads(json.dumps(decision.document()))
    assert answer["warnings"] == decision.warnings
    assert list(Draft202012Validator(decider.answer_schema).iter_errors(answer)) == []
    fates = {fate["job"]: fate["decision"] for fate in answer["jobs"]}
    assert fates.pop("large", None) == ("wait" if waits else None)
    assert fates == {fate["job"]: fate["decision"] for fate in expected.document()["jobs"]}


def test_gpu_types_whose_speed_is_not_told_are_named(decider: Decider) -> None:
    mistyped = state()
    mistyped["nodes"][1]["gpu_type"] = "V1O0"
    answer = decider.decide(mistyped).document()
    assert [warning["gpu_type"] for warning in answer["warnings"]] == ["V100", "V1O0"]
    assert all(repr(warning["gpu_type"]) in warning["message"] for warning in answer["warnings"])
    assert list(Draft202012Validator(decider.answer_schema).iter_errors(answer)) == []
    mistyped["gpu_types"] = {"V100": 1.0, "V1O0": 0.5}
    assert decider.decide(mistyped).warnings == []


def test_a_fault_behind_a_job_that_is_left_out_has_its_own_place(decider: Decider) -> None:
    wrong = state()
    wrong["jobs"].insert(0, {"id": "large", "submit_s": 0.0, "num_gpus": 99})
    wrong["jobs"][3]["submit_s"] = 6000.0
    wrong["waiting"] = ["large", "b", "d"]
    with pytest.raises(StateError) as caught:
        decider.decide(wrong)
    assert caught.value.faults[0][0] == ("jobs", 3, "submit_s")
    wrong["jobs"][3]["submit_s"] = 4000.0
    with pytest.raises(StateError) as caught:
        decider.decide(wrong)
    assert caught.value.faults[0][0] == ("waiting", 2)


def test_states_and_answers_are_those_of_the_schemas(decider: Decider) -> None:
    assert list(Draft202012Validator(decider.schema).iter_errors(decider.example)) == []
    for schema in (decider.schema, decider.answer_schema):
        Draft202012Validator.check_schema(schema)
        assert "2020-12" in schema["$schema"]
    assert list(Draft202012Validator(decider.schema).iter_errors(state())) == []
    answer = json.loads(json.dumps(decider.decide(state()).document()))
    assert list(Draft202012Validator(decider.answer_schema).iter_errors(answer)) == []
    told = {**state(), "jobs": [{**state()["jobs"][2], "duration_s": 10.0}]}
    assert list(Draft202012Validator(decider.schema).iter_errors(told)) != []


WRONG: list[tuple[str, Any, str]] = [
    ("now_s", float("nan"), "finite"),
    ("now_s", "5000", "valid number"),
    ("nodes", [], "at least 1 item"),
    ("nodes.0.colour", "red", "is no field"),
    ("nodes.1.id", "n0", "'n0' stands twice"),
    ("nodes.0.up", False, "node 'n0' is down"),
    ("nodes.1.free_gpus", 3, "3, at most 2 are"),
    ("nodes.0.num_gpus", 1, "there are not so many GPUs"),
    ("jobs.2.id", "a\x00", "pattern"),
    ("jobs.2.id", "a", "'a' stands twice"),
    ("jobs.2.num_gpus", 2.5, "valid integer"),
    ("jobs.2.duration_s", 60.0, "is no field"),  # this policy goes by no durations
    ("jobs.2.submit_s", 6000.0, "is after now_s"),
    ("jobs.2.rate", 1.0, "goes with a job that runs"),
    ("jobs.2.gpu_milli", 500, "a part of a GPU, but not of one"),
    ("jobs.2.speed", {"K80": 1.0}, "no GPU type 'K80'"),
    ("jobs.1.holds", {"n0": 1}, "is not a gang of 2 GPUs"),
    ("jobs.1.holds", {"elsewhere": 2}, "there is no node 'elsewhere'"),
    ("jobs.1.finish_s", 100.0, "a job that has finished holds nothing"),
    ("jobs.1.shared_gpu", "g", "only of that"),
    ("waiting", ["c"], "leaves out 'b'"),
    ("waiting", ["b", "a"], "'a' is none of waiting jobs"),
    ("running", ["a", "a"], "'a' is none of running jobs"),
    ("gpu_types", {"P100": 1.0}, "'V100' is none of gpu_types"),
]


@pytest.mark.parametrize(("path", "value", "told"), WRONG)
def test_a_wrong_state_is_refused(decider: Decider, path: str, value: Any, told: str) -> None:
    wrong = copy.deepcopy(state())
    *keys, last = (int(key) if key.isdigit() else key for key in path.split("."))
    node: Any = wrong
    for key in keys:
        node = node[key]
    node[last] = value
    with refusal(told):
        decider.decide(wrong)


def test_since_when_a_job_runs_must_be_told(decider: Decider) -> None:
    wrong = state()
    del wrong["jobs"][1]["since_s"]
    with pytest.raises(StateError, match="since when does it run") as caught:
        decider.decide(wrong)
    assert [location for location, _ in caught.value.faults] == [("jobs", 1, "since_s")]


def test_too_large_states_are_refused() -> None:
    small = load_decider(SHIPPED, most_nodes=1)
    with pytest.raises(StateError, match="2 of them, this decider takes 1"):
        small.decide(state())


@pytest.mark.slow
def test_it_needs_no_torch_no_ray_and_no_web_server() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, json.dumps(state())],
        capture_output=True,
        text=True,
        check=True,
    )
    assert [action["job"] for action in json.loads(done.stdout)] == ["b"]
