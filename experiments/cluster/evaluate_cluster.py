"""Replay a trace on a cluster under one scheduling policy, or under many side by side.

python -m experiments.replay agent=srtf trace.path=jobs.csv trace.format=itp cluster.nodes=12 \\
    cluster.gpus_per_node=8 placement=count interference=none json=true
python -m experiments.replay agent=checkpoint trace.path=jobs.csv trace.format=itp \\
    cluster.nodes=12 'cluster.gpu_types=[V100,P100,K80]'
python -m experiments.compare trace.path=jobs.csv trace.format=itp 'policies=[fifo,srtf,las_2d]'

`replay` is `evaluate env=cluster`. `compare` gives one table and the pictures of all policies; one
more, or one with other values, is `+agent@agents.<name>=<agent>`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from annotated_types import MinLen
from matplotlib.figure import Figure

from agents.cluster.shipped import scheduler_folder
from envs.cluster.simulation.cluster_metrics import measure
from envs.cluster.simulation.cluster_state import Schedule
from envs.errors import InputError, meant
from experiments.cluster.problem import ClusterProblem, Scheduler, built_policy, cluster_of
from experiments.cluster.trace_source import LoadedTrace, TraceConfig, load_trace
from experiments.pictures.cluster import (
    GanttWindow,
    cluster_trace,
    draw_cluster_gantt,
    draw_cluster_usage,
    draw_jct_cdf,
)
from experiments.reporting.tables import Columns, Table, write_tables
from experiments.run.artifacts import write_figure, write_json
from experiments.run.one_run import Result, Run, RunConsole
from experiments.run.provenance import Provenance, file_hash, stamp

COLUMNS: Columns = {
    "policy": "{policy}",
    "knows": "{knows}",
    "mean JCT": "{mean_jct_s:,.0f}",
    "p50": "{p50_jct_s:,.0f}",
    "p99": "{p99_jct_s:,.0f}",
    "mean wait": "{mean_queueing_s:,.0f}",
    "slow-down": "{mean_slow_down:,.1f}",
    "in use": "{utilisation:.1%}",
    "unfair": "{unfair:.1%}",
    "preempted": "{preemptions:,}",
    "jobs/s": lambda row: f"{row['jobs'] / row['seconds']:,.0f}",
}
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
    return Table.of(title, COLUMNS, [row.record for row in found], note)


def write_replays(
    found: Sequence[Replayed], shown: Sequence[str], problem: ClusterProblem, title: str, run: Run,
    provenance: Provenance, note: str = CAPTION,
) -> dict[str, Any]:  # fmt: skip
    """Write the table, the JCTs of all, and the cluster over time under those to be shown.

    Returns what goes to `result.json`.
    """
    run.console.say(title)
    schedules = {row.policy: row.schedule for row in found}
    figures = jct_and_usage(schedules, shown, problem.cluster.num_gpus, title)
    table = policies_table(found, "Policies", note)
    table_file = write_tables(run, title, [table], provenance, figures=figures)
    return {
        "policies": [row.record for row in found],
        "best": found[0].policy,
        "table": table_file,
        "pictures": [str(run.folder / name) for name in figures],
    }


def jct_and_usage(
    schedules: Mapping[str, Schedule], shown: Sequence[str], gpus: int, title: str
) -> dict[str, Figure]:
    """The JCTs of all policies, and the cluster over time under those to be shown, by file."""
    figures = {"jct.png": draw_jct_cdf({name: s.jct for name, s in schedules.items()}, title)}
    if shown:
        over_time = {name: schedules[name] for name in shown}
        figures["usage.png"] = draw_cluster_usage(over_time, gpus, title)
    return figures


SPEC_FILE = "spec.json"  # of a checkpoint folder; it holds the hashes of all others
SHOWN = (
    "agent", "knows", "placement", "interference", "jobs", "rejected_rows", "left_out_jobs",
    "mean_jct_s", "p50_jct_s", "p99_jct_s", "mean_first_wait_s", "mean_slow_down", "makespan_s",
    "utilisation", "preemptions", "seconds",
)  # fmt: skip


@dataclass(kw_only=True)
class ReplayConfig:
    """A trace, and the cluster that it is replayed on; groups are objects by `_target_`."""

    placement: Any
    interference: Any
    trace: TraceConfig
    cluster: Any
    overheads: Any
    # nodes that fail: _target_: envs.cluster.simulation.incidents.Failures, with its
    # arguments
    failures: Any = None
    seed: int
    json: bool

    def loaded(self) -> tuple[LoadedTrace, ClusterProblem]:
        """The jobs, and all that a policy is up against.

        Raises:
            InputError: as `load_trace` and `ClusterProblem.of`.
        """
        source = load_trace(self.trace, cluster_of(self.cluster))
        return source, ClusterProblem.of(
            source.trace, self.cluster, self.interference, self.overheads, self.failures
        )


@dataclass(kw_only=True)
class EvaluateClusterConfig(ReplayConfig):
    """`conf/evaluate_cluster.yaml`."""

    env: Any
    agent: Any
    # true: JCT distribution, utilisation and the jobs on the nodes, in the run folder
    pictures: bool = False


def evaluate_cluster(config: EvaluateClusterConfig, run: Run) -> Result:
    """Replay the trace, measure the schedule, draw it if asked to."""
    source, problem = config.loaded()
    cluster, policy = problem.cluster, built_policy(config.agent, "agent")
    agent = run.choice("agent", config.agent)
    with source.located():
        shown = [agent] if config.pictures else []
        (found,) = replays(problem, {agent: policy}, shown, run.console)
    provenance = run.provenance.with_inputs(**source.inputs, **checkpoint_input(config.agent))
    if config.pictures:
        title = f"{source.trace.name} on {cluster.name}: {agent}"
        gantt = GanttWindow.readable(cluster, found.schedule)
        figures = jct_and_usage({agent: found.schedule}, shown, cluster.num_gpus, title)
        figures["gantt.png"] = draw_cluster_gantt(cluster, found.schedule, gantt, title)
        for name, figure in figures.items():
            write_figure(run.folder / name, figure, provenance)
        trace = cluster_trace(cluster, found.schedule, gantt)
        write_json(run.folder / "trace.json", stamp(trace, provenance, kind="trace"))
    places = "placement" in config.agent  # some policies place gangs themselves
    values: dict[str, object] = {
        "env": run.choice("env", config.env),
        "agent": agent,
        "placement": run.choice("placement", config.placement) if places else None,
        "interference": run.choice("interference", config.interference),
        **source.counts(),
        "nodes": cluster.num_nodes,
        "gpus": cluster.num_gpus,
        **{key: value for key, value in found.record.items() if key != "policy"},
    }
    source.tell_changes(run.console)
    return Result(values, provenance, SHOWN)


def checkpoint_input(agent: Mapping[str, Any]) -> dict[str, str]:
    """The SHA-256 of the exported scheduler, or learned order, of an agent; empty without one."""
    files: dict[str, Path] = {}
    if agent.get("checkpoint"):
        files["checkpoint"] = scheduler_folder(agent["checkpoint"]) / SPEC_FILE
    priority = agent.get("priority")
    if isinstance(priority, Mapping) and priority.get("path"):
        files["priority"] = Path(priority["path"]) / SPEC_FILE
        if isinstance(priority.get("weights"), str):
            files["weights"] = Path(priority["weights"])
    return {name: file_hash(file) for name, file in files.items()}


@dataclass(kw_only=True)
class CompareConfig(ReplayConfig):
    """`conf/compare.yaml`."""

    agents: Annotated[dict[str, Any], MinLen(1)]
    # names under agents, those alone: [fifo, srtf]; null: all of them
    policies: Annotated[Sequence[str], MinLen(1)] | None = None
    # policies in the picture of the cluster over time
    shown: Sequence[str] = ("fifo", "fifo_backfill", "las_2d", "srtf")

    def __post_init__(self) -> None:
        for key, names in (("shown", self.shown), ("policies", self.policies or [])):
            for name in names:
                if name not in self.agents:
                    near = meant(name, self.agents)
                    reason = f"'{name}' is no policy here ({near}known: {', '.join(self.agents)})"
                    raise InputError(f"config key '{key}': {reason}")


def compare(config: CompareConfig, run: Run) -> Result:
    run.begin("reading the jobs")
    source, problem = config.loaded()
    asked = config.policies or list(config.agents)
    agents = {name: node for name, node in config.agents.items() if name in asked}
    policies = {name: built_policy(node, f"agents.{name}") for name, node in agents.items()}
    run.begin("replaying them under every policy")
    added = [name for name in policies if f"+agent@agents.{name}=" in " ".join(run.overrides)]
    shown = [name for name in dict.fromkeys([*config.shown, *added]) if name in policies]
    with source.located():
        found = replays(problem, policies, shown, run.console)
    placement = run.choice("placement", config.placement)
    interference = run.choice("interference", config.interference)
    title = f"{problem.title}, placement {placement}, interference {interference}"
    inputs = {
        f"{name} {key}": digest
        for name, node in agents.items()
        for key, digest in checkpoint_input(node).items()
    }
    provenance = run.provenance.with_inputs(**source.inputs, **inputs)
    written = write_replays(found, shown, problem, title, run, provenance)
    source.tell_changes(run.console)
    least, *others = written["policies"]
    ties = [x["policy"] for x in others if x["mean_jct_s"] <= least["mean_jct_s"] * (1 + 1e-9)]
    return Result(
        {
            **source.counts(),
            "gpus": problem.cluster.num_gpus,
            **written,
            "as_good": ", ".join(ties),
            "seconds": run.seconds,
        },
        provenance,
        shown=("jobs", "best", "as_good", "table", "seconds"),
    )
