"""Schedulers that start the pairs of a job and a place they like best, from event to event."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from agents.cluster.compiled.cells import note
from agents.cluster.compiled.durations import Memory, learn
from agents.cluster.compiled.joint_choice import (
    BEST,
    Joint,
    Owners,
    Room,
    come,
    look_at_cells,
    next_asked,
    route,
    take,
)
from agents.cluster.compiled.pairs import FloatRows, Pairs, Weights, find, pairs_of, put, scores
from envs.cluster.interference.rates import RateTables
from envs.cluster.simulation.borrowed import borrowed
from envs.cluster.simulation.cluster_kernel import NOTHING, advance, begin, log_is_short
from envs.cluster.simulation.cluster_state import FINISHED, NONE, ClusterState, Overheads
from envs.compilation import compiled, compiled_inner, pasted


class Scorer(NamedTuple):
    """A network that may prefer another pair to the rule's, or to wait."""

    weights: Weights
    pairs: Pairs  # scratch memory
    score: FloatRows  # (K,) the same
    sure: float  # by which an alternative's score must exceed that of what the rule does
    first: int  # jobs that it looks at; 0: there is no network
    patience: float  # seconds; while a job has waited for longer, the rule decides alone


def scorer_of(weights: Weights, nodes: int, first: int, sure: float, patience: float) -> Scorer:
    pairs = pairs_of(first, nodes)
    return Scorer(weights, pairs, np.zeros(len(pairs.job), np.float32), sure, first, patience)


@pasted
def next_start(
    state: ClusterState, joint: Joint, scorer: Scorer, scheduler: int
) -> tuple[int, int]:
    """What a scheduler does next: the rule's choice, or what the network prefers to it.

    Returns:
        The job, NONE: nothing; and of how many shares its place is: row BEST of `joint.room`.
    """
    pairs = scorer.pairs
    first = 0 if out_of_patience(state, joint.owners, scorer, scheduler) else scorer.first
    count = find(state, joint, pairs, scheduler, first)
    best = 0
    if first > 0 and count > 1:
        scores(scorer.weights, pairs, count, len(state.nodes), scorer.score)
        most = scorer.score[0] + np.float32(scorer.sure)
        for k in range(1, count):
            if scorer.score[k] > most:
                best, most = k, scorer.score[k]
    put(pairs, best, joint.room, BEST)
    return int(pairs.job[best]), int(pairs.shares[best])


@compiled_inner
def out_of_patience(state: ClusterState, owners: Owners, scorer: Scorer, scheduler: int) -> bool:
    """Whether a job of a scheduler has waited for too long."""
    now, job = state.clock[0].now, state.clock[0].head
    while job != NONE:
        if owners.home[job] == scheduler and now - state.jobs[job].submit > scorer.patience:
            return True
        job = state.jobs[job].after
    return False


@pasted
def pass_time(
    state: ClusterState, tables: RateTables, overheads: Overheads, room: Room, memory: Memory
) -> bool:
    """Go to the next event and learn from jobs that finish; False: nothing is to come."""
    ran = state.clock[0].running
    room.running[:ran] = state.heap[:ran]
    if advance(state, tables, overheads, np.inf) == NOTHING:
        return False
    finished = 0
    for place in range(ran):
        if state.jobs[room.running[place]].status == FINISHED:
            room.running[finished] = room.running[place]
            finished += 1
    for job in np.sort(room.running[:finished]):
        learn(memory, job, state.jobs[job].attained)
    return True


@compiled_inner
def start_all(
    state: ClusterState,
    tables: RateTables,
    overheads: Overheads,
    joint: Joint,
    scorer: Scorer,
    schedulers: int,
) -> None:
    """Every scheduler starts what it can."""
    for scheduler in range(schedulers):
        while True:
            chosen, shares = next_start(state, joint, scorer, scheduler)
            if chosen == NONE:
                break
            take(state, joint.room, BEST, chosen, shares)
            begin(state, tables, overheads, chosen)


@compiled
def run(
    state: ClusterState,
    tables: RateTables,
    overheads: Overheads,
    joint: Joint,
    scorer: Scorer,
    schedulers: int,
) -> bool:
    """Simulate until nothing is to come; False: the log must be lengthened first."""
    state, tables, room, memory = borrowed(state), borrowed(tables), joint.room, joint.memory
    joint = Joint(borrowed(joint.believed), joint.owners, memory, joint.rule, room)
    while True:
        if log_is_short(state):
            return False
        if not pass_time(state, tables, overheads, room, memory):
            return True
        route(state, joint)
        start_all(state, tables, overheads, joint, scorer, schedulers)


@compiled
def run_to_decision(
    state: ClusterState,
    tables: RateTables,
    overheads: Overheads,
    joint: Joint,
    scorer: Scorer,
    schedulers: int,
    cell: int,
) -> tuple[int, float]:
    """Send the job that was asked about to `cell`, NONE: there is none; go on to the next.

    Returns:
        The job that is asked about, which is described, NONE: nothing is to come; and the integral
        of the number of unfinished jobs over the seconds until then.
    """
    state, tables, owners = borrowed(state), borrowed(tables), joint.owners
    clock, passed = state.clock[0], 0.0
    if cell != NONE:
        job = next_asked(state, owners, clock.head)
        note(state, joint.memory, owners.cells, job, cell)
        come(state, owners, job, cell)
    while True:
        job = next_asked(state, owners, clock.head)
        if job != NONE:
            look_at_cells(state, joint, job)
            return job, passed
        start_all(state, tables, overheads, joint, scorer, schedulers)
        before, unfinished = clock.now, clock.pending + clock.running
        if not pass_time(state, tables, overheads, joint.room, joint.memory):
            return NONE, passed
        passed += unfinished * (clock.now - before)
