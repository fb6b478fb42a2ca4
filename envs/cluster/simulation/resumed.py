"""A simulator put into the midst of things: what runs where, what waits, what has finished."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.arrays import FloatArray, IntArray
from envs.cluster.interference.rates import RateTables
from envs.cluster.simulation.borrowed import borrowed
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_kernel import (
    begin,
    end_of,
    enqueue,
    give,
    give_partial,
    reorder,
)
from envs.cluster.simulation.cluster_state import FINISHED, NONE, ClusterState, Overheads
from envs.cluster.workload.trace import WHOLE_GPU
from envs.compilation import compiled


class Snapshot(NamedTuple):
    """What is the case at one instant; J jobs and N nodes of a simulator.

    All that is given of a job is true now. Where durations are unknown, `work` and
    `remaining` of those that have not finished are infinite, and so is every end.
    """

    now: float  # seconds
    finished: IntArray  # jobs, the first to finish first
    waiting: IntArray  # jobs, in the order of the queue
    running: IntArray  # jobs, the first to start first
    share_ptr: IntArray  # (running + 1,) first share of every running job
    share_node: IntArray  # (E,) in the order of taking
    share_gpus: IntArray  # (E,)
    shared_gpu: IntArray  # (running,) label of the GPU that a fractional job shares, or NONE
    taken: IntArray  # (N,) GPUs that no job holds and none can have
    down: NDArray[np.bool_]  # (N,)
    # of every job, (J,):
    submit: FloatArray  # seconds
    since: FloatArray  # seconds, when it last became pending or began to run
    finish: FloatArray  # seconds
    work: FloatArray  # seconds at rate 1
    remaining: FloatArray  # seconds at rate 1
    attained: FloatArray  # seconds at rate 1
    executed: FloatArray  # seconds for which it has held its GPUs
    ready: FloatArray  # seconds, from when it progresses
    rate: FloatArray  # work per second while it runs; nan: as the rate model says
    end: FloatArray  # seconds, predicted completion; nan: at its present rate
    preemptions: IntArray


def resume(simulator: ClusterSimulator, snapshot: Snapshot) -> None:
    """Put a simulator, at its start, where all of its jobs have arrived.

    Nothing is checked: gangs must be whole and find their GPUs.
    """
    jobs = simulator.state.jobs
    for column in ("submit", "work", "remaining", "attained", "executed", "preemptions"):
        jobs[column] = getattr(snapshot, column)
    jobs["settled"] = snapshot.now
    place(*simulator.compiled, snapshot)
    over = snapshot.finished
    jobs["status"][over] = FINISHED
    jobs["start"][over] = 0.0
    jobs["finish"][over] = snapshot.finish[over]
    jobs["remaining"][over] = 0.0
    simulator.state.clock[0]["finished"] = len(over)


@compiled
def place(
    state: ClusterState, tables: RateTables, overheads: Overheads, snapshot: Snapshot
) -> None:
    """Start what runs, in the order of the starts, and queue what waits."""
    state, tables, snapshot = borrowed(state), borrowed(tables), borrowed(snapshot)
    clock, jobs, nodes, now = state.clock[0], state.jobs, state.nodes, snapshot.now
    clock.now = now
    clock.arrived = len(jobs)
    for node in range(len(nodes)):
        lost = snapshot.taken[node]
        if snapshot.down[node]:
            lost = nodes[node].free
            nodes[node].up = 0
        nodes[node].free -= lost
        clock.free -= lost
    labels = snapshot.shared_gpu.max() + 1 if len(snapshot.shared_gpu) else 0
    opened = np.full(labels, NONE, np.int64)
    for row in range(len(snapshot.running)):
        job = snapshot.running[row]
        enqueue(state, job)
        first = snapshot.share_ptr[row]
        if jobs[job].milli < WHOLE_GPU and jobs[job].gpus > 0:
            label, node = snapshot.shared_gpu[row], snapshot.share_node[first]
            share = give_partial(state, job, node, opened[label], snapshot.share_gpus[first])
            opened[label] = state.shares[share].partial
        else:
            for share in range(first, snapshot.share_ptr[row + 1]):
                give(state, job, snapshot.share_node[share], snapshot.share_gpus[share])
        begin(state, tables, overheads, job)
    for row in range(len(snapshot.running)):
        job = snapshot.running[row]
        record, since = jobs[job], snapshot.since[job]
        record.since, record.ready, record.start = since, snapshot.ready[job], since
        if not np.isnan(snapshot.rate[job]):
            record.rate = snapshot.rate[job]
        record.end = end_of(record, now) if np.isnan(snapshot.end[job]) else snapshot.end[job]
        reorder(jobs, state.heap, clock.running, job)
    for row in range(len(snapshot.waiting)):
        enqueue(state, snapshot.waiting[row])
        jobs[snapshot.waiting[row]].since = snapshot.since[snapshot.waiting[row]]
