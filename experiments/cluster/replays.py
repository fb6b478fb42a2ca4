"""A trace replayed under several policies: schedules, rows of the table, pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from envs.cluster.simulation.cluster_metrics import measure
from envs.cluster.simulation.cluster_state import Schedule
from experiments.cluster.problem import ClusterProblem, Scheduler
from experiments.pictures.cluster import draw_cluster_usage, draw_jct_cdf
from experiments.run.artifacts import write_figure
from experiments.run.heartbeat import RunConsole
from experiments.run.one_run import Run
from experiments.run.provenance import Provenance
from experiments.study.tables import TABLE_FILE, Table, write_tables

JCT_FILE, USAGE_FILE = "jct.png", "usage.png"
COLUMNS = {
    "policy": "{policy}", "knows": "{knows}", "mean JCT": "{mean_jct_s:,.0f}",
    "p50": "{p50_jct_s:,.0f}", "p99": "{p99_jct_s:,.0f}", "mean wait": "{mean_queueing_s:,.0f}",
    "slow-down": "{mean_slow_down:,.1f}", "in use": "{utilisation:.1%}", "unfair": "{unfair:.1%}",
    "preempted": "{preemptions:,}", "jobs/s": "{speed:,.0f}",
}  # fmt: skip
CAPTION = (
    "Times in seconds. knows: what a policy may look at of a job that has not finished. slow-down: "
    "mean of JCT / work. in use: GPU-seconds held of those there were. unfair: share of the jobs "
    "later than with an equal share of the cluster, be it by a second. jobs/s: how fast they are "
    "replayed."
)


@dataclass(frozen=True, eq=False)
class Replayed:
    """One policy's schedule, and its figures."""

    policy: str
    schedule: Schedule
    record: dict[str, Any]


def replays(
    problem: ClusterProblem,
    policies: Mapping[str, Scheduler],
    shown: Sequence[str],
    console: RunConsole,
) -> list[Replayed]:
    """Every policy's schedule, the least mean JCT first; of those `shown` who held which GPUs."""
    problem.check(*policies.values())
    found = []
    for name, policy in policies.items():
        schedule, seconds = problem.timed(policy, keep_runs=name in shown)
        figures = measure(schedule, problem.cluster.num_gpus).document()
        record = {"policy": name, "knows": policy.knows, **figures, "seconds": seconds}
        found.append(Replayed(name, schedule, record))
        console.say(f"{name}: {seconds:.2f} s")
    return sorted(found, key=lambda row: row.record["mean_jct_s"])


def policies_table(found: Sequence[Replayed], title: str, note: str = CAPTION) -> Table:
    records = [row.record for row in found]
    rows = [{**record, "speed": record["jobs"] / record["seconds"]} for record in records]
    return Table.of(title, COLUMNS, rows, note)


def write_replays(
    found: Sequence[Replayed], shown: Sequence[str], problem: ClusterProblem, title: str, run: Run,
    provenance: Provenance, note: str = CAPTION,
) -> dict[str, Any]:  # fmt: skip
    """Write the table, the JCTs of all, and the cluster over time under those to be shown.

    Returns what goes to `result.json`.
    """
    run.console.say(title)
    write_tables(run, title, [policies_table(found, "Policies", note)], provenance)
    schedules = {row.policy: row.schedule for row in found}
    figures = jct_and_usage(schedules, shown, problem.cluster.num_gpus, title)
    for name, figure in figures.items():
        write_figure(run.folder / name, figure, provenance)
    return {
        "policies": [row.record for row in found],
        "best": found[0].policy,
        "table": str(run.folder / TABLE_FILE),
        "pictures": [str(run.folder / name) for name in figures],
    }


def jct_and_usage(
    schedules: Mapping[str, Schedule], shown: Sequence[str], gpus: int, title: str
) -> dict[str, Figure]:
    """The JCTs of all policies, and the cluster over time under those to be shown, by file."""
    figures = {JCT_FILE: draw_jct_cdf({name: s.jct for name, s in schedules.items()}, title)}
    if shown:
        over_time = {name: schedules[name] for name in shown}
        figures[USAGE_FILE] = draw_cluster_usage(over_time, gpus, title)
    return figures
