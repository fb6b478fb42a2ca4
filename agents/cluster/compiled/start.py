"""A job starts where its placement rule says, if anywhere."""

from __future__ import annotations

from agents.cluster.rules.gangs import Room, choose
from envs.arrays import IntArray
from envs.cluster.interference.rates import RateTables
from envs.cluster.simulation.cluster_kernel import begin, give, part
from envs.cluster.simulation.cluster_state import NONE, ClusterState, Overheads
from envs.compilation import compiled_inner, joined_inner


@joined_inner
def try_to_start(
    state: ClusterState,
    tables: RateTables,
    overheads: Overheads,
    job: int,
    rule: int,
    room: Room,
) -> bool:
    """Start a pending job if rule finds GPUs for it; whether it did."""
    shares: int = choose(rule, state, tables, job, room)
    for i in range(shares):
        give(state, job, room.nodes[i], room.gpus[i])
    if shares > 0:
        begin(state, tables, overheads, job)
    return shares > 0


@compiled_inner
def start_if_it_fits(
    state: ClusterState,
    tables: RateTables,
    overheads: Overheads,
    job: int,
    rule: int,
    room: Room,
) -> bool:
    """`try_to_start`, compiled by itself: for loops where several places do it."""
    done: bool = try_to_start(state, tables, overheads, job, rule, room)
    return done


@compiled_inner
def needed_victims(
    state: ClusterState,
    tables: RateTables,
    job: int,
    victims: IntArray,
    count: int,
    rule: int,
    room: Room,
) -> int:
    """How many of the last of `count` victims must stop so that a pending job fits; 0: it cannot.

    Nothing is stopped.
    """
    without = room.without
    without[:] = state.nodes
    free = state.clock[0].free
    imagined = ClusterState(
        state.jobs,
        without,
        state.shares,
        state.partials,
        state.heap,
        state.clock,
        state.incidents,
        state.runs,
    )
    for stopped in range(1, count + 1):
        victim = victims[count - stopped]
        record = state.jobs[victim]
        index = record.share
        while index != NONE:
            share = state.shares[index]
            without[share.node].free += share.gpus
            without[share.node].cpu += part(record.cpu, share.gpus, record.gpus)
            without[share.node].memory += part(record.memory, share.gpus, record.gpus)
            index = share.next
        free += record.gpus
        if free >= state.jobs[job].gpus and choose(rule, imagined, tables, job, room) > 0:
            return stopped
    return 0
