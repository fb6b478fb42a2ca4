"""Where a gang of whole GPUs goes: the rules, their codes, and all of them in compiled code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agents.cluster.policy import Share
from agents.cluster.rules.eligible import (
    Record,
    Records,
    best_node,
    fills,
    fits_one_node,
    holds,
    refuse_fraction,
    rooms,
)
from envs.arrays import IntArray
from envs.cluster.interference.kernel import neighbour_rate
from envs.cluster.interference.rates import RateTables
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_kernel import give, ungive
from envs.cluster.simulation.cluster_state import NODE, NONE, ClusterState
from envs.compilation import compiled_inner, pasted

COUNT, YARN, HELIOS_CONSOLIDATE, FIRST_FIT, BEST_FIT, RANDOM, SPREAD, LEAST_INTERFERENCE = range(8)

COUNTED = frozenset({COUNT, RANDOM, SPREAD})  # a job fits as soon as enough GPUs are free
# On a cluster of one node these are the same.
CONSOLIDATED = frozenset({YARN, HELIOS_CONSOLIDATE, FIRST_FIT, BEST_FIT})
ANYWHERE = np.int64(-1)  # in place of a rack


class Room(NamedTuple):
    """Scratch memory of a rule on N nodes."""

    nodes: IntArray  # (N,) of the shares chosen
    gpus: IntArray  # (N,) of the shares chosen
    without: NDArray[np.void]  # NODE (N,) as they would be without some jobs
    random: NDArray[np.uint64]  # (1,) state of the rules that draw


def room_of(nodes: int, seed: int) -> Room:
    chosen, gpus = np.zeros((2, nodes), np.int64)
    return Room(chosen, gpus, np.zeros(nodes, NODE), np.array([seed], np.uint64))


@pasted
def choose(rule: int, state: ClusterState, tables: RateTables, job: int, room: Room) -> int:
    """The shares of a pending whole-GPU job, into `room`; how many, 0 where it does not fit."""
    count: int = 0
    if rule in (YARN, FIRST_FIT, BEST_FIT):  # to hand on all arrays would cost more than they do
        count = choose_few(state.nodes, state.jobs[job], rule, room.nodes, room.gpus)
    else:
        count = choose_otherwise(rule, state, tables, job, room)
    return count


@compiled_inner
def choose_otherwise(
    rule: int, state: ClusterState, tables: RateTables, job: int, room: Room
) -> int:
    """`choose` by the other rules."""
    nodes, record = state.nodes, state.jobs[job]
    count: int = 0
    if rule == LEAST_INTERFERENCE:
        count = choose_rack(state, tables, job, room.nodes, room.gpus)
    elif rule == HELIOS_CONSOLIDATE and not fits_one_node(nodes, record):
        count = choose_emptiest(nodes, record, room.nodes, room.gpus)
    elif rule == HELIOS_CONSOLIDATE or record.gpus == 0:
        count = choose_few(nodes, record, rule, room.nodes, room.gpus)
    elif rule in (COUNT, RANDOM, SPREAD):
        count = choose_any(nodes, record, rule, room)
    else:
        raise ValueError("no such placement rule")
    return count


class GangRule:
    """A rule for GPUs that are free; subclasses name its code.

    A gang that asks for fractions has GPUs of its own.
    """

    name: str
    code: int
    draws: ClassVar[bool] = False  # whether it needs random numbers

    def place(
        self, simulator: ClusterSimulator, job: int, rng: np.random.Generator
    ) -> Sequence[Share] | None:
        """The shares of `job` on the GPUs that are free now; None: it does not fit.

        Raises:
            InputError: the job asks for a fraction of one GPU.
        """
        if simulator.state.jobs["gpus"][job] < 2:
            refuse_fraction(simulator, job)
        seed = int(rng.integers(2**64, dtype=np.uint64)) if self.draws else 0
        room = room_of(len(simulator.state.nodes), seed)
        count = choose(self.code, simulator.state, simulator.tables, job, room)
        shares = room.nodes[:count].tolist(), room.gpus[:count].tolist()
        return list(zip(*shares, strict=True)) or None


class Count(GangRule):
    """A gang fits as soon as as many GPUs are free; it takes those of the lowest nodes."""

    name = "count"
    code = COUNT


class Yarn(GangRule):
    """The consolidated placement of Tiresias' simulator, which it calls YARN's.

    A gang that fits on a node takes the lowest with enough free GPUs. A larger one takes idle
    nodes, the lowest first, and for the rest the lowest other node with enough free GPUs. Nodes may
    differ in size: an idle one larger than what is still wanted is passed over.
    """

    name = "yarn"
    code = YARN


class FirstFit(GangRule):
    """A gang that fits on a node takes the lowest that holds it.

    A larger one takes idle nodes, the largest first, so that it is on few nodes, and for the rest
    the lowest other node that holds it.
    """

    name = "first_fit"
    code = FIRST_FIT


class BestFit(GangRule):
    """A gang that fits on a node takes the fullest that holds it, the lowest of these.

    A larger one takes idle nodes, the largest first, so that it is on few nodes, and for the rest
    the fullest other node that holds it.
    """

    name = "best_fit"
    code = BEST_FIT


class HeliosConsolidate(GangRule):
    """The consolidated placement of Helios' simulator.

    A gang that fits on a node takes the fullest that holds it, the lowest of these. A larger one
    goes through the nodes by free GPUs, the emptiest first: idle nodes, then one for the rest,
    which must be the next in that order.
    """

    name = "helios_consolidate"
    code = HELIOS_CONSOLIDATE


class Random(GangRule):
    """Every set of as many GPUs as the gang asks for, of those it could have, is equally likely."""

    name = "random"
    code = RANDOM
    draws = True


class Spread(GangRule):
    """GPU by GPU from the node with the most free ones, the lowest of these."""

    name = "spread"
    code = SPREAD


class LeastInterference(GangRule):
    """Where a job takes the least from itself and its neighbours, in as few racks as possible.

    By the simulator's own rates: see `gain`. A gang that fits on a node goes to the one with the
    greatest gain. Another takes idle nodes, the lowest first, and for the rest the node with the
    greatest gain: in the rack with the least free GPUs that holds it all, or anywhere if none does.
    Of equal gains the fullest node counts, then the lowest number.
    """

    name = "least_interference"
    code = LEAST_INTERFERENCE


@compiled_inner
def choose_few(
    nodes: Records, job: Record, rule: int, out_nodes: IntArray, out_gpus: IntArray
) -> int:
    """One node, or idle ones and one for the rest; the number of shares, 0: it does not fit.

    `Yarn` takes the lowest idle nodes, the others the largest; `BestFit` and `HeliosConsolidate`
    the fullest node for the rest.
    """
    count, left = 0, int(job.gpus)
    below = 1 if fits_one_node(nodes, job) else left + 1
    while below > 1:
        size = 0  # the next smaller size of an idle node
        for node in range(len(nodes) if rule != YARN else 0):
            if size < nodes[node].gpus < below and fills(nodes[node], job, left):
                size = nodes[node].gpus
        for node in range(len(nodes)):
            whole = nodes[node].gpus
            if (rule == YARN or whole == size) and fills(nodes[node], job, left):
                out_nodes[count], out_gpus[count] = node, whole
                nodes[node].free = 0  # until the rest has a node
                left -= whole
                count += 1
        below = size
    rest = best_node(nodes, job, left, rule in (BEST_FIT, HELIOS_CONSOLIDATE))
    for i in range(count):
        nodes[out_nodes[i]].free = out_gpus[i]
    if left == 0 and count > 0:
        return count
    if rest == NONE:
        return 0
    out_nodes[count], out_gpus[count] = rest, left
    return count + 1


@compiled_inner
def choose_rack(
    state: ClusterState, tables: RateTables, job: int, out_nodes: IntArray, out_gpus: IntArray
) -> int:
    """See `LeastInterference`; the number of shares, 0 where the job does not fit."""
    nodes, need = state.nodes, state.jobs[job].gpus
    free = np.zeros(nodes["rack"].max() + 1, np.int64)
    for node in range(len(nodes)):
        free[nodes[node].rack] += nodes[node].free
    within = np.argsort(free, kind="mergesort")
    if need <= nodes["gpus"].max() or len(free) == 1:
        within = within[:0]
    for rack in np.append(within, ANYWHERE):
        if rack == ANYWHERE or free[rack] >= need:
            count: int = choose_gainful(state, tables, job, rack, out_nodes, out_gpus)
            if count > 0:
                return count
    return 0


@pasted
def choose_gainful(
    state: ClusterState,
    tables: RateTables,
    job: int,
    rack: int,
    out_nodes: IntArray,
    out_gpus: IntArray,
) -> int:
    """The same within one rack, or ANYWHERE."""
    nodes, record = state.nodes, state.jobs[job]
    count, left = 0, record.gpus
    best, most = NONE, -np.inf
    for node in range(len(nodes)):
        here = rack in (ANYWHERE, np.int64(nodes[node].rack))
        if here and fills(nodes[node], record, left - 1):  # something is left for the rest
            out_nodes[count], out_gpus[count] = node, nodes[node].gpus
            give(state, job, node, out_gpus[count])
            nodes[node].spanning += 1
            left -= out_gpus[count]
            count += 1
    for node in range(len(nodes)):
        here = rack in (ANYWHERE, np.int64(nodes[node].rack))
        if here and holds(nodes[node], record, left):
            give(state, job, node, left)
            nodes[node].spanning += count > 0
            won = gain(state, tables, job)
            nodes[node].spanning -= count > 0
            ungive(state, job)
            if won > most or (won == most and nodes[node].free < nodes[best].free):
                best, most = node, won
    for i in range(count):
        ungive(state, job)
        nodes[out_nodes[i]].spanning -= 1
    if best == NONE:
        return 0
    out_nodes[count], out_gpus[count] = best, left
    return count + 1


@pasted
def gain(state: ClusterState, tables: RateTables, job: int) -> float:
    """GPUs times rate that the cluster wins when `job` runs on the shares it was given.

    Its own rate counts, less what its neighbours lose on the nodes they share with it.
    """
    record = state.jobs[job]
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
    return won


@compiled_inner
def choose_emptiest(nodes: Records, job: Record, out_nodes: IntArray, out_gpus: IntArray) -> int:
    """See `HeliosConsolidate`, for a job that no node could hold."""
    count, left = 0, int(job.gpus)
    for node in np.argsort(-nodes["free"], kind="mergesort"):
        here = min(left, int(nodes[node].gpus))
        if left > 0 and (fills(nodes[node], job, left) or holds(nodes[node], job, left)):
            out_nodes[count], out_gpus[count] = node, here
            left -= here
            count += 1
        elif left == 0 or holds(nodes[node], job, 1):
            break
    return count if left == 0 else 0


@compiled_inner
def uniform(random: NDArray[np.uint64]) -> float:
    """A number from [0, 1).

    Reference: Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA
    2014, figure 13 (SplitMix64).
    """
    random[0] += np.uint64(0x9E3779B97F4A7C15)
    word = random[0]
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    word ^= word >> np.uint64(31)
    return float(word >> np.uint64(11)) * 2.0**-53


@compiled_inner
def choose_any(nodes: Records, job: Record, rule: int, room: Room) -> int:
    """See `Count`, `Random` and `Spread`: a job fits as soon as enough GPUs are free anywhere."""
    left, given = int(job.gpus), room.gpus
    most = np.maximum(rooms(nodes, job), 0)
    if most.sum() < left:
        return 0
    for node in range(len(nodes)):
        if rule == RANDOM and most[node] == left:  # any of the free ones will do
            most[node] = nodes[node].free
    given[:] = 0
    available = most.sum()
    for node in range(len(nodes) if rule != SPREAD else 0):
        for _ in range(most[node]):
            drawn = uniform(room.random) * available if rule == RANDOM else 0.0
            if drawn < left:  # Knuth's selection sampling
                given[node] += 1
                left -= 1
            available -= 1
        if left == 0:
            break
    while left > 0:
        best, freest = NONE, 0
        for node in range(len(nodes)):
            free = nodes[node].free - given[node]
            if given[node] < most[node] and free > freest:
                best, freest = node, free
        given[best] += 1
        left -= 1
    count = 0
    for node in range(len(nodes)):
        if given[node] > 0:
            room.nodes[count], given[count] = node, given[node]
            count += 1
    return count
