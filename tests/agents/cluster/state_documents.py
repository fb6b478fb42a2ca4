"""A simulator's state in the form of `agents.cluster.live_state.LiveCluster`."""

from __future__ import annotations

from typing import Any

import numpy as np

from envs.cluster.nodes import UNLIMITED
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import FINISHED, JOB, RUNNING
from envs.cluster.workload.trace import WHOLE_GPU
from tests.agents.cluster.small_clusters import order_of_starts


def document_of(
    simulator: ClusterSimulator, durations: bool, closed: bool | None = None
) -> dict[str, Any]:
    """The state of a simulator at a decision, as a live cluster would give it.

    Args:
        simulator: whose jobs have the names of its trace, and nodes their numbers.
        durations: whether it says how long jobs take.
        closed: that no job will come; None: whether the trace is at its end.
    """
    simulator.settle()
    cluster, trace, state = simulator.cluster, simulator.trace, simulator.state
    clock, typical = state.clock[0], simulator.tables.speed.mean(axis=0)
    nodes: list[dict[str, Any]] = []
    for number, node in enumerate(state.nodes):
        limits = {"cpu_milli": cluster.cpu_milli[number], "memory_mib": cluster.memory_mib[number]}
        nodes.append(
            {
                "id": str(number),
                "gpu_type": cluster.gpu_types[node["type"]],
                "num_gpus": int(node["gpus"]),
                "rack": int(node["rack"]),
                **({} if node["up"] else {"up": False}),
                **{key: int(limit) for key, limit in limits.items() if limit < UNLIMITED},
            }
        )
    jobs = [_job(simulator, job, typical, durations) for job in range(int(clock["arrived"]))]
    if closed is None:
        closed = bool(clock["arrived"] == len(trace) and clock["incident"] == len(state.incidents))
    return {
        "now_s": simulator.now,
        "gpu_types": dict(zip(cluster.gpu_types, typical.tolist(), strict=True)),
        "restart_s": simulator.overheads.restart_s,
        "closed": closed,
        "nodes": nodes,
        "jobs": jobs,
        "waiting": [str(trace.job_id[job]) for job in simulator.pending()],
        "running": [str(trace.job_id[job]) for job in order_of_starts(simulator)],
    }


ALWAYS = {
    "submit_s": "submit",
    "num_gpus": "gpus",
    "since_s": "since",
    "held_s": "executed",
    "attained_s": "attained",
    "preemptions": "preemptions",
}


def _job(
    simulator: ClusterSimulator, job: int, typical: np.ndarray[Any, Any], durations: bool
) -> dict[str, Any]:
    trace, state, tables = simulator.trace, simulator.state, simulator.tables
    record = dict(zip(JOB.names or (), state.jobs[job].tolist(), strict=True))
    document: dict[str, Any] = {"id": str(trace.job_id[job])}
    document |= {key: record[field] for key, field in ALWAYS.items()}
    if record["milli"] < WHOLE_GPU:
        document["gpu_milli"] = record["milli"]
    if trace.gpu_type[job] is not None:
        document["gpu_types"] = str(trace.gpu_type[job]).split("|")
    optional = {"user": trace.user[job], "queue": trace.queue[job]}
    optional |= {"cpu_milli": record["cpu"], "memory_mib": record["memory"]}
    document |= {key: value for key, value in optional.items() if value}
    speed = tables.speed[tables.profile[job]]
    if (speed != typical).any():
        document["speed"] = dict(zip(simulator.cluster.gpu_types, speed.tolist(), strict=True))
    if record["status"] == FINISHED:
        return {**document, "finish_s": record["finish"]}
    if durations:
        document |= {"duration_s": record["work"], "remaining_s": record["remaining"]}
    if record["status"] == RUNNING:
        document["holds"] = {str(node): gpus for node, gpus in simulator.shares(job)}
        document |= {"rate": record["rate"], "ready_s": record["ready"]}
        partial = state.shares[record["share"]]["partial"]
        if partial >= 0:
            document["shared_gpu"] = str(partial)
        if durations and np.isfinite(record["end"]):
            document["end_s"] = record["end"]
    return document
