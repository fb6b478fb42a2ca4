"""The state of a live cluster as plain data, and a simulator's state in that form.

The schema is that of the types here (JSON Schema, draft 2020-12); what a schema cannot say is
checked by `agents.cluster.live`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any, NotRequired

import numpy as np
from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict  # pydantic, below Python 3.12

from envs.cluster.nodes import UNLIMITED
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import FINISHED, RUNNING
from envs.cluster.workload.trace import WHOLE_GPU

STRICT = ConfigDict(extra="forbid", strict=True)

Name = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f]+$")]
Seconds = Annotated[float, Field(ge=0, le=1e11, allow_inf_nan=False)]
Speed = Annotated[float, Field(gt=0, le=1e3, allow_inf_nan=False)]
Gpus = Annotated[int, Field(ge=0, le=1024)]
Gang = Annotated[int, Field(ge=0, le=65_536)]
Amount = Annotated[int, Field(ge=0, le=10**15)]


@with_config(STRICT)
class LiveNode(TypedDict):
    """A server."""

    id: Name
    gpu_type: Name
    num_gpus: Annotated[Gpus, Field(description="in all, whoever holds them")]
    rack: NotRequired[
        Annotated[int, Field(ge=0, le=65_535, description="number of its rack; 0 if left out")]
    ]
    free_gpus: NotRequired[
        Annotated[
            Gpus,
            Field(
                description="that a job can have now; left out: all that the jobs of this state do "
                "not hold"
            ),
        ]
    ]
    up: NotRequired[Annotated[bool, Field(description="whether jobs can run there; else true")]]
    cpu_milli: NotRequired[
        Annotated[Amount, Field(description="thousandths of a core; left out: no limit")]
    ]
    memory_mib: NotRequired[Annotated[Amount, Field(description="MiB; left out: no limit")]]


@with_config(STRICT)
class LiveJob(TypedDict):
    """A job that waits, runs (`holds`) or has finished (`finish_s`), as much as is known of it."""

    id: Name
    submit_s: Seconds
    num_gpus: Annotated[Gang, Field(description="of its gang: all of them at once, or none")]
    gpu_milli: NotRequired[
        Annotated[
            int,
            Field(ge=1, le=WHOLE_GPU, description="thousandths of its one GPU; else 1000"),
        ]
    ]
    gpu_types: NotRequired[
        Annotated[list[Name], Field(min_length=1, description="permitted; left out: all")]
    ]
    user: NotRequired[Name]
    queue: NotRequired[Annotated[Name, Field(description="virtual cluster, or group")]]
    cpu_milli: NotRequired[Annotated[Amount, Field(description="thousandths of a core in all")]]
    memory_mib: NotRequired[Annotated[Amount, Field(description="MiB in all")]]
    speed: NotRequired[
        Annotated[
            dict[Name, Speed],
            Field(description="its own speed by GPU type, where it is not that of `gpu_types`"),
        ]
    ]
    holds: NotRequired[
        Annotated[
            dict[Name, Gpus],
            Field(min_length=1, description="a running job's GPUs by node, in the order of taking"),
        ]
    ]
    shared_gpu: NotRequired[
        Annotated[Name, Field(description="the GPU that a running fractional job is on")]
    ]
    since_s: NotRequired[
        Annotated[
            Seconds,
            Field(
                description="when it began to run, or last began to wait; must be given of running "
                "jobs, else its submission"
            ),
        ]
    ]
    held_s: NotRequired[
        Annotated[Seconds, Field(description="for which it has held its GPUs so far; else 0")]
    ]
    attained_s: NotRequired[
        Annotated[
            Seconds, Field(description="of work done, at speed 1; left out: as long as `held_s`")
        ]
    ]
    preemptions: NotRequired[Annotated[int, Field(ge=0, le=10**6)]]
    rate: NotRequired[
        Annotated[
            float,
            Field(
                ge=0,
                le=1e3,
                allow_inf_nan=False,
                description="work per second of a running job; left out: its slowest GPU's speed",
            ),
        ]
    ]
    ready_s: NotRequired[
        Annotated[
            Seconds, Field(description="when a job that restarts begins to progress; else at once")
        ]
    ]
    finish_s: NotRequired[Annotated[Seconds, Field(description="when it finished")]]


@with_config(STRICT)
class LiveJobWithDuration(LiveJob):
    """A job of which it is known how long it takes."""

    duration_s: NotRequired[
        Annotated[Seconds, Field(gt=0, description="of work in all, at speed 1")]
    ]
    remaining_s: NotRequired[
        Annotated[
            Seconds, Field(description="of work left; left out: the duration less what is attained")
        ]
    ]
    end_s: NotRequired[
        Annotated[
            Seconds,
            Field(description="when it will finish; left out: what is left at its present rate"),
        ]
    ]


@with_config(STRICT)
class LiveCluster(TypedDict):
    """A cluster at one instant."""

    now_s: Seconds
    nodes: Annotated[list[LiveNode], Field(min_length=1)]
    jobs: Annotated[
        list[LiveJob],
        Field(
            description="all that wait or run, and those that have finished as far back as they "
            "shall be learned from; of jobs submitted at once the first comes first"
        ),
    ]
    waiting: NotRequired[
        Annotated[
            list[Name],
            Field(
                description="ids of the waiting jobs in the order of the queue; left out: by "
                "`since_s`"
            ),
        ]
    ]
    running: NotRequired[
        Annotated[
            list[Name],
            Field(
                description="ids of the running jobs in the order of their starts; left out: by "
                "`since_s`"
            ),
        ]
    ]
    gpu_types: NotRequired[
        Annotated[
            dict[Name, Speed],
            Field(
                min_length=1,
                max_length=62,
                description="speed of jobs on each GPU type, 1 where durations hold; left out: 1, "
                "in the order in which nodes name them",
            ),
        ]
    ]
    restart_s: NotRequired[
        Annotated[
            Seconds,
            Field(
                description="for which a job that was stopped holds its GPUs before it progresses; "
                "left out: as in the training"
            ),
        ]
    ]
    closed: NotRequired[
        Annotated[
            bool,
            Field(
                description="true: no job will come any more, so that where nothing runs the "
                "scheduler may not wait if it can start something"
            ),
        ]
    ]


@with_config(STRICT)
class LiveClusterWithDurations(LiveCluster):
    """A cluster at one instant, and how long its jobs take."""

    jobs: list[LiveJobWithDuration]  # type: ignore[misc]  # narrower


def document_of(
    simulator: ClusterSimulator, durations: bool, closed: bool | None = None
) -> dict[str, Any]:
    """The state of a simulator at a decision, as a live cluster would tell it.

    Args:
        simulator: whose jobs have the names of its trace, and nodes their numbers.
        durations: whether it is told how long jobs take.
        closed: that no job will come; None: whether the trace is at its end.
    """
    simulator.settle()
    cluster, trace, state = simulator.cluster, simulator.trace, simulator.state
    clock, tables = state.clock[0], simulator.tables
    nodes: list[dict[str, Any]] = []
    for number, node in enumerate(state.nodes):
        told = {
            "id": str(number),
            "gpu_type": cluster.gpu_types[node["type"]],
            "num_gpus": int(node["gpus"]),
            "rack": int(node["rack"]),
        }
        if not node["up"]:
            told["up"] = False
        for key in ("cpu_milli", "memory_mib"):
            if (amount := int(getattr(cluster, key)[number])) < UNLIMITED:
                told[key] = amount
        nodes.append(told)
    typical = tables.speed.mean(axis=0)
    jobs = [_job(simulator, job, typical, durations) for job in range(int(clock["arrived"]))]
    if closed is None:
        closed = bool(clock["arrived"] == len(trace) and clock["incident"] == len(state.incidents))
    started = state.jobs["since"][simulator.running()]
    in_order = _order_of_starts(simulator, simulator.running()[np.argsort(started, kind="stable")])
    return {
        "now_s": simulator.now,
        "gpu_types": dict(zip(cluster.gpu_types, typical.tolist(), strict=True)),
        "restart_s": simulator.overheads.restart_s,
        "closed": closed,
        "nodes": nodes,
        "jobs": jobs,
        "waiting": [str(trace.job_id[job]) for job in simulator.pending()],
        "running": [str(trace.job_id[job]) for job in in_order],
    }


def _job(
    simulator: ClusterSimulator, job: int, typical: np.ndarray[Any, Any], durations: bool
) -> dict[str, Any]:
    trace, record, tables = simulator.trace, simulator.state.jobs[job], simulator.tables
    told: dict[str, Any] = {
        "id": str(trace.job_id[job]),
        "submit_s": float(record["submit"]),
        "num_gpus": int(record["gpus"]),
        "since_s": float(record["since"]),
        "held_s": float(record["executed"]),
        "attained_s": float(record["attained"]),
        "preemptions": int(record["preemptions"]),
    }
    if record["milli"] < WHOLE_GPU:
        told["gpu_milli"] = int(record["milli"])
    if trace.gpu_type[job] is not None:
        told["gpu_types"] = str(trace.gpu_type[job]).split("|")
    for key in ("user", "queue"):
        if (label := getattr(trace, key)[job]) is not None:
            told[key] = label
    for key, field in (("cpu_milli", "cpu"), ("memory_mib", "memory")):
        if record[field]:
            told[key] = int(record[field])
    speed = tables.speed[tables.profile[job]]
    if (speed != typical).any():
        told["speed"] = dict(zip(simulator.cluster.gpu_types, speed.tolist(), strict=True))
    if record["status"] == FINISHED:
        told["finish_s"] = float(record["finish"])
        return told
    if durations:
        told |= {"duration_s": float(record["work"]), "remaining_s": float(record["remaining"])}
    if record["status"] == RUNNING:
        told["holds"] = {str(node): gpus for node, gpus in simulator.shares(job)}
        told |= {"rate": float(record["rate"]), "ready_s": float(record["ready"])}
        partial = int(simulator.state.shares[record["share"]]["partial"])
        if partial >= 0:
            told["shared_gpu"] = str(partial)
        if durations and np.isfinite(record["end"]):
            told["end_s"] = float(record["end"])
    return told


def _order_of_starts(simulator: ClusterSimulator, jobs: np.ndarray[Any, Any]) -> list[int]:
    """Running `jobs`, those that began at once in the order that the chains of nodes remember."""
    later: dict[int, set[int]] = {}
    state = simulator.state
    for node in state.nodes:
        share = int(node["share"])
        chain: list[int] = []  # the last to start first
        while share >= 0:
            chain.append(int(state.shares[share]["job"]))
            share = int(state.shares[share]["after"])
        for newer, older in pairwise(chain):
            later.setdefault(newer, set()).add(older)
    order: list[int] = []
    placed: set[int] = set()
    waiting = [int(job) for job in jobs]
    while waiting:
        job = next(job for job in waiting if later.get(job, set()) <= placed)
        waiting.remove(job)
        placed.add(job)
        order.append(job)
    return order
