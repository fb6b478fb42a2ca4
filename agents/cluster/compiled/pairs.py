"""What a scheduler could do now: pairs of a job and a place, what is known of each, a network."""

from __future__ import annotations

from math import log, log1p
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from agents.cluster.compiled.durations import gpu_seconds, left, predicted
from agents.cluster.compiled.joint_choice import (
    BEST,
    FREEST,
    LOOKED_AT,
    WIDEST,
    Joint,
    Room,
    best_places,
    effect,
    look,
    owns_running,
    rate_on,
)
from envs.arrays import IntArray
from envs.cluster.simulation.cluster_state import NONE, ClusterState
from envs.cluster.workload.trace import WHOLE_GPU
from envs.compilation import compiled_inner, pasted

FloatRows = NDArray[np.float32]

PAIR_WIDTH, NODE_WIDTH, EDGE_WIDTH = 25, 6, 5
HOUR = 3600.0
FIRST = np.int64(0)  # no literal: see `joint_choice`


class Pairs(NamedTuple):
    """K pairs at most, on N nodes; the first is what the rule does, job NONE: waiting."""

    job: IntArray  # (K,)
    shares: IntArray  # (K,) how many
    nodes: IntArray  # (K, N)
    gpus: IntArray  # (K, N)
    sets: IntArray  # (K, N)
    pair: FloatRows  # (K, PAIR_WIDTH)
    node: FloatRows  # (N, NODE_WIDTH)
    edge: FloatRows  # (K, N, EDGE_WIDTH)


def pairs_of(first: int, nodes: int) -> Pairs:
    """Memory for the pairs of the `first` jobs."""
    most = 3 * first + 2  # three places of each, what the rule does, and waiting
    return Pairs(
        job=np.zeros(most, np.int64),
        shares=np.zeros(most, np.int64),
        nodes=np.zeros((most, nodes), np.int64),
        gpus=np.zeros((most, nodes), np.int64),
        sets=np.zeros((most, nodes), np.int64),
        pair=np.zeros((most, PAIR_WIDTH), np.float32),
        node=np.zeros((nodes, NODE_WIDTH), np.float32),
        edge=np.zeros((most, nodes, EDGE_WIDTH), np.float32),
    )


@compiled_inner
def add(pairs: Pairs, room: Room, count: int, job: int, row: int) -> int:
    """Remember a row of `room` as a place for `job`, unless it is there; how many pairs."""
    shares = room.shares[row]
    if shares == 0:
        return count
    for other in range(count):
        if pairs.job[other] == job and pairs.shares[other] == shares:
            same = True
            for i in range(shares):
                same = same and (
                    pairs.nodes[other, i] == room.nodes[row, i]
                    and pairs.sets[other, i] == room.sets[row, i]
                    and pairs.gpus[other, i] == room.gpus[row, i]
                )
            if same:
                return count
    pairs.job[count], pairs.shares[count] = job, shares
    pairs.nodes[count, :shares] = room.nodes[row, :shares]
    pairs.gpus[count, :shares] = room.gpus[row, :shares]
    pairs.sets[count, :shares] = room.sets[row, :shares]
    return count + 1


@compiled_inner
def put(pairs: Pairs, k: int, room: Room, row: int) -> None:
    """Write the shares of a pair into a row of `room`."""
    shares = pairs.shares[k]
    room.nodes[row, :shares] = pairs.nodes[k, :shares]
    room.gpus[row, :shares] = pairs.gpus[k, :shares]
    room.sets[row, :shares] = pairs.sets[k, :shares]


@compiled_inner
def swap(pairs: Pairs, one: int, other: int) -> None:
    for column in (pairs.job, pairs.shares):
        column[one], column[other] = column[other], column[one]
    for table in (pairs.nodes, pairs.gpus, pairs.sets):
        for i in range(table.shape[1]):
            table[one, i], table[other, i] = table[other, i], table[one, i]


@pasted
def find(state: ClusterState, joint: Joint, pairs: Pairs, scheduler: int, first: int) -> int:
    """Write what the rule does, and the alternatives to it; how many.

    Of each of the `first` jobs: its best place by the rule, anywhere, and anywhere on free GPUs.
    And to wait, where anything of the scheduler runs. Where none of its jobs runs, every place is
    good enough for the rule: waiting would be for nothing.
    """
    rule, room = joint.rule, joint.room
    running = owns_running(state, joint.owners, scheduler)
    deciding, usual, most = True, 0, -np.inf
    pairs.job[0], pairs.shares[0] = NONE, 0
    count = beyond = 1  # the best of the jobs after the `first` stands at `beyond`
    filled = look(state, joint, max(rule.first, first), scheduler)
    for row in range(filled):
        job = int(room.window[row])
        wide = row < first
        if not wide and not (deciding and row < rule.first):
            break
        best_places(state, joint, job, running, wide)
        before, worth = count if wide else beyond, room.worth[BEST] - rule.hurry * row
        if wide or worth > most:
            count = add(pairs, room, before, job, BEST)
        if deciding and row < rule.first:
            if room.shares[BEST] == 0:
                deciding = not rule.blocking
            else:
                if worth > most or usual == 0:
                    usual, most = before, worth
                deciding = rule.joint
        if wide:
            count = add(pairs, room, count, job, WIDEST)
            beyond = count = add(pairs, room, count, job, FREEST)
    if usual > 0:
        swap(pairs, FIRST, usual)
        if not running:
            count -= 1
            swap(pairs, usual, count)
    if first > 0 and count > 1:
        describe(state, joint, pairs, scheduler, count, filled)
    return count


@compiled_inner
def ratio(one: float, other: float) -> float:
    return float(log((one + 60.0) / (other + 60.0)) / 4.0)


@pasted
def describe(
    state: ClusterState, joint: Joint, pairs: Pairs, scheduler: int, count: int, filled: int
) -> None:
    tables, owners, memory, room = joint.believed, joint.owners, joint.memory, joint.room
    jobs, nodes, clock = state.jobs, state.nodes, state.clock[0]
    soonest, latest = np.zeros(len(nodes)), np.zeros(len(nodes))
    free, gpus = 0, 0
    free_of, gpus_of = np.zeros(64), np.zeros(64)
    for node in range(len(nodes)):
        place, row = nodes[node], pairs.node[node]
        row[:] = 0.0
        if owners.of_node[node] != scheduler or not place.up:
            continue
        there, early, late = 0, np.inf, 0.0
        share = place.share
        while share != NONE:
            time = left(state, memory, state.shares[share].job)
            early, late, there = min(early, time), max(late, time), there + 1
            share = state.shares[share].after
        if there == 0:
            early = 0.0
        roomy = 0
        index = place.partial
        while index != NONE:
            if state.partials[index].left > 0:
                roomy += state.partials[index].gpus
            index = state.partials[index].next
        soonest[node], latest[node] = early, late
        free += place.free
        gpus += place.gpus
        free_of[place.type] += place.free
        gpus_of[place.type] += place.gpus
        row[0] = 1.0
        row[1] = place.free / place.gpus
        row[2] = there / place.gpus
        row[3] = log1p(early / 600.0) / 4.0
        row[4] = log1p(late / 600.0) / 4.0
        row[5] = roomy / place.gpus
    shortest, work, waiting = np.inf, 0.0, 0
    job = clock.head
    while job != NONE:
        if owners.home[job] == scheduler:
            shortest = min(shortest, predicted(memory, job))
            work += gpu_seconds(state, memory, job)
            waiting += 1
        job = jobs[job].after
    running, going = 0, 0.0
    for place in range(clock.running):
        other = state.heap[place]
        if owners.home[other] == scheduler:
            running += 1
            going += left(state, memory, other) * jobs[other].gpus * jobs[other].milli / WHOLE_GPU
    for k in range(count):
        row, job = pairs.pair[k], int(pairs.job[k])
        row[:] = 0.0
        row[0] = k == 0
        row[1] = job == NONE
        row[2] = log1p(waiting) / 4.0
        row[3] = log1p(running) / 4.0
        row[4] = free / max(gpus, 1)
        row[5] = log1p(work / max(gpus, 1) / HOUR) / 4.0
        row[6] = log1p(going / max(gpus, 1) / HOUR) / 4.0
        pairs.edge[k] = 0.0
        if job == NONE:
            continue
        record, shares = jobs[job], int(pairs.shares[k])
        put(pairs, k, room, LOOKED_AT)
        alone, own, least, won = effect(state, tables, room, job, shares)
        fastest, seconds = owners.fastest[job, scheduler], predicted(memory, job)
        waited = clock.now - record.submit
        rank = filled
        for place in range(filled):
            if room.window[place] == job:
                rank = place
        there, room_of, beside, kind = 0, 0, 0.0, nodes[pairs.nodes[k, 0]].type
        for i in range(shares):
            place = nodes[pairs.nodes[k, i]]
            there += place.free
            room_of += place.gpus
            if pairs.sets[k, i] != NONE:
                share = place.share
                while share != NONE:
                    if state.shares[share].partial == pairs.sets[k, i]:
                        beside = max(beside, left(state, memory, state.shares[share].job))
                    share = state.shares[share].after
        row[7] = log((seconds + 60.0) / HOUR) / 4.0
        row[8] = ratio(seconds, shortest)
        row[9] = log(max(record.gpus, 1)) / 3.0
        row[10] = record.milli / WHOLE_GPU
        row[11] = log1p(waited / HOUR) / 4.0
        row[12] = ratio(waited, seconds)
        row[13] = rank / 8.0
        row[14] = alone / fastest
        row[15] = own
        row[16] = least
        row[17] = won / (max(record.gpus, 1) * fastest)
        row[18] = pairs.sets[k, 0] != NONE
        row[19] = log(shares)
        row[20] = ratio(beside, seconds) if beside > 0.0 else 0.0
        row[21] = there / room_of
        row[22] = free_of[kind] / max(gpus_of[kind], 1.0)
        row[23] = gpus_of[kind] / max(gpus, 1)
        row[24] = record.gpus / max(gpus, 1)
        for node in range(len(nodes)):
            if pairs.node[node, 0] == 0.0:
                continue
            place, edge = nodes[node], pairs.edge[k, node]
            edge[0] = rate_on(tables, record, place) / fastest
            edge[1] = place.free >= record.gpus
            edge[2] = min(record.gpus / place.gpus, 2.0)
            edge[3] = ratio(soonest[node], seconds)
            edge[4] = ratio(latest[node], seconds)


class Weights(NamedTuple):
    """Of a network over pairs, H wide; matrices are (inputs, outputs)."""

    node: FloatRows  # (NODE_WIDTH, H)
    edge: FloatRows  # (EDGE_WIDTH, H)
    message: FloatRows  # (H,) what is added in both
    pair: FloatRows  # (PAIR_WIDTH, H)
    pooled: FloatRows  # (2 H, H): mean, and most, of messages
    alone: FloatRows  # (H,)
    again: FloatRows  # (H, H)
    others: FloatRows  # (H, H) of the mean over pairs
    second: FloatRows  # (H,)
    score: FloatRows  # (H,)


@njit(cache=True, fastmath=True, inline="always")
def add_product(row: FloatRows, inputs: FloatRows, matrix: FloatRows) -> None:
    """Add (I,) inputs times an (I, H) matrix to a row."""
    for i in range(len(inputs)):
        value = inputs[i]
        if value != np.float32(0.0):
            for h in range(len(row)):
                row[h] += value * matrix[i, h]


@njit(cache=True, fastmath=True)
def scores(weights: Weights, pairs: Pairs, count: int, nodes: int, out: FloatRows) -> None:
    """Write (count,) scores."""
    width = len(weights.alone)
    zero = np.float32(0.0)
    base = np.empty((nodes, width), np.float32)
    owned = 0
    for node in range(nodes):
        if pairs.node[node, 0] == zero:
            continue
        owned += 1
        row = base[node]
        row[:] = weights.message
        add_product(row, pairs.node[node], weights.node)
    hidden = np.empty((count, width), np.float32)
    pooled = np.zeros(2 * width, np.float32)
    message = np.zeros(width, np.float32)
    context = np.zeros(width, np.float32)
    each = np.float32(1.0 / max(owned, 1))
    for k in range(count):
        pooled[:] = zero
        for node in range(nodes):
            if pairs.node[node, 0] == zero:
                continue
            message[:] = base[node]
            add_product(message, pairs.edge[k, node], weights.edge)
            for h in range(width):
                value = max(message[h], zero)
                pooled[h] += value * each
                pooled[width + h] = max(pooled[width + h], value)
        row = hidden[k]
        row[:] = weights.alone
        add_product(row, pairs.pair[k], weights.pair)
        add_product(row, pooled, weights.pooled)
        for h in range(width):
            row[h] = max(row[h], zero)
            context[h] += row[h] / np.float32(count)
    message[:] = weights.second
    add_product(message, context, weights.others)
    last = np.empty(width, np.float32)
    for k in range(count):
        last[:] = message
        add_product(last, hidden[k], weights.again)
        value = zero
        for h in range(width):
            value += max(last[h], zero) * weights.score[h]
        out[k] = value
