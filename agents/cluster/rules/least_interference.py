"""Where a job takes the least from itself and its neighbours, in as few racks as possible."""

from __future__ import annotations

import numpy as np

from agents.cluster.rules.eligible import holds
from envs.arrays import IntArray
from envs.cluster.interference.kernel import neighbour_rate
from envs.cluster.interference.rates import RateTables
from envs.cluster.simulation.cluster_kernel import give, ungive
from envs.cluster.simulation.cluster_state import NONE, ClusterState
from envs.compilation import compiled_inner, pasted

ANY_RACK = np.int64(-1)  # of the type of racks, for which alone it is then compiled


@compiled_inner
def gain(state: ClusterState, tables: RateTables, job: int) -> float:
    """GPUs times rate that the cluster wins when `job` runs on the shares it was given.

    Its own rate counts, less what its neighbours lose on the nodes they share with it.
    """
    record = state.jobs[job]
    spans = record.nodes > 1
    index = record.share
    while index != NONE:
        state.nodes[state.shares[index].node].spanning += spans
        index = state.shares[index].next
    won: float = record.gpus * neighbour_rate(state.jobs, state.nodes, state.shares, tables, job)
    index = record.share
    while index != NONE:
        other = state.nodes[state.shares[index].node].share
        while other != NONE:
            neighbour = np.int64(state.shares[other].job)
            if neighbour != job:
                rate = neighbour_rate(state.jobs, state.nodes, state.shares, tables, neighbour)
                won -= state.shares[other].gpus * (state.jobs[neighbour].rate - rate)
            other = state.shares[other].after
        index = state.shares[index].next
    index = record.share
    while index != NONE:
        state.nodes[state.shares[index].node].spanning -= spans
        index = state.shares[index].next
    return won


@compiled_inner
def choose_least_interference(
    state: ClusterState,
    tables: RateTables,
    job: int,
    out_nodes: IntArray,
    out_gpus: IntArray,
) -> int:
    """Choose the nodes of a whole-GPU job; how many, 0 where it does not fit.

    A job that fits on a node goes to the one with the greatest `gain`. Another takes idle nodes and
    for the remainder the node with the greatest `gain`: in the rack with the least free GPUs that
    holds it all, or anywhere if none does. Of equal gains the fullest node counts, then the lowest
    number.
    """
    need = state.jobs[job].gpus
    largest = 0
    racks = 0
    for node in range(len(state.nodes)):
        largest = max(largest, state.nodes[node].gpus)
        racks = max(racks, state.nodes[node].rack + 1)
    if need > largest and racks > 1:
        free = np.zeros(racks, np.int64)
        for node in range(len(state.nodes)):
            free[state.nodes[node].rack] += state.nodes[node].free
        for rack in np.argsort(free, kind="mergesort"):
            if free[rack] >= need:
                count: int = choose_within(state, tables, job, rack, out_nodes, out_gpus)
                if count > 0:
                    return count
    anywhere: int = choose_within(state, tables, job, ANY_RACK, out_nodes, out_gpus)
    return anywhere


@pasted
def elsewhere(state: ClusterState, node: int, rack: int) -> bool:
    """Whether `node` is in another rack than the one asked for."""
    return rack != ANY_RACK and state.nodes[node].rack != rack


@compiled_inner
def choose_within(
    state: ClusterState,
    tables: RateTables,
    job: int,
    rack: int,
    out_nodes: IntArray,
    out_gpus: IntArray,
) -> int:
    """The same within one rack, or ANY_RACK."""
    nodes = state.nodes
    left = state.jobs[job].gpus
    count = 0
    for node in range(len(nodes)):
        whole = nodes[node].gpus
        if left <= whole or nodes[node].free < whole or whole == 0:
            continue
        if elsewhere(state, node, rack):
            continue
        if holds(nodes[node], state.jobs[job], whole):
            give(state, job, node, whole)
            out_nodes[count], out_gpus[count] = node, whole
            left -= whole
            count += 1
    best, most = NONE, -np.inf
    for node in range(len(nodes)):
        if elsewhere(state, node, rack) or nodes[node].free < left:
            continue
        if not holds(nodes[node], state.jobs[job], left):
            continue
        give(state, job, node, left)
        won = gain(state, tables, job)
        ungive(state, job)
        if won > most or (won == most and nodes[node].free < nodes[best].free):
            best, most = node, won
    for _ in range(count):
        ungive(state, job)
    if best == NONE:
        return 0
    out_nodes[count], out_gpus[count] = best, left
    return count + 1
