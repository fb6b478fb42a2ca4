"""Server groups, compiled: where a job has room, and how it goes to a group.

`envs.cluster.environment.actions.ClusterActions` says what all of it means.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from envs.cluster.environment.actions import ActionTable
from envs.cluster.environment.views import View
from envs.cluster.interference.rates import RateTables
from envs.cluster.simulation.cluster_kernel import begin, give, give_partial
from envs.cluster.simulation.cluster_state import NONE, ClusterState, Overheads
from envs.cluster.workload.trace import WHOLE_GPU

Flags = NDArray[np.int8]
Records = NDArray[np.void]


@njit(cache=True)
def partial_for(nodes: Records, partials: Records, node: int, milli: int) -> int:
    """The partial GPU of `node` with the least left that is enough, or NONE."""
    best, least = NONE, WHOLE_GPU + 1
    index = nodes[node].partial
    while index != NONE:
        left = partials[index].left
        if milli <= left < least:
            best, least = index, left
        index = partials[index].next
    return best


@njit(cache=True)
def room(jobs: Records, nodes: Records, partials: Records, job: int, node: int) -> int:
    """How many GPUs a job like `job` could get on `node` now; -1: it cannot be there at all."""
    record, place = jobs[job], nodes[node]
    if place.up == 0 or (record.types >> place.type) & 1 == 0:
        return -1
    wanted = record.gpus
    fitting = place.free
    if record.milli < WHOLE_GPU and fitting == 0:
        fitting = int(partial_for(nodes, partials, node, record.milli) != NONE)
    if record.cpu > place.cpu:  # not enough for all of it
        if wanted == 0:
            return -1
        fitting = min(fitting, place.cpu * wanted // record.cpu)
    if record.memory > place.memory:
        if wanted == 0:
            return -1
        fitting = min(fitting, place.memory * wanted // record.memory)
    return int(fitting)


@njit(cache=True)
def slots_of(table: ActionTable, view: View, group: int) -> tuple[int, int]:
    """The servers of a group: the first slot and the one after the last."""
    if group < table.servers:
        return group, group + 1
    rack = group - table.servers
    if rack < len(view.rack_ptr) - 1 and group < table.groups - 1:
        return view.rack_ptr[rack], view.rack_ptr[rack + 1]
    return 0, len(view.node)


@njit(cache=True)
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
    if state.jobs[job].milli < WHOLE_GPU:
        take_part(state, view, job, first, last)
    else:
        take_whole(state, view, job, first, last)
    begin(state, tables, overheads, job)


@njit(cache=True)
def take_whole(state: ClusterState, view: View, job: int, first: int, last: int) -> None:
    """Give `job` whole GPUs: as few servers as possible, the last of them the tightest."""
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
            give(state, job, view.node[enough], left)
            return
        give(state, job, view.node[fullest], most)
        left -= most


@njit(cache=True)
def take_part(state: ClusterState, view: View, job: int, first: int, last: int) -> None:
    """Give a fractional job the fullest partial GPU, or a free one of the tightest server."""
    jobs, nodes, partials = state.jobs, state.nodes, state.partials
    milli = jobs[job].milli
    chosen, partial, least = NONE, NONE, WHOLE_GPU + 1
    opened, tightest = NONE, 0
    for slot in range(first, last):
        node = view.node[slot]
        there = room(jobs, nodes, partials, job, node)
        if there < 1:
            continue
        index = partial_for(nodes, partials, node, milli)
        if index != NONE and partials[index].left < least:
            chosen, partial, least = node, index, partials[index].left
        free = nodes[node].free
        if free > 0 and (opened == NONE or free < tightest):
            opened, tightest = node, free
    give_partial(state, job, chosen if partial != NONE else opened, partial)


@njit(cache=True)
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
