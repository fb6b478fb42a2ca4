"""Fill an observation from the state of a cluster, compiled.

What the columns mean stands in `envs.cluster.environment.observation.ClusterObservation`.
"""

from __future__ import annotations

from math import sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.cluster.environment.actions import ActionTable
from envs.cluster.environment.features import (
    MEAN,
    NEIGHBOUR_WIDTH,
    NUMBER,
    VARIANCE,
    bounded,
    count,
    minutes,
    width,
)
from envs.cluster.environment.play_kernel import KINDS, alike, look, offer, something_to_come
from envs.cluster.environment.views import PROFILE_WIDTH, Bookkeeping, View
from envs.cluster.interference.kernel import spread_of
from envs.cluster.interference.rates import SEVERAL_RACKS
from envs.cluster.simulation.borrowed import borrowed
from envs.cluster.simulation.cluster_state import FINISHED, FUTURE, NONE, RUNNING, ClusterState
from envs.cluster.workload.trace import WHOLE_GPU
from envs.compilation import compiled, compiled_inner

Records = NDArray[np.void]

AREA_WIDTH = 8  # what racks and the whole have in common
RACK_WIDTH, CLUSTER_WIDTH, SHARE_WIDTH, PEER_BASE = AREA_WIDTH, AREA_WIDTH + 8, 2, 7
SERVER_BASE, CHANGING = 11, 17  # columns of a server before its type, of a job before its profile
JOB_BASE = CHANGING + PROFILE_WIDTH


class ObservationTable(NamedTuple):
    """Sizes of an observation; plain numbers for compiled code."""

    servers: int  # N
    racks: int  # R
    gpu_types: int  # T
    window: int  # W
    running: int  # M
    shares: int  # E
    peers: int  # F
    known: int  # 1: durations are
    key: int  # of the window
    most_forwards: int
    history: int  # K


@compiled
def observe(
    state: ClusterState,
    book: Bookkeeping,
    view: View,
    profiles: NDArray[np.float32],
    summaries: NDArray[np.float64],
    actions: ActionTable,
    sizes: ObservationTable,
    floats: NDArray[np.float32],
    indices: NDArray[np.int64],
    flags: NDArray[np.int8],
    mask: NDArray[np.int8],
) -> None:
    """Fill fresh buffers, all zero, with what a scheduler sees and may do.

    Args:
        state: of the cluster.
        book: whose queue jobs are in; the jobs shown are written there.
        view: of the scheduler.
        profiles: (J, ...) `envs.cluster.environment.views.job_profiles`.
        summaries: (S, PEER_BASE + T) of all schedulers; not read where there is one.
        actions: their numbering.
        sizes: of the observation.
        floats: cluster, racks, servers, running jobs, pending jobs, shares, peers.
        indices: rack of every server; running job, server of every share.
        flags: masks of racks, servers, running jobs, pending jobs, shares.
        mask: (A,) allowed actions.
    """
    state, book, view = borrowed(state), borrowed(book), borrowed(view)
    n, r, w = sizes.servers, sizes.racks, sizes.window
    m, e = sizes.running, sizes.shares
    server_width, peer_width = SERVER_BASE + sizes.gpu_types, PEER_BASE + sizes.gpu_types
    job_width = JOB_BASE + sizes.gpu_types + width(sizes.history)
    cluster = floats[:CLUSTER_WIDTH]
    at = CLUSTER_WIDTH
    racks = floats[at : at + r * RACK_WIDTH].reshape(r, RACK_WIDTH)
    at += r * RACK_WIDTH
    servers = floats[at : at + n * server_width].reshape(n, server_width)
    at += n * server_width
    running = floats[at : at + m * job_width].reshape(m, job_width)
    at += m * job_width
    pending = floats[at : at + w * job_width].reshape(w, job_width)
    at += w * job_width
    shares = floats[at : at + e * SHARE_WIDTH].reshape(e, SHARE_WIDTH)
    at += e * SHARE_WIDTH
    peers = floats[at : at + sizes.peers * peer_width].reshape(sizes.peers, peer_width)

    waiting, started = look(state, book, view, sizes.key)
    me = view.scheduler
    window, shown = book.window[me], book.shown[me]
    flags[: len(view.rack_ptr) - 1] = 1
    flags[r : r + len(view.node)] = 1
    indices[len(view.node) : n] = r
    fill_servers(state, view, servers, racks, cluster, indices)
    cluster[0] = bounded(np.log2(max(view.gpus, 1)) / 10.0)
    cluster[8] = count(waiting)
    cluster[9] = count(max(waiting - w, 0))
    cluster[10] = count(started)
    cluster[11] = count(max(started - m, 0))
    fill_queue(state, book, view, cluster)
    marks = flags[r + n :]
    fill_jobs(state, book, view, profiles, sizes, shown, running, marks[:m])
    fill_jobs(state, book, view, profiles, sizes, window, pending, marks[m : m + w])
    left_out = fill_shares(state, view, shown, shares, indices[n:], marks[m + w :], n)
    cluster[15] = count(left_out)
    for peer in range(sizes.peers):
        other = summaries[(me + 1 + peer) % (sizes.peers + 1)]
        peers[peer, 0] = bounded(other[0] / max(view.gpus, 1))
        for column in range(1, peer_width):
            peers[peer, column] = bounded(other[column])
    fill_mask(state, book, view, actions, sizes.most_forwards, mask)


@compiled_inner
def fill_servers(
    state: ClusterState,
    view: View,
    servers: NDArray[np.float32],
    racks: NDArray[np.float32],
    cluster: NDArray[np.float32],
    rack_of: NDArray[np.int64],
) -> None:
    """Servers, their racks and the whole."""
    largest = float(view.largest)
    areas = np.zeros((len(view.rack_ptr), AREA_WIDTH))  # the last is the whole
    for slot in range(len(view.node)):
        rack_of[slot] = view.rack[slot]
        place, row, area = state.nodes[view.node[slot]], servers[slot], areas[view.rack[slot]]
        gpus, jobs = float(max(place.gpus, 1)), float(max(place.jobs, 1))
        rates = 0.0
        share = place.share
        while share != NONE:
            rates += state.jobs[state.shares[share].job].rate
            share = state.shares[share].after
        left = 0
        partial = place.partial
        while partial != NONE:
            left += state.partials[partial].left * state.partials[partial].gpus
            partial = state.partials[partial].next
        row[0] = place.gpus / largest
        row[1] = place.free / gpus
        row[2] = place.free / largest
        row[3] = place.up
        row[4] = bounded(place.jobs / gpus)
        row[5] = place.spanning / jobs
        row[6] = bounded(1.0 - rates / jobs) if place.jobs > 0 else 0.0
        row[7] = left / WHOLE_GPU / gpus
        row[8] = place.cpu / max(view.capacity[slot, 0], 1.0)
        row[9] = place.memory / max(view.capacity[slot, 1], 1.0)
        row[10] = view.capacity[slot, 2]
        row[SERVER_BASE + place.type] = 1.0
        area[0] += place.gpus
        area[1] += place.free
        area[2] = max(area[2], place.free)
        area[3] += place.free == place.gpus and place.up == 1
        area[4] += place.up
        area[5] += place.jobs
        area[6] += place.spanning
        area[7] += rates
    whole = areas[-1]
    for rack in range(len(view.rack_ptr) - 1):
        area = areas[rack]
        most = max(whole[2], area[2])
        whole += area
        whole[2] = most
        in_rack = view.rack_ptr[rack + 1] - view.rack_ptr[rack]
        write_area(area, in_rack, view.gpus, view.largest, racks[rack])
    write_area(whole, len(view.node), view.gpus, view.largest, cluster)


@compiled_inner
def write_area(
    area: NDArray[np.float64], servers: int, all_gpus: int, largest: int, row: NDArray[np.float32]
) -> None:
    """A rack, or the whole, from the sums over its servers."""
    gpus, jobs = max(area[0], 1.0), max(area[5], 1.0)
    row[0] = area[0] / max(all_gpus, 1)
    row[1] = area[1] / gpus
    row[2] = area[2] / largest
    row[3] = area[3] / servers
    row[4] = area[4] / servers
    row[5] = bounded(area[5] / gpus)
    row[6] = area[6] / jobs
    row[7] = bounded(1.0 - area[7] / jobs) if area[5] > 0.0 else 0.0


@compiled_inner
def fill_queue(
    state: ClusterState, book: Bookkeeping, view: View, cluster: NDArray[np.float32]
) -> None:
    """What the whole queue asks for, its oldest job, and what is on its way to it."""
    now = state.clock[0].now
    asked, oldest, coming = 0.0, 0.0, 0
    job = state.clock[0].head
    while job != NONE:
        record = state.jobs[job]
        if book.home[job] == view.scheduler:
            if book.there[job] <= now:
                asked += record.gpus * record.milli / WHOLE_GPU
                oldest = max(oldest, now - record.submit)
            else:
                coming += 1
        job = record.after
    cluster[12] = bounded(asked / max(view.gpus, 1))
    cluster[13] = minutes(oldest)
    cluster[14] = count(coming)


@compiled_inner
def fill_jobs(
    state: ClusterState,
    book: Bookkeeping,
    view: View,
    profiles: NDArray[np.float32],
    sizes: ObservationTable,
    chosen: NDArray[np.int32],
    rows: NDArray[np.float32],
    flags: NDArray[np.int8],
) -> None:
    """The jobs `chosen`, pending or running; what is settled may be of an earlier instant."""
    jobs, now = state.jobs, state.clock[0].now
    largest, gpus = float(view.largest), float(max(view.gpus, 1))
    servers, most_forwards = len(view.node), max(sizes.most_forwards, 1)
    for number in range(len(chosen)):
        job = chosen[number]
        if job == NONE:
            return
        flags[number] = 1
        record, row = jobs[job], rows[number]
        executed, remaining = record.executed, record.remaining
        held = record.gpus * record.milli / WHOLE_GPU
        if record.status == RUNNING:
            executed += now - record.settled
            progressing = max(record.settled, record.ready)
            if now > progressing:
                remaining = max(remaining - (now - progressing) * record.rate, 0.0)
            row[3] = record.nodes / servers
            row[4] = spread_of(state.nodes, state.shares, record.share) / SEVERAL_RACKS
            row[9] = bounded(record.rate)
            if record.ready > now:
                row[10] = minutes(record.ready - now)
            if sizes.known:
                row[16] = minutes(record.end - now)
        row[0] = bounded(record.gpus / largest)
        row[1] = bounded(record.gpus / gpus)
        row[2] = record.milli / WHOLE_GPU
        row[5] = minutes(now - record.submit)
        row[6] = minutes(now - record.since)
        row[7] = minutes(executed)
        row[8] = row[7] if held == 1.0 else minutes(executed * held)
        row[11] = bounded(record.preemptions / 4.0)
        row[12] = book.forwards[job] / most_forwards
        if sizes.known:
            row[13] = minutes(remaining)
            row[14] = minutes(record.work)
            row[15] = 1.0 - remaining / record.work
        for column in range(profiles.shape[1]):
            row[CHANGING + column] = profiles[job, column]
        if sizes.history > 0:
            fill_history(state, book, job, row[JOB_BASE + sizes.gpu_types :])


@compiled_inner
def fill_history(
    state: ClusterState, book: Bookkeeping, job: int, row: NDArray[np.float32]
) -> None:
    """What is known of the jobs submitted before and after `job`, and of those that finished."""
    now = state.clock[0].now
    places = book.near.shape[1]
    for place in range(places):
        other = book.near[job, place]
        if other == NONE:
            continue
        record = state.jobs[other]
        if record.status == FUTURE:
            continue
        at = place * NEIGHBOUR_WIDTH
        row[at] = 1.0
        row[at + 3] = book.gap[job, place]
        if record.status == FINISHED:
            row[at + 1] = book.took[other]
            row[at + 2] = 1.0
        elif record.status == RUNNING:
            row[at + 1] = minutes(record.executed + now - record.settled)
        elif record.executed > 0.0:
            row[at + 1] = minutes(record.executed)
    at = places * NEIGHBOUR_WIDTH
    alike, everything = book.finished[book.gang[job]], book.finished[len(book.finished) - 1]
    row[at] = alike[MEAN]
    row[at + 1] = sqrt(alike[VARIANCE])
    row[at + 2] = count(alike[NUMBER])
    row[at + 3] = everything[MEAN]
    row[at + 4] = sqrt(everything[VARIANCE])


@compiled_inner
def fill_shares(
    state: ClusterState,
    view: View,
    shown: NDArray[np.int32],
    rows: NDArray[np.float32],
    ends: NDArray[np.int64],
    flags: NDArray[np.int8],
    servers: int,
) -> int:
    """Edges from the running jobs shown to their servers; how many found no place."""
    edges, left_out = len(rows), 0
    ends[:edges] = len(shown)
    ends[edges:] = servers
    edge = 0
    for row in range(len(shown)):
        if shown[row] == NONE:
            break
        record = state.jobs[shown[row]]
        index = record.share
        while index != NONE:
            share = state.shares[index]
            if edge < edges:
                ends[edge] = row
                ends[edges + edge] = view.slot[share.node]
                flags[edge] = 1
                held = share.gpus * record.milli / WHOLE_GPU
                rows[edge, 0] = held / max(state.nodes[share.node].gpus, 1)
                rows[edge, 1] = share.gpus / max(record.gpus, 1)
                edge += 1
            else:
                left_out += 1
            index = share.next
    return left_out


@compiled
def fill_mask(
    state: ClusterState,
    book: Bookkeeping,
    view: View,
    actions: ActionTable,
    most_forwards: int,
    mask: NDArray[np.int8],
) -> None:
    """Allowed actions: to wait wherever something is to come, or nothing else is left."""
    me, peers, groups = view.scheduler, actions.peers, actions.groups
    at = actions.window * groups
    rows, kinds = np.empty(KINDS, np.int64), 0  # rows of jobs that ask for different things
    for row in range(actions.window):
        job = book.window[me, row]
        if job == NONE:
            break
        kind = 0
        while kind < kinds and not alike(state.jobs, job, book.window[me, rows[kind]]):
            kind += 1
        if kind < kinds:
            same = rows[kind] * groups
            mask[row * groups : (row + 1) * groups] = mask[same : same + groups]
        else:
            offer(state, actions, view, job, row, mask)
            if kinds < KINDS:
                rows[kinds] = row
                kinds += 1
        if book.forwards[job] < most_forwards:
            for peer in range(peers):
                mask[at + row * peers + peer] = book.holds[job, (me + 1 + peer) % (peers + 1)]
    at += actions.window * peers
    for row in range(actions.preemptible):
        job = book.shown[me, row]
        if job == NONE:
            break
        ran = state.clock[0].now - state.jobs[job].since
        mask[at + row] = ran > 0.0 and ran >= actions.least_run_s
    mask[len(mask) - 1] = 1
    if not something_to_come(state, book) and mask[: len(mask) - 1].any():
        mask[len(mask) - 1] = 0


@compiled
def summarise(
    state: ClusterState,
    book: Bookkeeping,
    owner: NDArray[np.int32],
    largest: int,
    out: NDArray[np.float64],
) -> None:
    """Write into `out` (S, PEER_BASE + T) what schedulers show each other; `owner` (nodes,)."""
    out[:, :] = 0.0
    for node in range(len(owner)):
        place, row = state.nodes[node], out[owner[node]]
        row[0] += place.gpus
        row[1] += place.free
        row[2] = max(row[2], place.free / largest)
        row[PEER_BASE + place.type] += place.gpus
    now = state.clock[0].now
    job = state.clock[0].head
    while job != NONE:
        record, row = state.jobs[job], out[book.home[job]]
        if book.there[job] <= now:
            row[3] += 1.0
            row[4] += record.gpus * record.milli / WHOLE_GPU
        else:
            row[6] += 1.0
        job = record.after
    for place in range(state.clock[0].running):
        out[book.home[state.heap[place]], 5] += 1.0
    for scheduler in range(len(out)):
        row = out[scheduler]
        gpus = max(row[0], 1.0)
        row[1] /= gpus
        row[3] = count(row[3])
        row[4] /= gpus
        row[5] = count(row[5])
        row[6] = count(row[6])
        for column in range(PEER_BASE, out.shape[1]):
            row[column] /= gpus
