"""Replay a trace on a cluster under one scheduling policy.

python -m experiments.evaluate env=cluster agent=srtf trace.path=jobs.csv trace.format=itp \\
    cluster.nodes=12 cluster.gpus_per_node=8 placement=count interference=none json=true
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agents.cluster.policy import ClusterPolicy
from agents.cluster.replay import replay
from envs.hardware.cluster import Cluster
from envs.interference.rates import RateModel
from envs.simulation.cluster_metrics import measure
from envs.simulation.cluster_state import Overheads
from envs.simulation.incidents import Failures
from envs.simulation.schedule import Schedule
from envs.workload.trace import Trace
from experiments.app import Result, Run
from experiments.artifacts import write_figure
from experiments.cluster_gantt import GanttWindow, draw_cluster_gantt
from experiments.cluster_usage_chart import draw_cluster_usage
from experiments.jct_cdf import draw_jct_cdf
from experiments.provenance import Provenance
from experiments.targets import build, no_such_thing
from experiments.trace_source import TraceConfig, load_trace

WARM_UP = 64  # jobs of the trace replayed first, so that compiling is not in the time reported
SHOWN = (
    "agent", "placement", "interference", "jobs", "rejected_rows", "mean_jct_s", "p50_jct_s",
    "p99_jct_s", "mean_first_wait_s", "mean_slow_down", "makespan_s", "utilisation", "preemptions",
    "seconds",
)  # fmt: skip


@dataclass
class EvaluateClusterConfig:
    """`conf/evaluate_cluster.yaml`; groups are objects by `_target_`."""

    env: Any
    agent: Any
    placement: Any
    interference: Any
    trace: TraceConfig
    cluster: Any
    overheads: Any
    failures: Any
    pictures: bool
    seed: int
    json: bool


@dataclass(frozen=True, eq=False)
class ClusterProblem:
    """All that a policy is up against."""

    cluster: Cluster
    trace: Trace
    rates: RateModel
    overheads: Overheads
    incidents: NDArray[np.void] | None

    def replay(self, policy: ClusterPolicy, *, keep_runs: bool = False) -> Schedule:
        """What `policy` makes of it."""
        return replay(
            policy,
            self.cluster,
            self.trace,
            rates=self.rates,
            overheads=self.overheads,
            incidents=self.incidents,
            keep_runs=keep_runs,
        )

    def head(self, jobs: int) -> ClusterProblem:
        """The same about the first jobs of the trace."""
        trace = self.trace.take(slice(jobs))
        return ClusterProblem(self.cluster, trace, self.rates, self.overheads, self.incidents)


def evaluate_cluster(config: EvaluateClusterConfig, run: Run) -> Result:
    """Replay the trace, measure the schedule, draw it if asked to."""
    source = load_trace(config.trace)
    cluster: Cluster = build(config.cluster)
    incidents = None
    if config.failures is not None:
        failures: Failures = build(config.failures)
        incidents = failures.incidents(cluster)
    problem = ClusterProblem(
        cluster, source.trace, build(config.interference), build(config.overheads), incidents
    )
    policy: ClusterPolicy = build(config.agent)
    if not hasattr(policy, "decide"):
        raise no_such_thing("agent", config.agent, "policy of a cluster: take agent=fifo, say")
    problem.head(WARM_UP).replay(policy, keep_runs=config.pictures)
    start = time.perf_counter()
    schedule = problem.replay(policy, keep_runs=config.pictures)
    seconds = time.perf_counter() - start
    provenance = run.provenance.with_inputs(**source.inputs)
    if config.pictures:
        name = f"{source.trace.name} on {cluster.name}: {run.choice('agent', config.agent)}"
        draw(schedule, cluster, name, run.folder, provenance)
    values: dict[str, object] = {
        "env": run.choice("env", config.env),
        "agent": run.choice("agent", config.agent),
        "placement": run.choice("placement", config.placement),
        "interference": run.choice("interference", config.interference),
        "trace": source.trace.name,
        "rejected_rows": source.num_rejected,
        "nodes": cluster.num_nodes,
        "gpus": cluster.num_gpus,
        **measure(schedule, cluster.num_gpus).document(),
        "seconds": seconds,
    }
    if source.num_rejected:
        run.console.print(f"rows left out: {source.rejections()}", highlight=False)
    return Result(values, provenance, SHOWN)


def draw(
    schedule: Schedule, cluster: Cluster, title: str, folder: Path, provenance: Provenance
) -> None:
    """Write the pictures of a schedule that has a log of its runs."""
    gantt = GanttWindow.readable(cluster, schedule)
    figures = {
        "jct.png": draw_jct_cdf({title: schedule.jct}, title),
        "usage.png": draw_cluster_usage({title: schedule}, cluster.num_gpus, title),
        "gantt.png": draw_cluster_gantt(cluster, schedule, gantt, title),
    }
    for name, figure in figures.items():
        write_figure(folder / name, figure, provenance)
