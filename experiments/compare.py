"""Replay a trace on a cluster under many scheduling policies: one table, and their pictures.

python -m experiments.compare
python -m experiments.compare trace.path=jobs.csv trace.format=itp trace.window=test \\
    cluster.nodes=12 interference=analytic placement=least_interference
python -m experiments.compare +agent@agents.checkpoint=cluster_checkpoint interference=analytic \\
    'cluster.gpu_types=[V100,P100,T4]'
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from envs.cluster.simulation.cluster_metrics import ClusterMetrics, measure
from envs.cluster.simulation.cluster_state import Schedule
from envs.errors import InputError
from experiments.cluster.evaluate_cluster import checkpoint_input
from experiments.cluster.problem import ClusterProblem, built_policy
from experiments.cluster.trace_source import TraceConfig, load_trace
from experiments.pictures.cluster import draw_cluster_usage, draw_jct_cdf
from experiments.run.app import Result, Run, run_app
from experiments.run.artifacts import write_figure
from experiments.run.tables import TABLE_FILE, Table, write_tables

JCT_FILE, USAGE_FILE = "jct.png", "usage.png"
COLUMNS = (
    "policy", "knows", "mean JCT", "p50", "p99", "mean wait", "slow-down", "in use", "unfair",
    "preempted", "jobs/s",
)  # fmt: skip
CAPTION = (
    "Times in seconds. knows: what a policy may look at of a job that has not finished. slow-down: "
    "mean of JCT / work. in use: GPU-seconds held of those there were. unfair: share of the jobs "
    "later than with an equal share of the cluster."
)


@dataclass
class CompareConfig:
    """`conf/compare.yaml`; groups are objects by `_target_`."""

    agents: dict[str, Any]
    placement: Any
    interference: Any
    trace: TraceConfig
    cluster: Any
    overheads: Any
    failures: Any
    shown: list[str]
    seed: int
    json: bool

    def __post_init__(self) -> None:
        if not self.agents:
            raise InputError("config key 'agents': no policy")
        for name in self.shown:
            if name not in self.agents:
                known = ", ".join(self.agents)
                raise InputError(f"config key 'shown': '{name}' is no policy here (known: {known})")


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


def compare(config: CompareConfig, run: Run) -> Result:
    """Replay the trace under every policy, those with the least mean JCT first in the table."""
    start = time.perf_counter()
    source = load_trace(config.trace)
    problem = ClusterProblem.of(
        source.trace, config.cluster, config.interference, config.overheads, config.failures
    )
    policies = {name: built_policy(node, f"agents.{name}") for name, node in config.agents.items()}
    found = []
    for name, policy in policies.items():
        keep_runs = name in config.shown
        schedule, seconds = problem.timed(policy, keep_runs=keep_runs)
        metrics = measure(schedule, problem.cluster.num_gpus)
        found.append(Replayed(name, policy.knows, schedule, metrics, seconds))
        run.console.print(f"{name}: {seconds:.2f} s", highlight=False)
    found.sort(key=lambda row: row.metrics.jct.mean)
    load = ""
    if source.trace.span_s:
        load = f", offered load {source.trace.offered_load(problem.cluster.num_gpus):.2f}"
    title = (
        f"{len(source.trace):,} jobs of {source.trace.name} on {problem.cluster.name} GPUs{load}, "
        f"placement {run.choice('placement', config.placement)}, "
        f"interference {run.choice('interference', config.interference)}"
    )
    inputs = dict(source.inputs)
    for name, node in config.agents.items():
        inputs |= {f"{name} {key}": digest for key, digest in checkpoint_input(node).items()}
    provenance = run.provenance.with_inputs(**inputs)
    cells = [row.cells() for row in found]
    write_tables(run, title, [Table("Policies", COLUMNS, cells, CAPTION)], provenance)
    for line in source.rejections():
        run.console.print(line, soft_wrap=True)
    figures = pictures({row.policy: row for row in found}, config.shown, problem, title)
    for name, figure in figures.items():
        write_figure(run.folder / name, figure, provenance)
    values: dict[str, object] = {
        "trace": source.trace.name,
        "jobs": len(source.trace),
        "rejected_rows": source.num_rejected,
        "gpus": problem.cluster.num_gpus,
        "policies": [row.document() for row in found],
        "best": found[0].policy,
        "table": str(run.folder / TABLE_FILE),
        "pictures": [str(run.folder / name) for name in figures],
        "seconds": time.perf_counter() - start,
    }
    return Result(values, provenance, shown=("best", "table", "seconds"))


def pictures(
    rows: Mapping[str, Replayed], shown: list[str], problem: ClusterProblem, title: str
) -> dict[str, Any]:
    """The JCTs of all policies, and the cluster over time under those to be shown."""
    figures = {JCT_FILE: draw_jct_cdf({n: r.schedule.jct for n, r in rows.items()}, title)}
    if shown:
        schedules = {name: rows[name].schedule for name in shown}
        figures[USAGE_FILE] = draw_cluster_usage(schedules, problem.cluster.num_gpus, title)
    return figures


if __name__ == "__main__":
    sys.exit(run_app("compare", CompareConfig, compare))
