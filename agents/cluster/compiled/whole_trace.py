"""Whole traces in one loop, where nothing but the number of free GPUs decides.

Jobs run at rate 1, preemption is free, nodes never fail. Times are whole seconds. At each instant
completions come first, then arrivals in the order of the trace, then one scheduling pass. As free
GPUs only shrink within a pass, one job of a gang size that does not fit settles it for its size.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agents.cluster.policy import PlacementRule
from agents.cluster.rules.gangs import CONSOLIDATED, COUNTED
from envs.arrays import FloatArray, IntArray
from envs.cluster.nodes import UNLIMITED, Cluster
from envs.cluster.simulation.cluster_state import NEVER, Schedule, permitted_types
from envs.cluster.workload.trace import WHOLE_GPU, Trace
from envs.compilation import compiled, compiled_inner
from envs.errors import InputError
from envs.heap import pop_number, push_number

NOTHING = np.iinfo(np.int64).max  # head of an empty queue


def is_placement_free(cluster: Cluster, trace: Trace, placement: PlacementRule) -> bool:
    """Whether a gang fits as soon as as many GPUs are free, whichever they are.

    Raises:
        InputError: a job asks for more GPUs than the cluster has, or for GPU types that it does
            not have.
    """
    every = (1 << len(cluster.gpu_types)) - 1
    if (permitted_types(cluster, trace) != every).any() or (trace.gpu_milli != WHOLE_GPU).any():
        return False
    for asked, there in (
        (trace.cpu_milli, cluster.cpu_milli),
        (trace.memory_mib, cluster.memory_mib),
    ):
        if asked.any() and (there != UNLIMITED).any():
            return False
    rule = getattr(placement, "code", None)
    return rule in COUNTED or (rule in CONSOLIDATED and cluster.num_nodes == 1)


def job_bits(trace: Trace) -> int:
    """Bits that hold a job's number beside a time in one 64-bit key.

    Raises:
        InputError: the times of the trace are too long for that.
    """
    bits = max(1, (len(trace) - 1).bit_length())
    horizon = float(trace.duration_s.sum(dtype=np.float64))
    horizon += float(trace.submit_s[-1]) if len(trace) else 0.0
    if horizon >= 2.0 ** (62 - bits):
        problem = f"{len(trace)} jobs of {horizon:.3g} seconds in all are too long to be simulated"
        raise InputError(problem, file=trace.name, field="duration_s")
    return bits


def unset_times(jobs: int) -> FloatArray:
    return np.full(jobs, NEVER)


def schedule_of(
    trace: Trace, start: FloatArray, finish: FloatArray, preemptions: NDArray[np.int32]
) -> Schedule:
    """The schedule of jobs that all finished."""
    return Schedule(
        submit=trace.submit_s.astype(np.float64),
        start=start,
        finish=finish,
        work=trace.duration_s.astype(np.float64),
        gpus=trace.num_gpus.astype(np.float64),
        held=trace.duration_s.astype(np.float64),
        preemptions=preemptions,
    )


class Gangs(NamedTuple):
    """C distinct gang sizes of J jobs."""

    sizes: IntArray  # (C,) GPUs, ascending
    base: IntArray  # (C + 1,) jobs of smaller sizes
    of: NDArray[np.int32]  # (J,) index of the job's size


@compiled_inner
def gangs_of(gpus: NDArray[np.int32], largest: int) -> Gangs:
    """The gang sizes of jobs that ask for at most `largest` GPUs."""
    jobs = np.zeros(largest + 1, np.int64)
    for j in range(len(gpus)):
        jobs[gpus[j]] += 1
    sizes = np.flatnonzero(jobs)
    base = np.zeros(len(sizes) + 1, np.int64)
    index = np.zeros(largest + 1, np.int32)
    for c in range(len(sizes)):
        index[sizes[c]] = c
        base[c + 1] = base[c] + jobs[sizes[c]]
    of = np.empty(len(gpus), np.int32)
    for j in range(len(gpus)):
        of[j] = index[gpus[j]]
    return Gangs(sizes, base, of)


@compiled
def start_in_order(
    submit: IntArray,
    duration: IntArray,
    gpus: NDArray[np.int32],
    key: IntArray,
    bits: int,
    blocking: bool,
    total: int,
    start: FloatArray,
) -> None:
    """Start every job that fits, by ascending `key`, and let it run to its end.

    Args:
        submit: (J,) seconds, ascending.
        duration: (J,) seconds.
        gpus: (J,) at most `total`.
        key: (J,) distinct; its last `bits` bits are the job's number.
        bits: see `key`.
        blocking: while the job of least `key` does not fit, nothing starts.
        total: GPUs of the cluster.
        start: (J,) written.
    """
    jobs = len(submit)
    sizes, base, of = gangs_of(gpus, total)
    fitting = np.searchsorted(sizes, np.arange(total + 1), side="right")  # sizes that fit
    if blocking:  # one queue for all sizes
        base, of = np.array([0, jobs]), np.zeros(jobs, np.int32)
        fitting[:] = 1
    queues = np.empty(jobs, np.int64)
    waiting = np.zeros(len(base) - 1, np.int64)
    head = np.full(len(base) - 1, NOTHING, np.int64)
    ends = np.empty(jobs, np.int64)
    running = arrived = 0
    mask = (1 << bits) - 1
    free = total
    while True:
        now = submit[arrived] if arrived < jobs else NOTHING
        released = running > 0 and ends[0] >> bits <= now
        if released:
            now = ends[0] >> bits
            while running and ends[0] >> bits == now:
                free += gpus[ends[0] & mask]
                pop_number(ends, 0, running)
                running -= 1
        elif arrived == jobs:
            break
        elif (arrived + 1 == jobs or submit[arrived + 1] != now) and not (blocking and waiting[0]):
            job = arrived  # alone: it starts at once, or waits like all others
            arrived += 1
            c = of[job]
            if gpus[job] <= free:
                start[job] = now
                free -= gpus[job]
                push_number(ends, 0, running, now + duration[job] << bits | job)
                running += 1
            else:
                push_number(queues, base[c], waiting[c], key[job])
                waiting[c] += 1
                head[c] = queues[base[c]]
            continue
        while arrived < jobs and submit[arrived] == now:
            c = of[arrived]
            push_number(queues, base[c], waiting[c], key[arrived])
            waiting[c] += 1
            head[c] = queues[base[c]]
            arrived += 1
        while True:
            least, c = NOTHING, -1
            for i in range(fitting[free]):
                if head[i] < least:
                    least, c = head[i], i
            if c < 0:
                break
            job = least & mask
            if gpus[job] > free:  # blocking
                break
            pop_number(queues, base[c], waiting[c])
            waiting[c] -= 1
            head[c] = queues[base[c]] if waiting[c] else NOTHING
            start[job] = now
            free -= gpus[job]
            push_number(ends, 0, running, now + duration[job] << bits | job)
            running += 1
