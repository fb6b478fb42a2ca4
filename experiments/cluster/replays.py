"""A trace replayed under several policies: schedules, rows of the table, pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envs.cluster.simulation.cluster_metrics import ClusterMetrics, measure
from envs.cluster.simulation.cluster_state import Schedule
from experiments.cluster.problem import ClusterProblem, Scheduler
from experiments.pictures.cluster import draw_cluster_usage, draw_jct_cdf
from experiments.run.artifacts import write_figure
from experiments.run.heartbeat import RunConsole
from experiments.run.provenance import Provenance

JCT_FILE, USAGE_FILE = "jct.png", "usage.png"
COLUMNS = (
    "policy", "knows", "mean JCT", "p50", "p99", "mean wait", "slow-down", "in use", "unfair",
    "preempted", "jobs/s",
)  # fmt: skip
CAPTION = (
    "Times in seconds. knows: what a policy may look at of a job that has not finished. slow-down: "
    "mean of JCT / work. in use: GPU-seconds held of those there were. unfair: share of the jobs "
    "later than with an equal share of the cluster, be it by a second. jobs/s: how fast they are "
    "replayed."
)


@dataclass(frozen=True, eq=False)
class Replayed:
    """One policy's schedule."""

    policy: str
    knows: str  # what it may look at of a job that has not finished
    schedule: Schedule
    metrics: ClusterMetrics
    seconds: float

    def cells(self) -> tuple[str, ...]:
        """The row of the table."""
        found = self.metrics
        return (
            self.policy,
            self.knows,
            f"{found.jct.mean:,.0f}",
            f"{found.jct.p50:,.0f}",
            f"{found.jct.p99:,.0f}",
            f"{found.queueing.mean:,.0f}",
            f"{found.slow_down.mean:,.1f}",
            f"{found.utilisation:.1%}",
            f"{found.unfair:.1%}",
            f"{found.preemptions:,}",
            f"{found.jobs / self.seconds:,.0f}",
        )

    def document(self) -> dict[str, object]:
        """The row as numbers."""
        values = {"policy": self.policy, "knows": self.knows, **self.metrics.document()}
        return {**values, "seconds": self.seconds}


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
        metrics = measure(schedule, problem.cluster.num_gpus)
        found.append(Replayed(name, policy.knows, schedule, metrics, seconds))
        console.say(f"{name}: {seconds:.2f} s")
    return sorted(found, key=lambda row: row.metrics.jct.mean)


def as_good(found: Sequence[Replayed]) -> str:
    """The policies whose mean JCT is that of the first."""
    best = found[0].metrics.jct.mean
    return ", ".join(row.policy for row in found[1:] if row.metrics.jct.mean <= best * (1 + 1e-9))


def write_pictures(
    found: Sequence[Replayed], shown: Sequence[str], problem: ClusterProblem, title: str,
    folder: Path, provenance: Provenance,
) -> list[str]:  # fmt: skip
    """The JCTs of all policies, and the cluster over time under those to be shown."""
    schedules = {row.policy: row.schedule for row in found}
    figures = {JCT_FILE: draw_jct_cdf({n: s.jct for n, s in schedules.items()}, title)}
    if shown:
        over_time = {name: schedules[name] for name in shown}
        figures[USAGE_FILE] = draw_cluster_usage(over_time, problem.cluster.num_gpus, title)
    for name, figure in figures.items():
        write_figure(folder / name, figure, provenance)
    return [str(folder / name) for name in figures]
