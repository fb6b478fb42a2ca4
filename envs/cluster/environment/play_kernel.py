"""What decisions do, compiled: jobs start, are forwarded or preempted, or time passes.

`envs.cluster.environment.actions.ClusterActions` says what server groups are.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from envs.arrays import FloatArray
from envs.cluster.environment.actions import REMAINING_SERVICE, REMAINING_TIME, SERVICE, ActionTable
from envs.cluster.environment.features import add_finished, minutes
from envs.cluster.environment.views import Bookkeeping, View
from envs.cluster.interference.rates import RateTables
from envs.cluster.simulation.borrowed import borrowed
from envs.cluster.simulation.cluster_kernel import NOTHING, advance, begin, give, give_partial, stop
from envs.cluster.simulation.cluster_state import FINISHED, NONE, ClusterState, Overheads
from envs.cluster.workload.trace import WHOLE_GPU
from envs.compilation import compiled, compiled_inner, pasted

Flags = NDArray[np.int8]
Records = NDArray[np.void]
KINDS = 32  # different requests among jobs that are remembered


@compiled_inner
def partial_for(nodes: Records, partials: Records, node: int, milli: int, gpus: int) -> int:
    """The set of `gpus` partial GPUs of `node` with the least left that is enough, or NONE."""
    best, least = NONE, WHOLE_GPU + 1
    index = nodes[node].partial
    while index != NONE:
        left = partials[index].left
        if partials[index].gpus == gpus and milli <= left < least:
            best, least = index, left
        index = partials[index].next
    return best


@compiled_inner
def room(jobs: Records, nodes: Records, partials: Records, job: int, node: int) -> int:
    """How many GPUs a job like `job` could get on `node` now; -1: it cannot be there at all."""
    record, place = jobs[job], nodes[node]
    if place.up == 0 or (record.types >> place.type) & 1 == 0:
        return -1
    wanted = np.int64(record.gpus)
    lasting = wanted  # GPUs for which processor and memory last
    if record.cpu > place.cpu:  # not enough for all of it
        if wanted == 0:
            return -1
        lasting = place.cpu * wanted // record.cpu
    if record.memory > place.memory:
        if wanted == 0:
            return -1
        lasting = min(lasting, place.memory * wanted // record.memory)
    free = np.int64(place.free)
    if lasting < wanted:
        return int(min(free, lasting))
    shares = free < wanted and record.milli < WHOLE_GPU
    if shares and partial_for(nodes, partials, node, record.milli, record.gpus) != NONE:
        return int(wanted)
    return int(free)


@compiled_inner
def slots_of(table: ActionTable, view: View, group: int) -> tuple[int, int]:
    """The servers of a group: the first slot and the one after the last."""
    if group < table.servers:
        return group, group + 1
    rack = group - table.servers
    if rack < len(view.rack_ptr) - 1 and group < table.groups - 1:
        return view.rack_ptr[rack], view.rack_ptr[rack + 1]
    return 0, len(view.node)


@compiled
def start_on(
    state: ClusterState,
    tables: RateTables,
    overheads: Overheads,
    view: View,
    job: int,
    first: int,
    last: int,
) -> None:
    """Start `job` on the servers in slots `first`..`last` - 1, which have room for it."""
    fractional = state.jobs[job].milli < WHOLE_GPU and state.jobs[job].gpus > 0
    if not (fractional and take_part(state, view, job, first, last)):
        take_whole(state, view, job, first, last)
    begin(state, tables, overheads, job)


@compiled_inner
def take_whole(state: ClusterState, view: View, job: int, first: int, last: int) -> None:
    """Give `job` free GPUs: as few servers as possible, the last of them the tightest."""
    jobs, nodes, partials = state.jobs, state.nodes, state.partials
    left = jobs[job].gpus
    while True:
        enough, least = NONE, 0
        fullest, most = NONE, 0
        for slot in range(first, last):
            there = room(jobs, nodes, partials, job, view.node[slot])
            if there >= left and (enough == NONE or there < least):
                enough, least = slot, there
            if there > most:
                fullest, most = slot, there
        if enough != NONE:
            give_free(state, job, view.node[enough], left)
            return
        give_free(state, job, view.node[fullest], most)
        left -= most


@compiled_inner
def give_free(state: ClusterState, job: int, node: int, gpus: int) -> None:
    """Give a job free GPUs of a node; a fractional one has them as a set that others may join."""
    if state.jobs[job].milli < WHOLE_GPU and gpus > 0:
        give_partial(state, job, node, NONE, gpus)
    else:
        give(state, job, node, gpus)


@compiled_inner
def take_part(state: ClusterState, view: View, job: int, first: int, last: int) -> bool:
    """Give a fractional job the fullest set of its size, or free GPUs of the tightest server.

    Returns:
        Whether a single server has taken it; otherwise nothing has happened.
    """
    jobs, nodes, partials = state.jobs, state.nodes, state.partials
    milli, wanted = jobs[job].milli, jobs[job].gpus
    chosen, partial, least = NONE, NONE, WHOLE_GPU + 1
    opened, tightest = NONE, 0
    for slot in range(first, last):
        node = view.node[slot]
        there = room(jobs, nodes, partials, job, node)
        if there < wanted:
            continue
        index = partial_for(nodes, partials, node, milli, wanted)
        if index != NONE and partials[index].left < least:
            chosen, partial, least = node, index, partials[index].left
        free = nodes[node].free
        if free >= wanted and (opened == NONE or free < tightest):
            opened, tightest = node, free
    if partial == NONE and opened == NONE:
        return False
    give_partial(state, job, chosen if partial != NONE else opened, partial, wanted)
    return True


@compiled_inner
def offer(
    state: ClusterState, table: ActionTable, view: View, job: int, row: int, mask: Flags
) -> None:
    """Write into `mask` on which groups the job in row `row` of the window may start."""
    jobs, nodes, partials = state.jobs, state.nodes, state.partials
    wanted = jobs[job].gpus
    first = row * table.groups
    racks = len(view.rack_ptr) - 1
    in_all = 0
    some_server, some_rack = False, False
    for rack in range(racks):
        in_rack = 0
        server_here = False
        for slot in range(view.rack_ptr[rack], view.rack_ptr[rack + 1]):
            there = room(jobs, nodes, partials, job, view.node[slot])
            if there < 0:
                continue
            in_rack += there
            if there >= wanted:
                server_here = True
                if table.offer_servers:
                    mask[first + slot] = 1
        in_all += in_rack
        enough = server_here or (in_rack >= wanted > 1)
        some_server = some_server or server_here
        if table.offer_racks and enough and not (table.offer_servers and server_here):
            mask[first + table.servers + rack] = 1
            some_rack = True
    enough = some_server or (in_all >= wanted > 1)
    smaller = (table.offer_servers and some_server) or (table.offer_racks and some_rack)
    if table.offer_all and enough and not smaller:
        mask[first + table.groups - 1] = 1


STARTED, FORWARDED, PREEMPTED, WAITED = 0, 1, 2, 3  # what an action was
# columns of what passes in a wait, by scheduler: integrals over seconds of
UNFINISHED, UNFINISHED_GPUS, INVERSE_WORK, QUEUED, HELD = 0, 1, 2, 3, 4
PASSED_WIDTH = 5


@compiled
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
    state, tables, book, view = borrowed(state), borrowed(tables), borrowed(book), borrowed(view)
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


@compiled
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
    state, tables, book = borrowed(state), borrowed(tables), borrowed(book)
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


@compiled_inner
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
    remember_in_order(state, book, book.row[:over])


@compiled
def remember_in_order(state: ClusterState, book: Bookkeeping, over: NDArray[np.integer]) -> None:
    """Add jobs that have finished to the means, as they come."""
    for place in range(len(over)):
        job = over[place]
        held = minutes(state.jobs[job].executed)
        book.took[job] = held
        add_finished(book.finished[book.gang[job]], held)
        add_finished(book.finished[len(book.finished) - 1], held)


@pasted
def add_unfinished(state: ClusterState, job: int, home: int, passed: FloatArray) -> None:
    record = state.jobs[job]
    passed[home, UNFINISHED] += 1.0
    passed[home, UNFINISHED_GPUS] += record.gpus * record.milli / WHOLE_GPU
    passed[home, INVERSE_WORK] += 1.0 / record.work


@compiled_inner
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


@pasted
def alike(jobs: Records, one: int, other: int) -> bool:
    """Whether two jobs ask for the same, and so have room in the same places."""
    a, b = jobs[one], jobs[other]
    return bool(
        a.gpus == b.gpus
        and a.milli == b.milli
        and a.types == b.types
        and a.cpu == b.cpu
        and a.memory == b.memory
    )


@compiled
def holding(state: ClusterState, table: ActionTable, view: View, holds: NDArray[np.int8]) -> None:
    """Write into `holds` (J,) which jobs some server group of a view can hold; nothing runs yet."""
    groups = np.empty(table.groups, np.int8)
    for job in range(len(state.jobs)):
        groups[:] = 0
        offer(state, table, view, job, 0, groups)
        holds[job] = groups.max()


@compiled_inner
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


@compiled_inner
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
