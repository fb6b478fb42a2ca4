"""Gangs of whole GPUs take turns in their homes, compiled."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from envs.cluster.interference.rates import RateTables
from envs.cluster.simulation.cluster_kernel import (
    EVENT,
    NOTHING,
    advance,
    begin,
    give,
    part,
    settle,
    stop,
)
from envs.cluster.simulation.cluster_state import NONE, PENDING, RUNNING, ClusterState, Overheads

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
FloatArray = NDArray[np.float64]


class HomeTable(NamedTuple):
    """Who lives where, J jobs."""

    jobs: IntArray  # (J,) ascending
    first: IntArray  # (J + 1,) of each job's rows of the other two
    node: IntArray
    gpus: IntArray


@njit(cache=True)
def who_must_leave(state: ClusterState, table: HomeTable) -> IntArray:
    """Inhabitants that have finished or gone, and those that wait for a node that is down."""
    leaving = np.empty(len(table.jobs), np.int64)
    count = 0
    for row in range(len(table.jobs)):
        job = table.jobs[row]
        status = state.jobs[job].status
        goes = status not in (PENDING, RUNNING)
        if status == PENDING:
            for place in range(table.first[row], table.first[row + 1]):
                goes = goes or state.nodes[table.node[place]].up == 0
        if goes:
            leaving[count] = job
            count += 1
    return leaving[:count]


@njit(cache=True)
def who_has_no_home(state: ClusterState, housed: BoolArray) -> IntArray:
    """Pending jobs that live nowhere, in the order of the queue."""
    clock = state.clock[0]
    found = np.empty(clock.pending, np.int64)
    count = 0
    job = np.int64(clock.head)
    while job != NONE:
        if not housed[job]:
            found[count] = job
            count += 1
        job = np.int64(state.jobs[job].after)
    return found[:count]


@njit(cache=True)
def end_turns(state: ClusterState, tables: RateTables, table: HomeTable, order: IntArray) -> None:
    """Stop running jobs that are not among the first that fit their homes together.

    Args:
        state: of the simulator; its log has room for a run of every share.
        tables: rates.
        table: who lives where.
        order: rows of the table.
    """
    free = state.nodes["gpus"].astype(np.int64)
    late = np.empty(len(order), np.int64)
    count = 0
    for row in order:
        fits = True
        for place in range(table.first[row], table.first[row + 1]):
            fits = fits and free[table.node[place]] >= table.gpus[place]
        if fits:
            for place in range(table.first[row], table.first[row + 1]):
                free[table.node[place]] -= table.gpus[place]
        elif state.jobs[table.jobs[row]].status == RUNNING:
            late[count] = table.jobs[row]
            count += 1
    for job in late[:count]:
        stop(state, tables, job)


@njit(cache=True)
def start_in_order(
    state: ClusterState,
    tables: RateTables,
    overheads: Overheads,
    table: HomeTable,
    order: IntArray,
) -> None:
    """Start each pending job whose home is free, in the order of rows of the table."""
    for row in order:
        job = table.jobs[row]
        record = state.jobs[job]
        if record.status != PENDING:
            continue
        fits = True
        for place in range(table.first[row], table.first[row + 1]):
            node, gpus = state.nodes[table.node[place]], table.gpus[place]
            enough = part(record.cpu, gpus, record.gpus) <= node.cpu
            enough = enough and part(record.memory, gpus, record.gpus) <= node.memory
            fits = fits and enough and node.free >= gpus
        if fits:
            for place in range(table.first[row], table.first[row + 1]):
                give(state, job, table.node[place], table.gpus[place])
            begin(state, tables, overheads, job)


@njit(cache=True)
def turn_after_turn(
    state: ClusterState,
    tables: RateTables,
    overheads: Overheads,
    table: HomeTable,
    housed: BoolArray,
    offset: FloatArray,
    quantum_s: float,
    due: float,
) -> tuple[bool, float]:
    """Let time pass and turns change while nobody comes, leaves or has lost a home.

    Args:
        state: of a simulator that keeps no log.
        tables: rates.
        overheads: what stopping costs.
        table: who lives where.
        housed: (jobs,) who lives anywhere.
        offset: (jobs,) seconds that count as received from the first on.
        quantum_s: seconds of a turn.
        due: end of the present turn; inf: nobody waits for one.

    Returns:
        Whether homes are to be looked after now; false: nothing is going to happen any more. When
        the present turn ends.
    """
    clock = state.clock[0]
    while True:
        outcome = advance(state, tables, overheads, due)
        if outcome == NOTHING:
            return False, due
        settle(state)
        if outcome == EVENT and (
            len(who_must_leave(state, table)) > 0 or len(who_has_no_home(state, housed)) > 0
        ):
            return True, due
        received = np.empty(len(table.jobs))
        for row in range(len(table.jobs)):
            job = table.jobs[row]
            received[row] = offset[job] + state.jobs[job].executed
        order = np.argsort(received, kind="mergesort")  # stable
        if clock.now >= due:
            end_turns(state, tables, table, order)
        start_in_order(state, tables, overheads, table, order)
        due = end_of_turn(state, quantum_s, due)


@njit(cache=True)
def end_of_turn(state: ClusterState, quantum_s: float, due: float) -> float:
    """When the present turn ends: a quantum after it began; inf where nobody waits."""
    clock = state.clock[0]
    if clock.pending == 0:
        return np.inf
    if due <= clock.now or due == np.inf:
        end: float = clock.now + quantum_s
        return end
    return due
