"""A trace as sleeps on a Slurm of this machine, driven by policies beside their replays."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from agents.cluster.live import StateDecider
from envs.arrays import FloatArray
from envs.bounds import Count, Positive, bounded
from envs.cluster.interference.rates import NoInterference
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster_metrics import measure
from envs.cluster.simulation.cluster_state import RUN, Overheads, Schedule
from envs.cluster.slurm.commands import Job
from envs.cluster.slurm.machine import LocalSlurm
from envs.cluster.workload.trace import WHOLE_GPU, Trace, refuse_rows
from experiments.cluster.problem import ClusterProblem
from experiments.cluster.trace_source import TraceConfig, load_trace
from experiments.driving.drive import AUDIT, decider_of
from experiments.driving.driver import AuditLog, Driver, Limits
from experiments.pictures.cluster import GanttWindow, draw_gantts
from experiments.reporting.tables import Columns, Table, write_tables
from experiments.run.one_run import Result, Run

COLUMNS: Columns = {
    "policy": "{policy}",
    "mean JCT live": "{live_mean_jct_s:,.0f}",
    "replayed": "{replay_mean_jct_s:,.0f}",
    "ratio": "{mean_ratio:.3f}",
    "with latency": "{mean_ratio_with_latency:.3f}",
    "p99 live": "{live_p99_jct_s:,.0f}",
    "p99 ratio": "{p99_ratio:.3f}",
    "preempted": "{preemptions:,}",
    "applied p99": "{applied_p99_s:.2f}",
    "to run": "{launch_s:.2f}",
}
CAPTION = (
    "Times of jobs in seconds of the trace. ratio: live over the replay's prediction. with "
    "latency: over that of a replay in which every run takes as much longer as Slurm took in the "
    "mean to begin and to end it. applied p99: seconds from an arrival or an end until what was "
    "decided on it was done. to run: seconds from a release to the job's first instant."
)


@bounded
@dataclass(kw_only=True)
class RehearseConfig:
    """`conf/rehearse.yaml`."""

    cluster: Literal["local"] = "local"
    # exported schedulers and policies of conf/agent by their names, each on a Slurm of its own
    policies: Sequence[str] = ("fifo", "srtf", "las_2d_tiresias", "unknown_durations")
    nodes: Count = 8
    gpus_per_node: Count = 8
    scale: Positive = 100.0  # seconds of the trace in one second here
    trace: TraceConfig
    placement: Any
    limits: Limits = field(default_factory=Limits)
    seed: int
    json: bool


def rehearse(config: RehearseConfig, run: Run) -> Result:
    """Play the trace live under every policy, and replay it beside."""
    cluster = Cluster.uniform(config.nodes, config.gpus_per_node)
    source = load_trace(config.trace, cluster)
    trace, records, figures = source.trace, [], {}
    chosen = {name: decider_of(name, config.placement, config.seed) for name in config.policies}
    for name, (decider, policy) in chosen.items():
        decider.warm()
        run.console.say(f"{name}: {len(trace)} jobs on {config.nodes} nodes, live")
        live = played(trace, decider, config, run.folder / name)
        gap_s = float(live.applied_s.mean() + live.launch_s.mean()) * config.scale
        later = replace(trace, duration_s=trace.duration_s + round(gap_s))
        settings = (trace, 0.0), (later, gap_s)
        plain, late = (
            ClusterProblem(cluster, jobs, NoInterference(), Overheads(restart_s, 0.0), None).replay(
                policy, keep_runs=True
            )
            for jobs, restart_s in settings
        )
        records.append({"policy": name, **_beside(live, plain, late, cluster.num_gpus)})
        run.console.say(f"{name}: mean JCT live over replayed {records[-1]['mean_ratio']:.3f}")
        window = GanttWindow.readable(cluster, plain)
        last = max(plain.makespan, live.schedule.makespan)
        window = GanttWindow(0.0, last, window.nodes)
        title = f"{len(trace)} jobs of {trace.name} under {name}"
        schedules = {"simulated": plain, "live on Slurm": live.schedule}
        figures[f"gantt_{name}.png"] = draw_gantts(cluster, schedules, window, title)
    title = f"{len(trace)} jobs of trace {trace.name} on {cluster.name} GPUs, live and replayed"
    provenance = run.provenance.with_inputs(**source.inputs)
    table = Table.of(title, COLUMNS, records, CAPTION)
    table_file = write_tables(run, title, [table], provenance, figures=figures)
    orders = {
        tuple(np.argsort([row[f"{how}_mean_jct_s"] for row in records]).tolist())
        for how in ("live", "replay")
    }
    values = {
        "jobs": len(trace),
        "policies": records,
        "same_order": len(orders) == 1,
        "table": table_file,
    }
    return Result(values, provenance, ("jobs", "same_order", "table"))


@dataclass(frozen=True, eq=False)
class Live:
    """What became of a trace on a real Slurm."""

    schedule: Schedule  # in seconds of the trace, with a log of the runs
    # (J,) mean seconds here from the arrival and the end of a job until what was decided on that
    # was done
    applied_s: FloatArray
    launch_s: FloatArray  # (runs,) seconds here from a release to the first instant of the job


@dataclass
class _TimedDriver(Driver):
    """Knows when what was decided on each job's arrival and end was done."""

    applied: dict[tuple[str, bool], float] = field(default_factory=dict)

    def _act(
        self, actions: Sequence[Mapping[str, Any]], jobs: Sequence[Job], state: Mapping[str, Any]
    ) -> None:
        super()._act(actions, jobs, state)
        for job in jobs:
            self.applied.setdefault((job.label, job.state == "OVER"), time.time())


def played(trace: Trace, decider: StateDecider, config: RehearseConfig, folder: Path) -> Live:
    """Submit the jobs of a trace at their times, and drive them until all are over.

    Raises:
        InputError: Slurm cannot be started, or a gang is no number of whole nodes.
    """
    machine = LocalSlurm(folder / "slurm", config.nodes, config.gpus_per_node)
    beyond = trace.num_gpus > config.gpus_per_node
    refuse_rows(trace, beyond & (trace.num_gpus % config.gpus_per_node > 0), "num_gpus")
    audit, names = AuditLog(folder / AUDIT), [f"job{job}" for job in range(len(trace))]
    with machine:
        machine.slurm.find_record()
        driver = _TimedDriver(
            machine.slurm, decider, audit, limits=config.limits, durations="comment",
            scale=config.scale,
        )  # fmt: skip
        begun = time.time()
        due = begun + trace.submit_s / config.scale

        stopped = threading.Event()

        def submit() -> None:
            for job, name in enumerate(names):
                if stopped.wait(max(due[job] - time.time(), 0.0)):
                    return
                seconds = float(trace.duration_s[job])
                machine.submit(
                    name, int(trace.num_gpus[job]), seconds / config.scale,
                    comment=f"duration_s={seconds:g}",
                )  # fmt: skip

        def over() -> bool:
            ended = {run.job for run in machine.slurm.runs() if run.state != "PENDING"}
            return len(ended) == len(names) or (
                submitted.done() and submitted.exception() is not None
            )

        with ThreadPoolExecutor(1) as pool:
            submitted = pool.submit(submit)
            try:
                driver.run(over)
            finally:
                stopped.set()
            submitted.result()
        driver.step(always=True)  # the last ends
        slept = [machine.slept(name) for name in names]
    return _measured(trace, slept, driver.applied, due, _releases(audit.path), begun, config.scale)


def _releases(path: Path) -> dict[str, list[tuple[float, list[str]]]]:
    """When jobs were sent to which nodes, by their names."""
    found: dict[str, list[tuple[float, list[str]]]] = {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        if row["event"] == "start":
            found.setdefault(row["name"], []).append((row["time"], row["nodes"]))
    return found


def _measured(
    trace: Trace,
    slept: Sequence[Sequence[tuple[float, float]]],
    applied: Mapping[tuple[str, bool], float],
    due: FloatArray,
    releases: Mapping[str, Sequence[tuple[float, list[str]]]],
    begun: float,
    scale: float,
) -> Live:
    """From what jobs and driver wrote down to a schedule; times become seconds of the trace."""
    rows, launches = [], []
    for job, spans in enumerate(slept):
        sent = releases[f"job{job}"]
        for start, end in spans:
            at, nodes = max(one for one in sent if one[0] <= start)
            launches.append(start - at)
            each = int(trace.num_gpus[job]) // len(nodes)
            span = (start - begun) * scale, (end - begun) * scale
            rows += [(*span, job, int(node[1:]), each, WHOLE_GPU) for node in nodes]
    ends = np.array([spans[-1][1] for spans in slept])
    waits = [applied[f"job{job}", False] - due[job] for job in range(len(trace))]
    waits += [applied[f"job{job}", True] - ends[job] for job in range(len(trace))]
    schedule = Schedule(
        submit=trace.submit_s.astype(np.float64),
        start=(np.array([spans[0][0] for spans in slept]) - begun) * scale,
        finish=(ends - begun) * scale,
        work=trace.duration_s.astype(np.float64),
        gpus=trace.num_gpus.astype(np.float64),
        held=scale * np.array([sum(end - start for start, end in spans) for spans in slept]),
        preemptions=np.array([len(spans) - 1 for spans in slept], np.int32),
        runs=np.array(rows, RUN),
    )
    return Live(schedule, np.array(waits), np.array(launches))


def _beside(live: Live, plain: Schedule, late: Schedule, gpus: int) -> dict[str, Any]:
    """The figures of a policy: live, replayed, and replayed with the latency that Slurm had."""
    found, replayed, later = (measure(one, gpus).jct for one in (live.schedule, plain, late))
    return {
        "live_mean_jct_s": found.mean,
        "replay_mean_jct_s": replayed.mean,
        "mean_ratio": found.mean / replayed.mean,
        "mean_ratio_with_latency": found.mean / later.mean,
        "live_p99_jct_s": found.p99,
        "replay_p99_jct_s": replayed.p99,
        "p99_ratio": found.p99 / replayed.p99,
        "p99_ratio_with_latency": found.p99 / later.p99,
        "preemptions": int(live.schedule.preemptions.sum()),
        "replay_preemptions": int(plain.preemptions.sum()),
        "applied_p99_s": float(np.quantile(live.applied_s, 0.99)),
        "applied_s": float(live.applied_s.mean()),
        "launch_s": float(live.launch_s.mean()),
    }
