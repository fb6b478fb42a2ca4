"""A simulator put into the midst of things: what runs where, what waits, what has finished."""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True, eq=False)
class Midst:
    """What is the case at one instant; J jobs and N nodes of a simulator.

    All that is told of a job is true now. Where nobody knows how long jobs take, `work` and
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
    taken: IntArray  # (N,) GPUs that none of the jobs holds and nobody can have
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


def resume(simulator: ClusterSimulator, midst: Midst) -> None:
    """Put a simulator, at its start, where all of its jobs have arrived.

    Nothing is checked: gangs must be whole and find their GPUs.
    """
    jobs = simulator.state.jobs
    for column in ("submit", "work", "remaining", "attained", "executed", "preemptions"):
        jobs[column] = getattr(midst, column)
    jobs["settled"] = midst.now
    place(
        simulator.state,
        simulator.tables,
        simulator.overheads,
        midst.now,
        midst.waiting,
        midst.running,
        midst.share_ptr,
        midst.share_node,
        midst.share_gpus,
        midst.shared_gpu,
        midst.taken,
        midst.down,
        midst.since,
        midst.ready,
        midst.rate,
        midst.end,
    )
    over = midst.finished
    jobs["status"][over] = FINISHED
    jobs["start"][over] = 0.0
    jobs["finish"][over] = midst.finish[over]
    jobs["remaining"][over] = 0.0
    simulator.state.clock[0]["finished"] = len(over)


@compiled
def place(
    state: ClusterState,
    tables: RateTables,
    overheads: Overheads,
    now: float,
    waiting: IntArray,
    running: IntArray,
    share_ptr: IntArray,
    share_node: IntArray,
    share_gpus: IntArray,
    shared_gpu: IntArray,
    taken: IntArray,
    down: NDArray[np.bool_],
    since: FloatArray,
    ready: FloatArray,
    rate: FloatArray,
    end: FloatArray,
) -> None:
    """Start what runs, in the order of the starts, and queue what waits."""
    state, tables = borrowed(state), borrowed(tables)
    clock, jobs, nodes = state.clock[0], state.jobs, state.nodes
    clock.now = now
    clock.arrived = len(jobs)
    for node in range(len(nodes)):
        lost = taken[node]
        if down[node]:
            lost = nodes[node].free
            nodes[node].up = 0
        nodes[node].free -= lost
        clock.free -= lost
    opened = np.full(shared_gpu.max() + 1 if len(shared_gpu) else 0, NONE, np.int64)
    for row in range(len(running)):
        job = running[row]
        enqueue(state, job)
        if jobs[job].milli < WHOLE_GPU and jobs[job].gpus > 0:
            label, node = shared_gpu[row], share_node[share_ptr[row]]
            gpus = share_gpus[share_ptr[row]]
            share = give_partial(state, job, node, opened[label], gpus)
            opened[label] = state.shares[share].partial
        else:
            for share in range(share_ptr[row], share_ptr[row + 1]):
                give(state, job, share_node[share], share_gpus[share])
        begin(state, tables, overheads, job)
    for row in range(len(running)):
        job = running[row]
        record = jobs[job]
        record.since, record.ready, record.start = since[job], ready[job], since[job]
        if not np.isnan(rate[job]):
            record.rate = rate[job]
        record.end = end_of(record, now) if np.isnan(end[job]) else end[job]
        reorder(jobs, state.heap, clock.running, job)
    for row in range(len(waiting)):
        enqueue(state, waiting[row])
        jobs[waiting[row]].since = since[waiting[row]]
