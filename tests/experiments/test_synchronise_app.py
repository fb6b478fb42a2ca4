"""`experiments.synchronise`, from files to files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from commands import ran
from refusals import Refuses

from envs.files import read_json
from experiments.network.plan_file import read_plan
from experiments.network.synchronising import SynchroniseConfig, published_networks
from tests.refusal import refusal

LINKS = """\
_target_: envs.synchronisation.link_graph.described
name: two_racks
vertices: {a: participant, b: participant, c: participant, left: switch, right: adding_switch}
links:
  - {source: a, destination: left, bandwidth: 10Gbps, latency: 5us, both: true}
  - {source: b, destination: left, bandwidth: 10Gbps, latency: 5us, both: true}
  - {source: c, destination: right, bandwidth: 40Gbps, latency: 5us, both: true}
  - {source: left, destination: right, bandwidth: 20Gbps, latency: 1us, both: true}
"""
WORDS = ["agent=ring", "topology=links.yaml", "bytes=3MB", "optimum=false"]


def test_a_plan_is_made_timed_drawn_and_can_be_read_again(work: Path, refuses: Refuses) -> None:
    Path("links.yaml").write_text(LINKS)
    found = ran("synchronise", *WORDS)
    assert found["time_s"] == pytest.approx(3.2e-3 + 4 * 10e-6, rel=5e-3)  # 2 (n - 1) / n S / B
    assert found["busiest_link_s"] == pytest.approx(3.2e-3)
    assert found["largest_error"] < 1e-12
    problem, plan = read_plan(found["plan"])
    assert (problem.size, problem.network.name) == (3e6, "two_racks")
    assert plan.busiest_seconds(problem) == pytest.approx(3.2e-3)
    events = read_json(Path(found["trace"]))["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) == found["messages"]
    assert Path(found["picture"]).stat().st_size > 10_000
    document = read_json(Path(found["plan"]))
    for path, value, message in (
        (("network", "vertices", "a"), "x", "'x' is not one of participant"),
        (("plan", "trees", 0, "root"), "z", "'plan.trees.0.root': 'z' is no vertex"),
        (("plan", "trees", 0, "share"), "1/0", "'1/0' is no share"),
        (("plan", "trees", 0, "reduce"), [], "the sum leaves out"),
        (("problem", "primitive"), "scan", "'scan' is not one of"),
    ):
        changed = json.loads(json.dumps(document))
        at = changed
        for step in path[:-1]:
            at = at[step]
        at[path[-1]] = value
        Path("changed.json").write_text(json.dumps(changed))
        with refusal(message):
            read_plan("changed.json")
    refuses("synchronise", [*WORDS, "participants=[a,z]"], "'z' is not one of a, b, c")
    node = {"_target_": "experiments.step.problem.network_file", "path": "links.yaml"}
    asked = SynchroniseConfig(
        topology=node, primitive="all_reduce", bytes="3MB", media=None, aggregation=True,
        relay=True, participants=None, beside=[], period="6.4ms", sparsity=None, seed=0,
        agent=None, json=True,
    )  # fmt: skip
    whole = asked.problem().network
    assert whole.sums.all()
    left = replace(asked, beside=[found["plan"]]).problem().network  # 4 MB on a way in 6.4 ms
    assert left.capacity[left.link[0, 3]] == pytest.approx(whole.capacity[whole.link[0, 3]] / 2)
    for change, message in (
        ({"media": ["NVLink"]}, "have no media"),
        ({"bytes": "3Mb"}, "'bytes'"),
        ({"primitive": "scan"}, "'scan' is not one of all_reduce"),
        ({"beside": [found["plan"]], "period": "1ms"}, "others take"),
        ({"topology": {"_target_": "builtins.dict"}}, "config key 'topology'"),
    ):
        with refusal(message):
            replace(asked, **change).problem()
    Path("links.yaml").write_text(LINKS.replace("5us, both", "5GB, both", 1))
    with refusal(r"links\.0\.latency"):
        asked.problem()


def test_the_study_has_every_published_network_that_is_not_drawn() -> None:
    names = [network.name for network in published_networks()]
    assert names == sorted(names)
    assert {"dgx1_v100", "ndv2_2", "planes"} <= set(names)
    assert "uneven" not in names
