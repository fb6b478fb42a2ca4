"""The jobs with the least left run, preempting others: SRTF and SRSF, wherever they run."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agents.cluster.compiled.start import needed_victims, start_if_it_fits
from agents.cluster.compiled.waiting import Waiting, ahead, first, join, leave, oldest_newcomer
from agents.cluster.rules.gangs import Room
from envs.arrays import IntArray
from envs.cluster.interference.rates import RateTables
from envs.cluster.simulation.borrowed import borrowed
from envs.cluster.simulation.cluster_kernel import NOTHING, advance, log_is_short, settle, stop
from envs.cluster.simulation.cluster_state import NONE, PENDING, RUNNING, ClusterState, Overheads
from envs.cluster.workload.trace import WHOLE_GPU
from envs.compilation import compiled, compiled_inner


class Ranking(NamedTuple):
    """Scratch of `run` that persists between its calls."""

    running: IntArray  # (J,) running jobs, those with the least left first
    number: IntArray  # (2,) how many; turns given so far
    order: IntArray  # (J,) running jobs and waiting ones that are to run, as they were looked at
    chosen: IntArray  # (J,) waiting jobs that are to run
    victims: IntArray  # (J,) running jobs that need not


def empty_ranking(jobs: int) -> Ranking:
    """Nothing runs."""
    running, order, chosen, victims = np.zeros((4, jobs), np.int64)
    return Ranking(running, np.zeros(2, np.int64), order, chosen, victims)


@compiled
def run(
    state: ClusterState,
    tables: RateTables,
    overheads: Overheads,
    waiting: Waiting,
    ranking: Ranking,
    rule: int,
    room: Room,
    times_gpus: bool,
) -> bool:
    """Simulate until nothing is to come; False: the log must be lengthened first.

    Args:
        times_gpus: SRSF; otherwise SRTF.
    """
    state, tables, waiting, ranking, room = (
        borrowed(state),
        borrowed(tables),
        borrowed(waiting),
        borrowed(ranking),
        borrowed(room),
    )
    skipped = np.zeros(len(waiting.size), np.bool_)
    while True:
        if log_is_short(state):
            return False
        if advance(state, tables, overheads, np.inf) == NOTHING:
            return True
        settle(state)
        turn = ranking.number[1]  # of those that stop now: they were here before those that arrive
        ranking.number[1] += len(state.jobs)
        rank_running(state, waiting, ranking, turn, times_gpus)
        job = oldest_newcomer(state, waiting)
        while job != NONE:
            if not waiting.known[job]:
                join(waiting, job, left(state, job, times_gpus), ranking.number[1])
                ranking.number[1] += 1
            job = state.jobs[job].after
        seen, picked, victims = choose(state, waiting, ranking, skipped, times_gpus)
        for i in range(picked):
            job = ranking.chosen[i]
            started = start_if_it_fits(state, tables, overheads, job, rule, room)
            if not started and victims > 0:
                needed = needed_victims(state, tables, job, ranking.victims, victims, rule, room)
                for _ in range(needed):
                    victims -= 1
                    victim = ranking.victims[victims]
                    stop(state, tables, victim)
                    join(waiting, victim, left(state, victim, times_gpus), turn + victims)
                if needed > 0:
                    started = start_if_it_fits(state, tables, overheads, job, rule, room)
            if not started:
                join(waiting, job, waiting.key[job], waiting.turn[job])
        list_running(state, ranking, seen)
        fill(state, tables, overheads, waiting, ranking, skipped, rule, room)


@compiled_inner
def left(state: ClusterState, job: int, times_gpus: bool) -> float:
    """Seconds of work left of a settled job, times its GPUs if `times_gpus`."""
    record = state.jobs[job]
    seconds: float = record.remaining
    return seconds * record.gpus if times_gpus else seconds


@compiled_inner
def list_running(state: ClusterState, ranking: Ranking, seen: int) -> None:
    """Of the jobs that were looked at, list those that run, in the same order."""
    size = 0
    for i in range(seen):
        job = ranking.order[i]
        if state.jobs[job].status == RUNNING:
            ranking.running[size] = job
            size += 1
    ranking.number[0] = size


@compiled_inner
def rank_running(
    state: ClusterState, waiting: Waiting, ranking: Ranking, turn: int, times_gpus: bool
) -> None:
    """Sort the running jobs, which is fast as they nearly are. Those on failed nodes wait now.

    Their turns follow `turn`, in the order in which they were listed.
    """
    size = 0
    for i in range(ranking.number[0]):
        job = ranking.running[i]
        if state.jobs[job].status == PENDING:
            join(waiting, job, left(state, job, times_gpus), turn + i)
        if state.jobs[job].status != RUNNING:
            continue
        key = left(state, job, times_gpus)
        place = size
        while place > 0 and left(state, ranking.running[place - 1], times_gpus) > key:
            ranking.running[place] = ranking.running[place - 1]
            place -= 1
        ranking.running[place] = job
        size += 1
    ranking.number[0] = size


@compiled_inner
def choose(
    state: ClusterState,
    waiting: Waiting,
    ranking: Ranking,
    skipped: NDArray[np.bool_],
    times_gpus: bool,
) -> tuple[int, int, int]:
    """Choose by numbers alone who is to run: greedily, those with the least left first.

    Of a running and a waiting job with the same left, the one that waits since an earlier instant
    comes first: it was ahead before the other got there, unless that has had no progress since.

    Returns:
        How many in `ranking.order`; how many of them `ranking.chosen`, who leave their heaps, and
        how many `ranking.victims`.
    """
    clock = state.clock[0]
    budget = clock.free + clock.held // WHOLE_GPU
    seen = picked = victims = place = 0
    skipped[:] = False
    while True:
        best = NONE
        for kind in range(len(skipped)):
            if waiting.number[kind] and not skipped[kind]:
                job = first(waiting, kind)
                if waiting.size[kind] > budget:
                    skipped[kind] = True
                elif best == NONE or ahead(waiting, job, best):
                    best = job
        if place < ranking.number[0]:
            job = ranking.running[place]
            key = left(state, job, times_gpus)
            tie = best != NONE and key == waiting.key[best]
            record = state.jobs[best]
            newer = tie and record.since == clock.now and record.preemptions == 0
            if best == NONE or key < waiting.key[best] or newer:
                place += 1
                ranking.order[seen] = job
                seen += 1
                if state.jobs[job].gpus <= budget:
                    budget -= state.jobs[job].gpus
                else:
                    ranking.victims[victims] = job
                    victims += 1
                continue
        if best == NONE:
            return seen, picked, victims
        leave(waiting, waiting.kind[best])
        budget -= state.jobs[best].gpus
        ranking.order[seen] = best
        seen += 1
        ranking.chosen[picked] = best
        picked += 1


@compiled_inner
def fill(
    state: ClusterState,
    tables: RateTables,
    overheads: Overheads,
    waiting: Waiting,
    ranking: Ranking,
    hopeless: NDArray[np.bool_],
    rule: int,
    room: Room,
) -> None:
    """What is still free goes to waiting jobs, those with the least left first."""
    hopeless[:] = False
    while state.clock[0].free > 0:
        best = np.int64(NONE)  # else what it is given to is compiled for the constant too
        for kind in range(len(hopeless)):
            if waiting.size[kind] > state.clock[0].free or hopeless[kind]:
                continue
            job = first(waiting, kind)
            if job != NONE and (best == NONE or ahead(waiting, job, best)):
                best = job
        if best == NONE:
            return
        kind = waiting.kind[best]
        if start_if_it_fits(state, tables, overheads, best, rule, room):
            leave(waiting, kind)
            ranking.running[ranking.number[0]] = best
            ranking.number[0] += 1
        else:
            hopeless[kind] = True
