"""Sums of JCT, makespans and preemptions that other simulators print, to the second."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from agents.cluster.policy import Scheduler
from agents.cluster.queue import EASY, FIFO, SJF, SRSF, SRTF, FIFOBackfill, LAS2DTiresias, SJFStrict
from agents.cluster.replay import replay, simulate
from agents.cluster.rules.gangs import Count, HeliosConsolidate, Yarn
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import Schedule
from envs.cluster.workload.readers.job_logs import ItpReader
from envs.cluster.workload.trace import Trace
from envs.files import read_json

POLICIES = {
    "fifo-strict": FIFO,
    "fifo-backfill": FIFOBackfill,
    "sjf-nonpreempt-backfill": SJF,
    "sjf-nonpreempt-strict": SJFStrict,
    "srtf": SRTF,
    "srsf": SRSF,
    "2d-las": LAS2DTiresias,
}
PLACES = {"count": Count, "yarn": Yarn, "helios-consolidate": HeliosConsolidate}
UNPROVED = {"smallest-gpu-first-preempt", "srtf+overhead"}


def entries() -> list[dict[str, Any]]:
    """Read when tests are collected; without data there is one test, which skips."""
    folder = os.environ.get("MESHWRIGHT_DATA")
    path = Path(folder or "") / "oracles" / "cluster.json"
    if not folder or not path.is_file():
        return [{}]
    published: list[dict[str, Any]] = read_json(path)["entries"]
    return [entry for entry in published if entry["ref"]]


def problem_of(entry: dict[str, Any], data: Path) -> tuple[Scheduler, Cluster, Trace]:
    trace = ItpReader().read(data / "traces" / f"{entry['trace']}.csv.gz").trace
    nodes, size = (1, entry["gpus"])
    if entry["layout"] != "pool":
        nodes, size = (int(number) for number in entry["layout"].split("x"))
    limits = {"limits": [3250, 7200]} if entry["policy"] == "2d-las" else {}
    policy: Scheduler = POLICIES[entry["policy"]](PLACES[entry["place"]](), seed=0, **limits)
    return policy, Cluster.uniform(nodes, size), trace


def check(schedule: Schedule, entry: dict[str, Any]) -> None:
    assert len(schedule.jct) == entry["n"]
    assert schedule.jct.sum() == entry["sum_jct"]
    assert schedule.makespan == entry["makespan"]
    assert entry.get("preemptions", schedule.preemptions.sum()) == schedule.preemptions.sum()


def label(entry: dict[str, Any]) -> str:
    return " ".join(str(entry.get(name)) for name in ("trace", "policy", "place"))


@pytest.mark.parametrize("entry", entries(), ids=label)
def test_by_its_own_loop(entry: dict[str, Any], data: Path) -> None:
    policy, cluster, trace = problem_of(entry, data)
    check(replay(policy, cluster, trace), entry)


@pytest.mark.parametrize("entry", entries(), ids=label)
def test_by_decisions_in_the_simulator(entry: dict[str, Any], data: Path) -> None:
    if entry and entry["n"] > 1_000:
        pytest.skip("the small trace is enough for decisions one by one")
    policy, cluster, trace = problem_of(entry, data)
    check(simulate(policy, ClusterSimulator(cluster, trace)), entry)


def test_all_disciplines_are_tried(data: Path) -> None:
    published = read_json(data / "oracles/cluster.json")["entries"]
    assert {e["policy"] for e in published} == set(POLICIES) | UNPROVED
    assert len(entries()) == 20


def test_promises_cost_backfilling_little(data: Path) -> None:
    """EASY lies between strict and free backfilling on the larger trace."""
    trace = ItpReader().read(data / "traces" / "itp" / "cluster06.csv.gz").trace
    cluster = Cluster.uniform(12, 8)
    strict, easy, free = (
        replay(kind(Count(), seed=0), cluster, trace).jct.sum()
        for kind in (FIFO, EASY, FIFOBackfill)
    )
    assert free < easy < strict
