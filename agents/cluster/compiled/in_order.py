"""Jobs start in a constant order of priority and run to their end."""

from __future__ import annotations

import numpy as np

from agents.cluster.compiled.start import try_to_start
from agents.cluster.compiled.waiting import Waiting, ahead, first, join, leave, oldest_newcomer
from agents.cluster.rules.gangs import HELIOS_CONSOLIDATE, Room
from envs.arrays import FloatArray
from envs.cluster.interference.rates import RateTables
from envs.cluster.simulation.borrowed import borrowed
from envs.cluster.simulation.cluster_kernel import NOTHING, advance, log_is_short
from envs.cluster.simulation.cluster_state import NONE, ClusterState, Overheads
from envs.compilation import compiled


@compiled
def run(
    state: ClusterState,
    tables: RateTables,
    overheads: Overheads,
    waiting: Waiting,
    key: FloatArray,
    rule: int,
    room: Room,
    blocking: bool,
) -> bool:
    """Simulate until nothing is to come; False: the log must be lengthened first.

    Args:
        key: (J,) priority of every job, the least first.
        blocking: whether a job that does not fit keeps those behind it waiting too.
    """
    state, tables, waiting, room = (
        borrowed(state),
        borrowed(tables),
        borrowed(waiting),
        borrowed(room),
    )
    clock = state.clock[0]
    hopeless = np.zeros(len(waiting.size), np.bool_)  # until GPUs are released
    monotone = rule != HELIOS_CONSOLIDATE
    while True:
        if log_is_short(state):
            return False
        finished, incident, arrived = clock.finished, clock.incident, clock.arrived
        if advance(state, tables, overheads, np.inf) == NOTHING:
            return True
        if clock.incident > incident:
            job = oldest_newcomer(state, waiting)
            while job != NONE:
                join(waiting, job, key[job], job)
                job = state.jobs[job].after
        else:
            for job in range(arrived, clock.arrived):
                join(waiting, job, key[job], job)
        released = clock.finished > finished or clock.incident > incident
        if released or not monotone:
            hopeless[:] = False
        while True:
            chosen = np.int64(NONE)  # else what it is given to is compiled for the constant too
            for kind in range(len(hopeless)):
                if waiting.number[kind] == 0:
                    continue
                if not blocking and (hopeless[kind] or waiting.size[kind] > clock.free):
                    continue
                job = first(waiting, kind)
                if chosen == NONE or ahead(waiting, job, chosen):
                    chosen = job
            if chosen == NONE:
                break
            kind = waiting.kind[chosen]
            if hopeless[kind] or waiting.size[kind] > clock.free:
                break
            if try_to_start(state, tables, overheads, chosen, rule, room):
                leave(waiting, kind)
            else:
                hopeless[kind] = True
