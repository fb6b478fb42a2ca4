"""What Slurm says as the state that an exported scheduler decides on."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from envs.cluster.slurm.commands import Job, Node, Run

Known = Literal["nothing", "time_limit", "comment"]  # where it is written how long a job takes
LEARNED = 2000  # ended jobs that are told of, the last ones
ENDLESS_S = 1e9  # where a job does not say how long it takes
_DURATION = re.compile(r"\bduration_s=(\d+(?:\.\d+)?)")


def cluster_state(
    jobs: Sequence[Job],
    nodes: Sequence[Node],
    runs: Iterable[Run],
    now: float,
    *,
    gpus: Mapping[str, int],
    durations: Known = "nothing",
    scale: float = 1.0,
    restart_s: float = 0.0,
) -> dict[str, Any]:
    """Plain data of the form `agents.cluster.live_state.LiveCluster`.

    Jobs that are to begin on nodes hold them already; GPUs that other jobs hold are not free.

    Args:
        jobs: those to be decided on, and those that have ended.
        nodes: of the partition.
        runs: past ones; `submit_s` and `held_s` count them too.
        now: seconds since 1970.
        gpus: of jobs that have ended, as far as anybody knows.
        durations: where it is written how long jobs take; one that does not say it is endless.
        scale: seconds of the state in one second of Slurm's.
        restart_s: seconds of the state before a stopped job progresses again.
    """
    past = defaultdict[str, list[Run]](list)
    for run in runs:
        past[run.job].append(run)
    submitted = [*(job.submit_s for job in jobs), *(of_job[0].submit_s for of_job in past.values())]
    first = min([now, *filter(None, submitted)])

    def at(time: float) -> float:
        return min(max(time, first), now) * scale - first * scale

    known = {node.name for node in nodes}
    rows, held, sent = [], defaultdict[str, int](int), defaultdict[str, int](int)
    for job in jobs:
        before, holds = past.pop(job.name, []), _holds(job)
        executed = sum(run.seconds for run in before)
        if job.state == "COMPLETING" or (
            holds and not (holds.keys() <= known and sum(holds.values()) == job.gpus)
        ):
            continue  # neither here nor there, or on a node that has vanished: Slurm will say
        row: dict[str, Any] = {
            "id": job.name,
            "submit_s": at(min([job.submit_s, *(run.submit_s for run in before)])),
            "num_gpus": job.gpus,
            "user": job.user,
            "queue": job.partition,
        }
        if job.state == "OVER":
            if not before and job.start_s and job.end_s:
                executed = max(min(job.end_s, now) - job.start_s, 0.0)
            rows.append({**row, "held_s": executed * scale, "finish_s": at(job.end_s or now)})
            continue
        if holds:
            since = job.start_s if job.state == "RUNNING" and job.start_s else now
            executed += max(now - since, 0.0)
            row |= {"holds": dict(holds), "since_s": at(since)}
            for node, number in holds.items():
                held[node] += number
                sent[node] += number * (job.state == "PENDING")
        stops = sum(run.state == "PENDING" for run in before)
        row |= {"held_s": executed * scale, "preemptions": stops}
        row |= {"gpu_types": [job.gpu_type]} if job.gpu_type else {}
        if durations != "nothing":
            own = scale if durations == "time_limit" else 1.0
            told = own * (duration_s(job, durations) or ENDLESS_S)
            row["duration_s"] = min(max(told, 1.0), ENDLESS_S)
        rows.append(row)
    for name, before in [*past.items()][-LEARNED:]:
        number = before[-1].gpus or gpus.get(name, 0)
        if before[-1].state != "PENDING" and number:
            rows.append({
                "id": name, "submit_s": at(before[0].submit_s), "num_gpus": number,
                "user": before[-1].user, "finish_s": at(before[-1].end_s),
                "held_s": scale * sum(run.seconds for run in before),
            })  # fmt: skip
    return {
        "now_s": at(now),
        "nodes": [_node(node, held[node.name], sent[node.name]) for node in nodes],
        "jobs": rows,
        "restart_s": restart_s,
    }


def _holds(job: Job) -> Mapping[str, int]:
    """GPUs by node of a job that runs, or that was sent there."""
    if job.state == "RUNNING":
        return job.holds
    if job.held or job.state != "PENDING" or not job.wants:
        return {}
    each, more = divmod(job.gpus, len(job.wants))
    divided = ((name, each + (place < more)) for place, name in enumerate(job.wants))
    return {name: number for name, number in divided if number}


def _node(node: Node, held: int, sent: int) -> dict[str, Any]:
    """A node of which jobs hold GPUs, some of them only sent there; others may use it too."""
    free = max(node.gpus - max(node.used + sent, held), 0) if node.up else 0
    about = {"id": node.name, "gpu_type": node.gpu_type, "num_gpus": max(node.gpus, held)}
    return {**about, "free_gpus": free, "up": node.up or held > 0}


def duration_s(job: Job, durations: Known) -> float | None:
    """How long a job says that it takes; None: it does not."""
    if durations == "time_limit":
        return job.limit_s
    found = _DURATION.search(job.comment) if durations == "comment" else None
    return float(found[1]) if found else None
