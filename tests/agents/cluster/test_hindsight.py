"""The best order of the jobs is found, and the numbers of a rule are sought and read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agents.cluster.joint_choice import JointChoice
from agents.cluster.partitioned import Partitioned
from agents.cluster.replay import replay, simulate
from agents.cluster.rollout import Hindsight
from agents.cluster.rule_numbers import NumberSearch
from agents.cluster.work_left import WorkLeft
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.workload.trace import Trace
from tests.refusal import refusal

SETTINGS: dict[str, Any] = {
    "order": "queue", "joint": False, "fast": 0.5, "hurry": 0.0, "prior_s": 60.0, "recency": 0.25,
    "partitioned": Partitioned(arrival="routed"),
}  # fmt: skip
CLUSTER = Cluster.uniform(1, 4)
NUMBERS: dict[str, Any] = {"x": {"least": -1.0, "most": 1.0}, "kind": ["a", "b", "c"]}


def crowd(seed: int, jobs: int) -> Trace:
    rng = np.random.default_rng(seed)
    submit, seconds = np.sort(rng.integers(0, jobs, jobs)), rng.integers(5, 200, jobs)
    return Trace.of("crowd", submit, seconds, rng.choice([1, 2, 3, 4], jobs))


@pytest.mark.parametrize("seed", range(3))
def test_hindsight_is_the_best_of_all_orders(seed: int) -> None:
    trace, base = crowd(seed, 5), JointChoice(**SETTINGS)
    simulator, totals = ClusterSimulator(CLUSTER, trace), []
    policy = Hindsight(base, replays=300, seed=0)
    base.reset(simulator)
    for order in permutations(np.arange(5.0)):
        twin = simulator.copy()
        base.order_by(np.array(order))
        base.play_on(twin, hold=True)
        totals.append(twin.schedule().jct.sum())
    found = replay(policy, CLUSTER, trace).jct
    assert found.sum() == min(totals) < max(totals)
    by_event = simulate(policy, ClusterSimulator(CLUSTER, trace)).jct
    np.testing.assert_array_equal(found, by_event)


def test_more_replays_are_no_worse_and_a_seed_makes_one_schedule() -> None:
    trace, base = crowd(5, 40), JointChoice(**SETTINGS)
    few, more, again = (
        replay(Hindsight(base, replays=count, seed=1), CLUSTER, trace).jct.sum()
        for count in (1, 60, 60)
    )
    assert more == again < few <= replay(JointChoice(**SETTINGS), CLUSTER, trace).jct.sum()


def test_hindsight_asks_no_posterior() -> None:
    with refusal("durations are known"):
        Hindsight(JointChoice(**{**SETTINGS, "posterior": WorkLeft("unknown_durations")}), 1, 0)


def test_the_search_finds_the_least_and_tells_all_that_it_tried() -> None:
    asked: list[int] = []

    def costs(many: Sequence[dict[str, Any]]) -> np.ndarray:
        asked.append(len(many))
        return np.array([(x["x"] - 0.3) ** 2 + "bca".index(x["kind"]) for x in many])

    start = {"x": -1.0, "kind": "a"}
    search = NumberSearch(NUMBERS, drawn=8, rounds=6, near=10, spread=0.3)
    found = search.tried(start, costs, np.random.default_rng(0))
    assert asked == [9, *[10] * 6]
    assert len(found) == 69
    assert start in [one.numbers for one in found]
    assert [one.cost for one in found] == sorted(one.cost for one in found)
    assert found[0].numbers["kind"] == "b"
    assert found[0].numbers["x"] == pytest.approx(0.3, abs=0.05)
    assert all(-1.0 <= one.numbers["x"] <= 1.0 for one in found)


@pytest.mark.parametrize("among", [[], {"least": 1.0}, {"least": 1.0, "most": 1.0}, "gain"])
def test_a_number_needs_a_range_or_a_list(among: object) -> None:
    with refusal("neither a least and a most nor a list") as caught:
        NumberSearch({"own": among}, drawn=1, rounds=1, near=1, spread=0.1)
    assert caught.value.field == "numbers.own"


def test_a_rule_takes_the_numbers_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "rule.json"
    numbers = {"order": "smallest", "own": 0.25, "first": 3, "joint": True}
    path.write_text(json.dumps({"kind": "meshwright.rule_numbers", "numbers": numbers}))
    found = JointChoice(**SETTINGS, numbers=str(path)).rule
    assert found == JointChoice(**{**SETTINGS, **numbers}).rule != JointChoice(**SETTINGS).rule


@pytest.mark.parametrize(
    ("numbers", "told"),
    [
        ({"own": 1.5}, "numbers.own"),
        ({"own": "much"}, "numbers.own"),
        ({"first": 2.5}, "numbers.first"),
        ({"first": 0}, "numbers.first"),
        ({"order": "luck"}, "numbers.order"),
        ({"luck": 1.0}, "numbers.luck"),
        ([], "kind"),
    ],
)
def test_a_file_of_numbers_says_what_is_wrong_with_it(
    tmp_path: Path, numbers: object, told: str
) -> None:
    path = tmp_path / "rule.json"
    path.write_text(json.dumps({"kind": "meshwright.rule_numbers", "numbers": numbers}))
    with refusal() as caught:
        JointChoice(**SETTINGS, numbers=str(path))
    assert (caught.value.file, caught.value.field) == (str(path), told)
