"""Replay a trace on a cluster under one scheduling policy.

python -m experiments.evaluate env=cluster agent=srtf trace.path=jobs.csv trace.format=itp \\
    cluster.nodes=12 cluster.gpus_per_node=8 placement=count interference=none json=true
python -m experiments.evaluate env=cluster agent=checkpoint \\
    trace.path=jobs.csv trace.format=itp cluster.nodes=12 cluster.gpu_types=[V100,P100,K80]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agents.cluster.shipped import scheduler_folder
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster_metrics import measure
from envs.cluster.simulation.cluster_state import Schedule
from experiments.cluster.problem import ClusterProblem, built_policy, cluster_of
from experiments.cluster.trace_source import TraceConfig, load_trace
from experiments.pictures.cluster import (
    GanttWindow,
    cluster_trace,
    draw_cluster_gantt,
    draw_cluster_usage,
    draw_jct_cdf,
)
from experiments.run.artifacts import write_figure, write_json
from experiments.run.one_run import Result, Run
from experiments.run.provenance import Provenance, file_hash, stamp

SPEC_FILE = "spec.json"  # of a checkpoint folder; it holds the hashes of all others
SHOWN = (
    "agent", "knows", "placement", "interference", "jobs", "rejected_rows", "left_out_jobs",
    "mean_jct_s", "p50_jct_s", "p99_jct_s", "mean_first_wait_s", "mean_slow_down", "makespan_s",
    "utilisation", "preemptions", "seconds",
)  # fmt: skip


@dataclass(kw_only=True)
class EvaluateClusterConfig:
    """`conf/evaluate_cluster.yaml`; groups are objects by `_target_`."""

    env: Any
    agent: Any
    placement: Any
    interference: Any
    trace: TraceConfig
    cluster: Any
    overheads: Any
    # nodes that fail: _target_: envs.cluster.simulation.incidents.Failures, with its
    # arguments
    failures: Any = None
    # true: JCT distribution, utilisation and the jobs on the nodes, in the run folder
    pictures: bool = False
    seed: int
    json: bool


def evaluate_cluster(config: EvaluateClusterConfig, run: Run) -> Result:
    """Replay the trace, measure the schedule, draw it if asked to."""
    source = load_trace(config.trace, cluster_of(config.cluster))
    problem = ClusterProblem.of(
        source.trace, config.cluster, config.interference, config.overheads, config.failures
    )
    cluster = problem.cluster
    policy = built_policy(config.agent, "agent")
    with source.located():
        problem.check(policy)
        schedule, seconds = problem.timed(policy, keep_runs=config.pictures)
    provenance = run.provenance.with_inputs(**source.inputs, **checkpoint_input(config.agent))
    agent = run.choice("agent", config.agent)
    if config.pictures:
        title = f"{source.trace.name} on {cluster.name}: {agent}"
        draw(schedule, cluster, agent, title, run.folder, provenance)
    places = "placement" in config.agent  # some policies place gangs themselves
    values: dict[str, object] = {
        "env": run.choice("env", config.env),
        "agent": agent,
        "knows": policy.knows,
        "placement": run.choice("placement", config.placement) if places else None,
        "interference": run.choice("interference", config.interference),
        **source.counts(),
        "nodes": cluster.num_nodes,
        "gpus": cluster.num_gpus,
        **measure(schedule, cluster.num_gpus).document(),
        "seconds": seconds,
    }
    for line in source.changes():
        run.console.say(line)
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


def checkpoint_inputs(agents: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The same of several agents, by "<agent> <input>"."""
    return {
        f"{name} {key}": digest
        for name, agent in agents.items()
        for key, digest in checkpoint_input(agent).items()
    }


def draw(
    schedule: Schedule,
    cluster: Cluster,
    agent: str,
    title: str,
    folder: Path,
    provenance: Provenance,
) -> None:
    """Write the pictures of a schedule that has a log of its runs."""
    gantt = GanttWindow.readable(cluster, schedule)
    figures = {
        "jct.png": draw_jct_cdf({agent: schedule.jct}, title),
        "usage.png": draw_cluster_usage({agent: schedule}, cluster.num_gpus, title),
        "gantt.png": draw_cluster_gantt(cluster, schedule, gantt, title),
    }
    for name, figure in figures.items():
        write_figure(folder / name, figure, provenance)
    trace = cluster_trace(cluster, schedule, gantt)
    write_json(folder / "trace.json", stamp(trace, provenance, kind="trace"))
