"""`experiments.evaluate env=cluster` and `experiments.compare`, from command line to files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import is_drawn, ran
from matplotlib.figure import Figure
from refusals import Refuses

from envs.cluster.simulation.cluster_state import Schedule
from experiments.cluster import evaluate_cluster
from experiments.evaluate import main

# On one node of 2 GPUs: b waits for a unless it may preempt it, c passes b over where it may.
JOBS = "job_id,submit_s,duration_s,num_gpus\na,0,10,1\nb,2,5,2\nc,3,4,1\n"
ASKED = ["trace.path=jobs.csv", "cluster.nodes=1", "cluster.gpus_per_node=2"]
EVALUATE = ["env=cluster", *ASKED]


@pytest.fixture
def work(work: Path) -> Path:
    (work / "jobs.csv").write_text(JOBS)
    return work


@pytest.mark.parametrize(
    ("agent", "finishes"),
    [("fifo", (10, 15, 19)), ("fifo_backfill", (10, 15, 7)), ("srtf", (15, 7, 11))],
)
def test_three_jobs_by_hand(work: Path, agent: str, finishes: tuple[int, int, int]) -> None:
    found = ran(main, *EVALUATE, f"agent={agent}", "placement=count")
    jct = np.array(finishes) - [0, 2, 3]
    assert (found["jobs"], found["finished"]) == (3, 3)
    assert found["sum_jct_s"] == jct.sum()
    assert isinstance(found["sum_jct_s"], int)
    assert found["mean_jct_s"] == pytest.approx(jct.mean())
    assert found["makespan_s"] == max(finishes)
    assert found["p99_jct_s"] == pytest.approx(np.quantile(jct, 0.99))
    assert isinstance(found["seconds"], float)
    assert (found["agent"], found["placement"], found["interference"]) == (agent, "count", "none")


def test_pictures_are_drawn_when_asked_for(work: Path) -> None:
    ran(main, *EVALUATE, "agent=fifo_backfill", "pictures=true")
    assert is_drawn("run/jct.png", "run/usage.png", "run/gantt.png")


def test_failures_and_overheads_reach_the_simulator(work: Path) -> None:
    failing = [
        "+failures._target_=envs.cluster.simulation.incidents.Failures",
        "+failures.mean_time_to_failure_s=4",
        "+failures.mean_time_to_repair_s=2",
        "+failures.until_s=9",
        "+failures.seed=1",
    ]
    found = ran(main, *EVALUATE, "agent=fifo", "overheads.restart_s=3", *failing)
    assert found["finished"] == 3
    assert found["preemptions"] > 0


def test_a_job_larger_than_the_cluster_is_named(work: Path, refuses: Refuses) -> None:
    (work / "jobs.csv").write_text(JOBS + "big,4,1,3\n")
    for agent in ("fifo", "las_2d", "gandiva"):
        refuses(main, [*EVALUATE, f"agent={agent}"], "job 'big' asks for 3 GPUs")


def test_every_policy_in_one_table(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    draw = evaluate_cluster.draw_cluster_usage

    def drawn(schedules: Mapping[str, Schedule], *about: Any) -> Figure:
        shown.extend(schedules)
        return draw(schedules, *about)

    monkeypatch.setattr(evaluate_cluster, "draw_cluster_usage", drawn)
    found = ran("compare", *ASKED, "trace.format=canonical", "+agent@agents.mine=srtf")
    rows = found["policies"]
    names = [row["policy"] for row in rows]
    assert {"fifo", "srtf", "themis", "gandiva"} <= set(names)
    means = [row["mean_jct_s"] for row in rows]
    assert means == sorted(means)
    assert all(row["finished"] == 3 for row in rows)
    assert found["best"] == names[0]
    fifo = next(row for row in rows if row["policy"] == "fifo")
    assert (found["jobs"], found["left_out_jobs"], fifo["makespan_s"]) == (3, 0, 19)  # as it is
    table = (work / "run" / "table.md").read_text()
    assert all(f"| {name} |" in table for name in names)
    assert shown == ["fifo", "fifo_backfill", "las_2d", "srtf", "mine"]  # who is asked for is seen
    for name in ("jct.png", "usage.png"):
        assert (work / "run" / name).exists()
