"""Multilevel feedback queues by attained service, wherever jobs run."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agents.cluster.compiled.start import needed_victims, start_if_it_fits
from agents.cluster.compiled.waiting import Waiting
from agents.cluster.rules.gangs import Room
from envs.arrays import IntArray
from envs.cluster.interference.rates import RateTables
from envs.cluster.simulation.borrowed import borrowed
from envs.cluster.simulation.cluster_kernel import NOTHING, advance, log_is_short, settle, stop
from envs.cluster.simulation.cluster_state import NONE, PENDING, RUNNING, ClusterState, Overheads
from envs.cluster.workload.trace import WHOLE_GPU
from envs.compilation import compiled, compiled_inner


class Queues(NamedTuple):
    """Scratch of `run` that persists between its calls; J jobs."""

    gpus: NDArray[np.float64]  # (J,) of the job's gang
    order: IntArray  # (J,) jobs that wait or run, queue by queue
    number: IntArray  # (1,) how many
    level: IntArray  # (J,) queue of the job, or NONE: it has not arrived
    ran: NDArray[np.bool_]  # (J,) it ran after the last pass
    ranked: IntArray  # (J,) `order` of the pass
    listed: IntArray  # (J,) jobs demoted, then those that are to start
    victims: IntArray  # (J,) running jobs that need not go on


def empty_queues(gpus: NDArray[np.float64]) -> Queues:
    """Nothing has arrived of the jobs of `gpus` (J,) GPUs."""
    jobs = len(gpus)
    order, ranked, listed, victims = np.zeros((4, jobs), np.int64)
    level, ran = np.full(jobs, NONE, np.int64), np.zeros(jobs, np.bool_)
    return Queues(gpus, order, np.zeros(1, np.int64), level, ran, ranked, listed, victims)


@compiled
def run(
    state: ClusterState,
    tables: RateTables,
    overheads: Overheads,
    waiting: Waiting,
    queues: Queues,
    limits: IntArray,
    published: bool,
    rule: int,
    room: Room,
) -> bool:
    """Simulate until nothing is to come; False: the log must be lengthened first.

    Args:
        limits: GPU-seconds at which a job leaves a queue for the next, ascending.
        published: when and how far jobs are demoted as in Tiresias' simulator.
    """
    state, tables, queues, room = (
        borrowed(state),
        borrowed(tables),
        borrowed(queues),
        borrowed(room),
    )
    kind, size = waiting.kind, waiting.size
    hopeless = np.zeros(len(size), np.bool_)
    least = size.min() if len(size) else np.int64(0)
    clock = state.clock[0]
    while True:
        if log_is_short(state):
            return False
        arrived = clock.arrived
        until = next_demotion(state.jobs, state.heap, clock.now, clock.running, queues,
                              limits, published)  # fmt: skip
        if advance(state, tables, overheads, until) == NOTHING:
            return True
        settle(state)
        jobs = rank(state.jobs, arrived, clock.arrived, queues, limits, published)
        budget = clock.free + clock.held // WHOLE_GPU
        picked, victims = choose(state.jobs, queues, jobs, budget, least, clock.running)
        for i in range(picked):
            job = queues.listed[i]
            needed = 0
            while not start_if_it_fits(state, tables, overheads, job, rule, room):
                if needed > 0 or victims == 0:
                    break
                needed = needed_victims(state, tables, job, queues.victims, victims, rule, room)
                if needed == 0:
                    break
                for _ in range(needed):
                    victims -= 1
                    stop(state, tables, queues.victims[victims])
        hopeless[:] = False
        i = 0
        while i < jobs and clock.free >= least:
            job = queues.ranked[i]
            i += 1
            asked = kind[job]
            if hopeless[asked] or size[asked] > clock.free or state.jobs[job].status != PENDING:
                continue
            hopeless[asked] = not start_if_it_fits(state, tables, overheads, job, rule, room)
        put_running_first(state.jobs, queues, jobs)


@compiled
def next_demotion(
    jobs: NDArray[np.void],
    running: NDArray[np.int32],
    now: float,
    number: int,
    queues: Queues,
    limits: IntArray,
    published: bool,
) -> float:
    """When a settled running job may have to leave its queue; inf: never."""
    least = np.inf
    for place in range(number):
        job = running[place]
        record, gpus, level = jobs[job], queues.gpus[job], queues.level[job]
        if gpus == 0.0 or level == len(limits):
            continue
        limit = limits[level]
        if published:
            seconds = np.floor((limit - record.executed) / gpus)
        else:
            seconds = np.ceil((limit - record.executed * gpus) / gpus)
        if seconds > 0.0:
            least = min(least, seconds)
    return now + least


@compiled
def rank(
    jobs: NDArray[np.void],
    first: int,
    last: int,
    queues: Queues,
    limits: IntArray,
    published: bool,
) -> int:
    """Demote, add the jobs from `first` to before `last`, and put all in order; how many."""
    order, level, ranked, demoted = queues.order, queues.level, queues.ranked, queues.listed
    kept = gone = 0
    for i in range(queues.number[0]):
        job = order[i]
        record = jobs[job]
        if not PENDING <= record.status <= RUNNING:
            continue
        lower = level[job]
        if queues.ran[job]:
            service = record.executed * queues.gpus[job]
            while lower < len(limits) and service >= limits[lower]:
                lower += 1
                if published:
                    break
        if lower == level[job]:
            order[kept] = job
            kept += 1
        else:
            level[job] = lower
            demoted[gone] = job
            gone += 1
    demoted[:gone].sort()
    i = size = 0
    for k in range(len(limits) + 1):
        while i < kept and level[order[i]] == k:
            ranked[size] = order[i]
            size += 1
            i += 1
        for m in range(gone):
            if level[demoted[m]] == k:
                ranked[size] = demoted[m]
                size += 1
        if k == 0:
            for job in range(first, last):
                if PENDING <= jobs[job].status <= RUNNING:
                    level[job] = 0
                    ranked[size] = job
                    size += 1
    return size


@compiled_inner
def choose(
    jobs: NDArray[np.void], queues: Queues, number: int, budget: int, least: int, running: int
) -> tuple[int, int]:
    """Choose by numbers alone who is to run: greedily, in order.

    Returns:
        How many `queues.listed`, who are to start, and how many `queues.victims`.
    """
    picked = victims = 0
    for i in range(number):
        if running == 0 and budget < least:
            break
        job = queues.ranked[i]
        runs = jobs[job].status == RUNNING
        running -= runs
        if jobs[job].gpus <= budget:
            budget -= jobs[job].gpus
            if not runs:
                queues.listed[picked] = job
                picked += 1
        elif runs:
            queues.victims[victims] = job
            victims += 1
    return picked, victims


@compiled
def put_running_first(jobs: NDArray[np.void], queues: Queues, number: int) -> None:
    """In each queue the jobs that wait go behind those that run, in the same order."""
    level, ranked, size, i = queues.level, queues.ranked, 0, 0
    while i < number:
        k, end = level[ranked[i]], i
        while end < number and level[ranked[end]] == k:
            job = ranked[end]
            queues.ran[job] = jobs[job].status == RUNNING
            if queues.ran[job]:
                queues.order[size] = job
                size += 1
            end += 1
        for m in range(i, end):
            if not queues.ran[ranked[m]]:
                queues.order[size] = ranked[m]
                size += 1
        i = end
    queues.number[0] = size
