"""A state given as plain data is decided on as the same state in the simulator is."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from live_replays import agrees_with_the_simulator, asked_beside_a_replay
from small_clusters import with_columns

from agents.cluster.queue import LAS2DTiresias
from agents.decision import Decision, StateError
from agents.exported import load_decider
from envs.cluster.nodes import Cluster
from envs.cluster.workload.trace import Trace
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


DECIDER = load_decider(SHIPPED)
decide = DECIDER.decide


def state() -> dict[str, Any]:
    """Two servers of two; `a` runs on the first, `b` and `c` wait, `d` has finished."""
    return DECIDER.example


def fits(instance: Any, schema: dict[str, Any]) -> bool:
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema).is_valid(json.loads(json.dumps(instance)))


def outcomes(decision: Decision) -> dict[str, str]:
    return {job["job"]: job["decision"] for job in decision.content["jobs"]}


def test_replays_agree_action_by_action() -> None:
    rng = np.random.default_rng(5)
    gpus, duration = rng.choice([1, 1, 2, 4, 8], 16), rng.lognormal(8, 1.2, 16).astype(int) + 60
    submit = np.sort(rng.integers(0, 6_000, 16))
    cluster = Cluster.uniform(4, 4, nodes_per_rack=2, gpu_types=("V100", "P100"))
    labels = {"user": rng.choice(["ann", "bob"], 16), "queue": rng.choice(["", "vc"], 16)}
    trace = with_columns(Trace.of("drawn", submit, duration, gpus), **labels)
    decisions = agrees_with_the_simulator(SHIPPED, cluster, trace)
    kinds = {action["action"] for decision in decisions for action in decision.actions}
    assert kinds == {"start", "stop"}
    made = {what for decision in decisions for what in outcomes(decision).values()}
    assert made >= {"start", "keep", "stop", "wait"}


@pytest.mark.slow
def test_who_waited_in_a_queue_goes_before_who_is_demoted_to_it_state_after_state() -> None:
    rng = np.random.default_rng(5)
    submit = np.sort(rng.integers(0, 6_000, 16))
    trace = Trace.of("drawn", submit, rng.integers(60, 9_000, 16), rng.choice([1, 2, 4], 16))
    asked_beside_a_replay(LAS2DTiresias, Cluster.uniform(2, 4), trace)


def test_a_waiting_job_gets_the_free_server() -> None:
    decision = decide(state())
    ((start,)) = decision.actions
    assert (start["action"], start["job"], start["on"]) == ("start", "b", {"n1": 2})
    assert 0.5 < start["probability"] <= 1.0
    assert outcomes(decision) == {"a": "keep", "b": "start", "c": "wait"}
    ranked = sorted(decision.content["jobs"], key=lambda job: job["rank"])
    assert [job["rank"] for job in ranked] == [1, 2, 3]
    assert ranked == sorted(ranked, key=lambda job: -job["priority"])
    assert all(job["remaining_s"] > 0 and job["remaining_factor"] >= 1 for job in ranked)


@pytest.mark.parametrize("taken", [{"free_gpus": 0}, {"up": False}])
def test_what_is_not_free_is_given_to_nobody(taken: dict[str, Any]) -> None:
    changed = state()
    changed["nodes"][1] |= taken
    assert not any("n1" in action["on"] for action in decide(changed).actions)


@pytest.mark.parametrize("jobs", [0, 1])
def test_nothing_to_decide_is_decided(jobs: int) -> None:
    decision = decide({**state(), "jobs": state()["jobs"][:jobs]})
    assert decision.actions == decision.content["jobs"] == []


def test_limits_are_kept() -> None:
    jobs = [{"submit_s": 0.0, "num_gpus": 1, "id": number} for number in "012"]
    decision = load_decider(SHIPPED, most_actions=2).decide({**state(), "jobs": jobs})
    assert len(decision.actions) == 2
    assert (decision.content["complete"], decision.content["wait_probability"]) == (False, 0.0)
    with pytest.raises(StateError, match="2 of them, this decider takes 1"):
        load_decider(SHIPPED, most_nodes=1).decide(state())


@pytest.mark.parametrize(
    ("job", "words"),
    [
        ({"num_gpus": 99}, "99 GPUs"),
        ({"num_gpus": 1, "gpu_types": ["K80"]}, "K80"),
        ({"num_gpus": 5, "gpu_types": ["K80", "V100"]}, "has 4"),
        ({"num_gpus": 99, "finish_s": 4600.0}, "nothing is learned"),
    ],
)
@pytest.mark.parametrize("listed", [False, True])
def test_what_the_cluster_cannot_run_is_named_and_the_others_decided_on(
    job: dict[str, Any], words: str, listed: bool
) -> None:
    alone, larger = state(), state()
    larger["jobs"].insert(0, {"id": "large", "submit_s": 4100.0, **job})
    too_large = {} if "finish_s" in job else {"large": "wait"}
    if listed:
        alone["waiting"], larger["waiting"] = ["c", "b"], ["c", *too_large, "b"]
    decision, expected = decide(larger), decide(alone)
    assert decision.actions == expected.actions != []
    assert expected.warnings == expected.content["warnings"] == []
    assert [warning["job"] for warning in warnings_of(decision)] == ["large"]
    assert words in decision.warnings[0]["message"]
    assert outcomes(decision) == outcomes(expected) | too_large


def warnings_of(decision: Decision) -> list[dict[str, str]]:
    """They are in the answer too, which is one of the schema."""
    assert decision.content["warnings"] == decision.warnings
    assert fits(decision.content, DECIDER.answer_schema)
    return decision.warnings


def test_gpu_types_whose_speed_is_not_given_are_named() -> None:
    mistyped = state()
    mistyped["nodes"][1]["gpu_type"] = "V1O0"
    warnings = warnings_of(decide(mistyped))
    assert [warning["gpu_type"] for warning in warnings] == ["V100", "V1O0"]
    assert all(repr(warning["gpu_type"]) in warning["message"] for warning in warnings)
    mistyped["gpu_types"] = {"V100": 1.0, "V1O0": 0.5}
    assert decide(mistyped).warnings == []


def test_states_and_answers_are_those_of_the_schemas() -> None:
    schema, answers = DECIDER.schema, DECIDER.answer_schema
    assert all("2020-12" in one["$schema"] for one in (schema, answers))
    assert fits(state(), schema)
    assert fits(decide(state()).document(), answers)
    assert not fits({**state(), "jobs": [{**state()["jobs"][2], "duration_s": 10.0}]}, schema)


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
    ("waiting", ["b", "a"], "'a' is not one of waiting jobs"),
    ("running", ["a", "a"], "'a' is not one of running jobs"),
    ("jobs.1.since_s", ..., "since when does it run"),
    ("gpu_types", {"P100": 1.0}, "'V100' is not one of gpu_types"),
]


def wrong(path: str, value: Any, *before: dict[str, Any]) -> dict[str, Any]:
    """The state behind other jobs, with another value somewhere, or with none."""
    document = node = state()
    document["jobs"][:0] = before
    *keys, last = (int(key) if key.isdigit() else key for key in path.split("."))
    for key in keys:
        node = node[key]
    node[last] = value
    if value is ...:
        del node[last]
    return document


@pytest.mark.parametrize(("path", "value", "words"), WRONG)
def test_a_wrong_state_is_refused(path: str, value: Any, words: str) -> None:
    with refusal(words):
        decide(wrong(path, value))


@pytest.mark.parametrize(
    ("path", "value", "place"),
    [
        ("jobs.2.since_s", ..., ("jobs", 2, "since_s")),
        ("jobs.3.submit_s", 6000.0, ("jobs", 3, "submit_s")),
        ("waiting", ["large", "b", "d"], ("waiting", 2)),
    ],
)
def test_a_fault_behind_a_job_that_is_left_out_has_its_own_place(
    path: str, value: Any, place: tuple[Any, ...]
) -> None:
    with pytest.raises(StateError) as caught:
        decide(wrong(path, value, {"id": "large", "submit_s": 0.0, "num_gpus": 99}))
    assert [location for location, _ in caught.value.faults] == [place]


@pytest.mark.slow
def test_it_needs_no_torch_no_ray_and_no_web_server() -> None:
    found = subprocess.check_output([sys.executable, "-c", WITHOUT, json.dumps(state())])
    assert [action["job"] for action in json.loads(found)] == ["b"]
