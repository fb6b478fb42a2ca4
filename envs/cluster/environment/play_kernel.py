"""What decisions do, compiled: jobs start, are forwarded or preempted, or time passes."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from envs.cluster.environment.actions import ActionTable
from envs.cluster.environment.features import minutes
from envs.cluster.environment.groups_kernel import room, slots_of, start_on
from envs.cluster.environment.history import add_finished
from envs.cluster.environment.views import Bookkeeping, View
from envs.cluster.environment.window import REMAINING_SERVICE, REMAINING_TIME, SERVICE
from envs.cluster.interference.rates import RateTables
from envs.cluster.simulation.cluster_kernel import NOTHING, advance, stop
from envs.cluster.simulation.cluster_state import FINISHED, NONE, ClusterState, Overheads
from envs.cluster.simulation.lent import lent
from envs.cluster.workload.trace import WHOLE_GPU

FloatArray = NDArray[np.float64]

STARTED, FORWARDED, PREEMPTED, WAITED = 0, 1, 2, 3  # what an action was
# columns of what passes in a wait, by scheduler: integrals over seconds of
UNFINISHED, UNFINISHED_GPUS, INVERSE_WORK, QUEUED, HELD = 0, 1, 2, 3, 4
PASSED_WIDTH = 5


@njit(cache=True)
def act(
    state: ClusterState,
    tables: RateTables,
    overheads: Overheads,
    book: Bookkeeping,
    view: View,
    table: ActionTable,
    forward_delay: float,
    action: int,
) -> int:
    """Carry out an allowed action of a scheduler other than to wait.

    Returns:
        What it was; WAITED without doing anything where it is to wait.
    """
    state, tables, book, view = lent(state), lent(tables), lent(book), lent(view)
    me = view.scheduler
    if action < table.window * table.groups:
        row, group = action // table.groups, action % table.groups
        first, last = slots_of(table, view, group)
        job = np.int64(book.window[me, row])
        start_on(state, tables, overheads, view, job, first, last)
        return STARTED
    action -= table.window * table.groups
    if action < table.window * table.peers:
        job = book.window[me, action // table.peers]
        book.home[job] = (me + 1 + action % table.peers) % (table.peers + 1)
        book.there[job] = state.clock[0].now + forward_delay
        book.forwards[job] += 1
        return FORWARDED
    action -= table.window * table.peers
    if action < table.preemptible:
        stop(state, tables, np.int64(book.shown[me, action]))
        return PREEMPTED
    return WAITED


@njit(cache=True)
def wait(
    state: ClusterState,
    tables: RateTables,
    overheads: Overheads,
    book: Bookkeeping,
    longest: float,
    passed: FloatArray,
) -> bool:
    """Let time pass until something happens, for at most `longest` seconds.

    Args:
        state: of the cluster.
        tables: how fast jobs run.
        overheads: what stopping costs.
        book: whose queue jobs are in; one that arrives there after a transfer ends the wait. Where
            a history is shown, jobs that finish are added to its means.
        longest: seconds, above 0; inf: no limit.
        passed: (S, PASSED_WIDTH) what passed is written there.

    Returns:
        Whether time or anything at all passed.
    """
    state, tables, book = lent(state), lent(tables), lent(book)
    clock = state.clock[0]
    passed[:, :] = 0.0
    before, were_finished, ran = clock.now, clock.finished, clock.running
    until = before + longest
    job = clock.head
    while job != NONE:
        if book.there[job] > before:
            until = min(until, book.there[job])
        home = book.home[job]
        add_unfinished(state, job, home, passed)
        passed[home, QUEUED] += 1.0
        job = state.jobs[job].after
    for place in range(clock.running):
        job = state.heap[place]
        home = book.home[job]
        add_unfinished(state, job, home, passed)
        passed[home, HELD] += state.jobs[job].gpus * state.jobs[job].milli / WHOLE_GPU
        book.row[place] = job
    outcome = advance(state, tables, overheads, until)
    passed *= clock.now - before
    if len(book.gang) > 0 and clock.finished > were_finished:
        remember(state, book, ran)
    return bool(outcome != NOTHING)


@njit(cache=True)
def remember(state: ClusterState, book: Bookkeeping, ran: int) -> None:
    """Add to the means which of the first `ran` jobs of `book.row` have finished, by number."""
    over = 0
    for place in range(ran):
        job = book.row[place]
        if state.jobs[job].status == FINISHED:
            at = over
            while at > 0 and book.row[at - 1] > job:
                book.row[at] = book.row[at - 1]
                at -= 1
            book.row[at] = job
            over += 1
    for place in range(over):
        job = book.row[place]
        held = minutes(state.jobs[job].executed)
        book.took[job] = held
        add_finished(book.finished[book.gang[job]], held)
        add_finished(book.finished[len(book.finished) - 1], held)


@njit(cache=True, inline="always")
def add_unfinished(state: ClusterState, job: int, home: int, passed: FloatArray) -> None:
    """Count a job that waits or runs."""
    record = state.jobs[job]
    passed[home, UNFINISHED] += 1.0
    passed[home, UNFINISHED_GPUS] += record.gpus * record.milli / WHOLE_GPU
    passed[home, INVERSE_WORK] += 1.0 / record.work


@njit(cache=True)
def something_to_come(state: ClusterState, book: Bookkeeping) -> bool:
    """Whether a job runs, is to arrive or on its way to a queue, or a node is to fail or return."""
    clock = state.clock[0]
    if (
        clock.running > 0
        or clock.arrived < len(state.jobs)
        or clock.incident < len(state.incidents)
    ):
        return True
    job = clock.head
    while job != NONE:
        if book.there[job] > clock.now:
            return True
        job = state.jobs[job].after
    return False


@njit(cache=True)
def holding(state: ClusterState, table: ActionTable, view: View, holds: NDArray[np.int8]) -> None:
    """Write into `holds` (J,) which jobs some server group of a view can hold; nothing runs yet."""
    for job in range(len(state.jobs)):
        wanted = state.jobs[job].gpus
        in_all = 0
        for rack in range(len(view.rack_ptr) - 1):
            in_rack = 0
            for slot in range(view.rack_ptr[rack], view.rack_ptr[rack + 1]):
                there = room(state.jobs, state.nodes, state.partials, job, view.node[slot])
                if there >= wanted:
                    holds[job] = 1
                in_rack += max(there, 0)
            if (table.offer_racks or table.offer_all) and in_rack >= wanted > 1:
                holds[job] = 1
            in_all += in_rack
        if table.offer_all and in_all >= wanted > 1:
            holds[job] = 1


@njit(cache=True)
def look(state: ClusterState, book: Bookkeeping, view: View, key: int) -> tuple[int, int]:
    """Choose the jobs that a scheduler is shown: its window and its running jobs.

    Running jobs come in the order of their first server, so that nothing shows when they will end.

    Returns:
        How many of its jobs are pending and running, shown or not.
    """
    me = view.scheduler
    window, shown = book.window[me], book.shown[me]
    keys = np.empty(len(window))
    filled = 0
    pending = 0
    now = state.clock[0].now
    job = state.clock[0].head
    while job != NONE:
        record = state.jobs[job]
        if book.home[job] == me and book.there[job] <= now:
            pending += 1
            value = 0.0
            if key == SERVICE:
                value = record.executed * record.gpus * record.milli
            elif key == REMAINING_TIME:
                value = record.remaining
            elif key == REMAINING_SERVICE:
                value = record.remaining * record.gpus * record.milli
            if filled < len(window) or value < keys[filled - 1]:
                place = filled if filled < len(window) else filled - 1
                while place > 0 and value < keys[place - 1]:
                    keys[place] = keys[place - 1]
                    window[place] = window[place - 1]
                    place -= 1
                keys[place] = value
                window[place] = job
                filled = min(filled + 1, len(window))
        job = record.after
    window[filled:] = NONE
    return pending, show_running(state, book.row, view, shown)


@njit(cache=True)
def show_running(
    state: ClusterState, row: NDArray[np.int32], view: View, shown: NDArray[np.int32]
) -> int:
    """Choose the running jobs shown; `row` (J,) is scratch memory. How many run."""
    running = 0
    nodes, shares = state.nodes, state.shares
    for place in range(state.clock[0].running):
        row[state.heap[place]] = NONE
    for slot in range(len(view.node)):
        share = nodes[view.node[slot]].share
        while share != NONE:
            job = shares[share].job
            if row[job] == NONE:
                row[job] = running
                if running < len(shown):
                    shown[running] = job
                running += 1
            share = shares[share].after
    shown[min(running, len(shown)) :] = NONE
    return running
