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
    fills,
    first_that_holds,
    fits_one_node,
    fullest_that_holds,
    holds,
    largest_share,
    take_first_idle,
    take_largest_idle,
    with_rest,
)
from agents.cluster.rules.least_interference import choose_least_interference
from envs.arrays import IntArray
from envs.cluster.interference.rates import RateTables
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import NODE, NONE, ClusterState
from envs.cluster.workload.trace import WHOLE_GPU
from envs.compilation import compiled, compiled_inner, pasted
from envs.errors import InputError

COUNT, YARN, HELIOS_CONSOLIDATE, FIRST_FIT, BEST_FIT, RANDOM, SPREAD, LEAST_INTERFERENCE = range(8)

COUNTED = frozenset({COUNT, RANDOM, SPREAD})  # a job fits as soon as enough GPUs are free
# On a cluster of one node these are the same.
CONSOLIDATED = frozenset({YARN, HELIOS_CONSOLIDATE, FIRST_FIT, BEST_FIT})


class Room(NamedTuple):
    """Room of a rule on N nodes."""

    nodes: IntArray  # (N,) of the shares chosen
    gpus: IntArray  # (N,) of the shares chosen
    without: NDArray[np.void]  # NODE (N,) as they would be without some jobs
    random: NDArray[np.uint64]  # (1,) state of the rules that draw


def room_of(nodes: int, seed: int) -> Room:
    return Room(
        nodes=np.zeros(nodes, np.int64),
        gpus=np.zeros(nodes, np.int64),
        without=np.zeros(nodes, NODE),
        random=np.array([seed], np.uint64),
    )


@pasted
def choose(rule: int, state: ClusterState, tables: RateTables, job: int, room: Room) -> int:
    """The shares of a pending whole-GPU job, into `room`; how many, 0 where it does not fit."""
    count: int
    if rule == LEAST_INTERFERENCE:
        count = choose_least_interference(state, tables, job, room.nodes, room.gpus)
    else:
        count = choose_nodes(rule, state.nodes, state.jobs, job, room.random, room.nodes, room.gpus)
    return count


@compiled
def choose_nodes(
    rule: int,
    nodes: Records,
    jobs: Records,
    job: int,
    random: NDArray[np.uint64],
    out_nodes: IntArray,
    out_gpus: IntArray,
) -> int:
    """The same for the rules that look at nodes alone."""
    record = jobs[job]
    count: int = 0
    if rule == COUNT:
        count = choose_count(nodes, record, out_nodes, out_gpus)
    elif rule == YARN:
        count = choose_few(nodes, record, False, False, out_nodes, out_gpus)
    elif rule == HELIOS_CONSOLIDATE:
        count = choose_helios_consolidate(nodes, record, out_nodes, out_gpus)
    elif rule == FIRST_FIT:
        count = choose_few(nodes, record, True, False, out_nodes, out_gpus)
    elif rule == BEST_FIT:
        count = choose_few(nodes, record, True, True, out_nodes, out_gpus)
    elif rule == RANDOM:
        count = choose_random(nodes, record, random, out_nodes, out_gpus)
    elif rule == SPREAD:
        count = choose_spread(nodes, record, out_nodes, out_gpus)
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
        record = np.asarray(simulator.state.jobs)[job]
        milli = int(record["milli"])
        if milli != WHOLE_GPU and record["gpus"] < 2:
            problem = f"{milli} thousandths of a GPU need a placement rule for fractions"
            raise InputError(problem, file=simulator.trace.name, record=job, field="gpu_milli")
        seed = int(rng.integers(2**64, dtype=np.uint64)) if self.draws else 0
        room = room_of(len(simulator.state.nodes), seed)
        count = choose(self.code, simulator.state, simulator.tables, job, room)
        nodes, gpus = room.nodes[:count].tolist(), room.gpus[:count].tolist()
        return list(zip(nodes, gpus, strict=True)) or None


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

    By the simulator's own rates: see `choose_least_interference`.
    """

    name = "least_interference"
    code = LEAST_INTERFERENCE


@compiled_inner
def choose_count(nodes: Records, job: Record, out_nodes: IntArray, out_gpus: IntArray) -> int:
    """Take what is free, node by node; the number of shares, 0 where the job does not fit."""
    left = int(job.gpus)
    count = 0
    for node in range(len(nodes)):
        gpus = largest_share(nodes[node], job, left)
        if gpus > 0 or (left == 0 and holds(nodes[node], job, 0)):
            out_nodes[count], out_gpus[count] = node, gpus
            left -= gpus
            count += 1
        if left == 0 and count > 0:
            return count
    return 0


@compiled_inner
def choose_few(
    nodes: Records,
    job: Record,
    largest_idle: bool,
    fullest: bool,
    out_nodes: IntArray,
    out_gpus: IntArray,
) -> int:
    """One node, or idle ones and one for the rest: see `Yarn`, `FirstFit` and `BestFit`."""
    count, left = 0, int(job.gpus)
    if not fits_one_node(nodes, job):
        if largest_idle:
            count, left = take_largest_idle(nodes, job, out_nodes, out_gpus)
        else:
            count, left = take_first_idle(nodes, job, out_nodes, out_gpus)
    node = fullest_that_holds(nodes, job, left) if fullest else first_that_holds(nodes, job, left)
    shares: int = with_rest(nodes, count, left, node, out_nodes, out_gpus)
    return shares


@compiled_inner
def choose_helios_consolidate(
    nodes: Records, job: Record, out_nodes: IntArray, out_gpus: IntArray
) -> int:
    """See `HeliosConsolidate`; the number of shares, 0 where the job does not fit."""
    left = int(job.gpus)
    if fits_one_node(nodes, job):
        node = fullest_that_holds(nodes, job, left)
        if node == NONE:
            return 0
        out_nodes[0], out_gpus[0] = node, left
        return 1
    count = 0
    for node in np.argsort(-nodes["free"], kind="mergesort"):
        if fills(nodes[node], job, left):
            out_nodes[count], out_gpus[count] = node, nodes[node].gpus
            left -= out_gpus[count]
            count += 1
        elif holds(nodes[node], job, left):
            out_nodes[count], out_gpus[count] = node, left
            return count + 1
        elif holds(nodes[node], job, 1):
            return 0
        if left == 0:
            return count
    return 0


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
def candidates(node: Record, job: Record) -> int:
    """GPUs of the node that may be drawn: the free ones, or the largest share it has room for."""
    most = min(int(job.gpus), int(node.free))
    held: int = largest_share(node, job, most)
    return int(node.free) if held == most else held


@compiled_inner
def choose_random(
    nodes: Records,
    job: Record,
    random: NDArray[np.uint64],
    out_nodes: IntArray,
    out_gpus: IntArray,
) -> int:
    """See `Random`; the number of shares, 0 where the job does not fit."""
    left = int(job.gpus)
    if left == 0:
        alone: int = choose_count(nodes, job, out_nodes, out_gpus)
        return alone
    available = 0
    for node in range(len(nodes)):
        available += candidates(nodes[node], job)
    if available < left:
        return 0
    count = 0
    for node in range(len(nodes)):
        gpus = 0
        for _ in range(candidates(nodes[node], job)):
            if uniform(random) * available < left:  # Knuth's selection sampling
                gpus += 1
                left -= 1
            available -= 1
        if gpus > 0:
            out_nodes[count], out_gpus[count] = node, gpus
            count += 1
        if left == 0:
            break
    return count


@compiled_inner
def choose_spread(nodes: Records, job: Record, out_nodes: IntArray, out_gpus: IntArray) -> int:
    """See `Spread`; the number of shares, 0 where the job does not fit."""
    left = int(job.gpus)
    if left == 0:
        alone: int = choose_count(nodes, job, out_nodes, out_gpus)
        return alone
    most = np.empty(len(nodes), np.int64)
    for node in range(len(nodes)):
        most[node] = largest_share(nodes[node], job, left)
    if most.sum() < left:
        return 0
    given = np.zeros(len(nodes), np.int64)
    for _ in range(left):
        best, free = NONE, -1
        for node in range(len(nodes)):
            if given[node] < most[node] and nodes[node].free - given[node] > free:
                best, free = node, int(nodes[node].free - given[node])
        given[best] += 1
    count = 0
    for node in range(len(given)):
        if given[node] > 0:
            out_nodes[count], out_gpus[count] = node, given[node]
            count += 1
    return count
