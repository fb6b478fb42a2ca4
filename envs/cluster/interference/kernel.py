"""The rate of a job where it runs now, from the state of the cluster and the tables of a model.

Inner functions take the few arrays they need: handing on all tables costs more than the work does.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from itertools import combinations_with_replacement
from math import comb

import numpy as np
from numpy.typing import NDArray

from envs.arrays import FloatArray
from envs.cluster.interference.rates import (
    ALONE,
    BOTTLENECK,
    CONTENTION,
    CPU,
    GPU_TIME,
    NIC,
    ON_GPU,
    ONE_NODE,
    ONE_RACK,
    PAIRS_LEAST,
    PCIE,
    RING,
    SETS,
    SEVERAL_RACKS,
    SHARED,
    SPANNING,
    UPLINK,
    RateTables,
)
from envs.cluster.simulation.cluster_state import NONE
from envs.compilation import compiled, compiled_inner, joined_inner

Records = NDArray[np.void]
Rows = NDArray[np.int32]


class Sums(IntEnum):
    """What jobs ask for on a node, all together: as `add_up` left it, or added up afresh.

    No bool: of what is handed a literal one, a kernel is compiled for either.
    """

    KEPT = 0
    AFRESH = 1


@compiled
def neighbour_rate(
    jobs: Records, nodes: Records, shares: Records, tables: RateTables, job: int
) -> float:
    """Work per second of a running job; only the jobs on its own nodes have a say in it.

    Those on several racks have one in its racks' uplinks. A job without shares has rate 1.
    """
    rate, _ = alone_rate(jobs, nodes, shares, tables.speed, tables.locality, job)
    return float(rate * left_by_neighbours(jobs, nodes, shares, tables, job, Sums.AFRESH))


@compiled_inner
def left_by_neighbours(
    jobs: Records, nodes: Records, shares: Records, tables: RateTables, job: int, sums: Sums
) -> float:
    """What its neighbours leave a job of the rate that it has alone."""
    left = 1.0
    scope = ON_GPU if tables.kind == SHARED else tables.scope
    product = tables.kind != PAIRS_LEAST
    if tables.kind == BOTTLENECK:
        left = shared(jobs, nodes, shares, tables.demand, tables.kind, job, sums)
    elif tables.kind == SHARED:
        left = _pairs(jobs, nodes, shares, tables.row, tables.pair, product, scope, job)
        left = max(left, tables.floor)
        hosts = shared(jobs, nodes, shares, tables.demand, tables.kind, job, sums)
        if jobs[job].nodes > 1:
            hosts = min(hosts, _uplinks(jobs, nodes, shares, tables.demand, job))
        left *= hosts
    elif tables.kind == CONTENTION:
        c = 0.0  # the share of its time in all-reduces, on its slowest GPU type
        if jobs[job].nodes > 1:
            _, slowest = alone_rate(jobs, nodes, shares, tables.speed, tables.locality, job)
            column = min(jobs[job].nodes, tables.communication.shape[3]) - 1
            spread = spread_of(nodes, shares, jobs[job].share)
            c = tables.communication[jobs[job].profile, slowest, spread, column]
        k = _contenders(jobs, nodes, shares, tables.communication, job) if c > 0.0 else 1
        slow = (k * tables.beta + (k - 1) * tables.eta) / tables.beta
        left = 1.0 / (1.0 - c + c * slow) if k > 1 else 1.0
    elif tables.kind != ALONE and (tables.scope != SPANNING or jobs[job].nodes > 1):
        if tables.kind == SETS:
            left = _sets(
                jobs, nodes, shares, tables.row, tables.sets, tables.largest, tables.scope, job
            )
        else:
            left = _pairs(jobs, nodes, shares, tables.row, tables.pair, product, scope, job)
            left = max(left, tables.floor)
    return left


@compiled
def disturbs(jobs: Records, shares: Records, tables: RateTables, job: int) -> bool:
    """Whether a job, by running where it has shares, can change the rate of any other at all."""
    if tables.kind == ALONE:
        return False
    if tables.kind in (BOTTLENECK, SHARED):
        return True
    if tables.kind == CONTENTION or tables.scope == SPANNING:
        return bool(jobs[job].nodes > 1)
    if tables.scope == ON_GPU:
        return bool(jobs[job].share != NONE and shares[jobs[job].share].partial != NONE)
    return True


@compiled_inner
def alone_rate(
    jobs: Records,
    nodes: Records,
    shares: Records,
    speed: FloatArray,
    locality: FloatArray,
    job: int,
) -> tuple[float, int]:
    """Work per second of a job where it has its shares without neighbours; its slowest type."""
    share = jobs[job].share
    if share == NONE:
        return 1.0, 0
    case = jobs[job].profile
    column = min(jobs[job].nodes, locality.shape[3]) - 1
    spread = spread_of(nodes, shares, share)
    rate, slowest = np.inf, 0
    while share != NONE:
        kind = nodes[shares[share].node].type
        alone = speed[case, kind] * locality[case, kind, spread, column]
        if alone < rate:
            rate, slowest = alone, kind
        share = shares[share].next
    return rate, slowest


@compiled_inner
def spread_of(nodes: Records, shares: Records, share: int) -> int:
    """How far the chain of a job's shares reaches: ONE_NODE, ONE_RACK or SEVERAL_RACKS."""
    if share == NONE:
        return ONE_NODE
    rack = nodes[shares[share].node].rack
    spread = ONE_NODE
    share = shares[share].next
    while share != NONE:
        spread = max(spread, ONE_RACK)
        if nodes[shares[share].node].rack != rack:
            return SEVERAL_RACKS
        share = shares[share].next
    return spread


@compiled_inner
def shared(
    jobs: Records,
    nodes: Records,
    shares: Records,
    demand: FloatArray,
    kind: int,
    job: int,
    sums: Sums,
) -> float:
    """What is left to a job where neighbours share the resources of a node.

    By BOTTLENECK they share the time of partial GPUs as well.
    """
    left, afresh, gpu_time = 1.0, sums == Sums.AFRESH, kind == BOTTLENECK
    own = jobs[job].share
    while own != NONE:
        place = nodes[shares[own].node]
        gpu, pcie, nic = _demand(jobs, shares, demand, own)
        all_pcie, all_nic, all_cpu = place.pcie, place.nic, place.processor
        if afresh and demand.shape[1] > CPU:
            all_pcie, all_nic, all_cpu = _host_demand(jobs, shares, demand, place.share)
        elif afresh:
            all_pcie, all_nic = _node_demand(jobs, shares, demand, place.share)
        if gpu_time and gpu > 0.0:
            all_gpu = 0.0
            other = place.share
            while other != NONE:
                if shares[other].partial == shares[own].partial:
                    all_gpu += _demand(jobs, shares, demand, other)[0]
                other = shares[other].after
            left = min(left, max(1.0, gpu) / max(1.0, all_gpu))
        if pcie > 0.0 and all_pcie > 1.0:
            left = min(left, max(1.0, pcie) / all_pcie)
        if nic > 0.0 and all_nic > 1.0:
            left = min(left, max(1.0, nic) / all_nic)
        if demand.shape[1] > CPU and all_cpu > 1.0:
            cpu = demand[jobs[job].profile, CPU] * shares[own].gpus
            if cpu > 0.0:
                left = min(left, max(1.0, cpu) / all_cpu)
        own = shares[own].next
    return left


@joined_inner
def _node_demand(
    jobs: Records, shares: Records, demand: FloatArray, share: int
) -> tuple[float, float]:
    """Of a node's chain of shares: of its PCIe, of its network port."""
    pcie = nic = 0.0
    while share != NONE:
        _, its_pcie, its_nic = _demand(jobs, shares, demand, share)
        pcie += its_pcie
        nic += its_nic
        share = shares[share].after
    return pcie, nic


@joined_inner
def _host_demand(
    jobs: Records, shares: Records, demand: FloatArray, share: int
) -> tuple[float, float, float]:
    """The same, and of its processors."""
    pcie = nic = cpu = 0.0
    while share != NONE:
        _, its_pcie, its_nic = _demand(jobs, shares, demand, share)
        pcie += its_pcie
        nic += its_nic
        cpu += demand[jobs[shares[share].job].profile, CPU] * shares[share].gpus
        share = shares[share].after
    return pcie, nic, cpu


@compiled_inner
def add_up(jobs: Records, nodes: Records, shares: Records, demand: FloatArray, share: int) -> None:
    """Add up what is asked for on the nodes of a chain of shares, always in the same order.

    Where nothing was scarce and nothing is, no rate has changed.
    """
    while share != NONE:
        place = nodes[shares[share].node]
        if demand.shape[1] > CPU:
            pcie, nic, cpu = _host_demand(jobs, shares, demand, place.share)
            most = max(pcie, nic, cpu, place.pcie, place.nic, place.processor)
            place.processor = cpu
        else:
            pcie, nic = _node_demand(jobs, shares, demand, place.share)
            most = max(pcie, nic, place.pcie, place.nic)
        place.scarce = most > 1.0 or place.partial != NONE
        place.pcie = pcie
        place.nic = nic
        share = shares[share].next


@joined_inner
def _demand(
    jobs: Records, shares: Records, demand: FloatArray, share: int
) -> tuple[float, float, float]:
    """Of a share: of each of its partial GPUs, of the node's PCIe, of its network port."""
    job = jobs[shares[share].job]
    gpu = demand[job.profile, GPU_TIME] if shares[share].partial != NONE else 0.0
    pcie = demand[job.profile, PCIE] * shares[share].gpus
    if shares[share].gpus > 1 or job.nodes > 1:
        pcie += demand[job.profile, RING]
    nic = demand[job.profile, NIC] if job.nodes > 1 else 0.0
    return gpu, pcie, nic


@compiled_inner
def _uplinks(jobs: Records, nodes: Records, shares: Records, demand: FloatArray, job: int) -> float:
    """What is left to a job on several racks of their uplinks."""
    left, own = 1.0, jobs[job].share
    if spread_of(nodes, shares, own) != SEVERAL_RACKS:
        return left
    asks = demand[jobs[job].profile, UPLINK]
    while own != NONE and asks > 0.0:
        rack, all_asked = nodes[shares[own].node].rack, 0.0
        for node in range(len(nodes)):
            other = NONE
            if nodes[node].rack == rack and nodes[node].spanning > 0:
                other = nodes[node].share
            while other != NONE:
                if _leaves_rack(jobs, nodes, shares, other):
                    all_asked += demand[jobs[shares[other].job].profile, UPLINK]
                other = shares[other].after
        left = min(left, max(1.0, asks) / max(1.0, all_asked))
        own = shares[own].next
    return left


@compiled_inner
def _leaves_rack(jobs: Records, nodes: Records, shares: Records, share: int) -> bool:
    """Whether a share is the first, of those in its rack, of a job on several racks."""
    job, rack = jobs[shares[share].job], nodes[shares[share].node].rack
    if job.nodes < 2 or spread_of(nodes, shares, job.share) != SEVERAL_RACKS:
        return False
    earlier = shares[share].next
    while earlier != NONE and nodes[shares[earlier].node].rack != rack:
        earlier = shares[earlier].next
    return bool(earlier == NONE)


@compiled_inner
def _contenders(
    jobs: Records, nodes: Records, shares: Records, communication: FloatArray, job: int
) -> int:
    """The most jobs that communicate over one of the job's network ports, itself included."""
    most = 1
    own = jobs[job].share
    while own != NONE:
        node = nodes[shares[own].node]
        other = node.share if node.spanning > 1 else NONE
        k = 1
        while other != NONE:
            rival = jobs[shares[other].job]
            if other != own and rival.nodes > 1:
                column = min(rival.nodes, communication.shape[3]) - 1
                k += communication[rival.profile, node.type, SEVERAL_RACKS, column] > 0.0
            other = shares[other].after
        most = max(most, k)
        own = shares[own].next
    return most


@compiled_inner
def _row(jobs: Records, rows: NDArray[np.int32], job: int) -> int:
    # A job that is just stopping has given its number of nodes back, but not yet all its shares.
    column = max(min(jobs[job].nodes, rows.shape[1]) - 1, 0)
    row: int = rows[jobs[job].profile, column]
    return row


@compiled_inner
def _next(jobs: Records, shares: Records, scope: int, own: int, other: int) -> int:
    """The first share of a neighbour in the node's chain, from `other` on."""
    while other != NONE:
        if other != own:
            if scope == ON_GPU:
                found = shares[own].partial != NONE and shares[other].partial == shares[own].partial
            elif scope == SPANNING:
                found = jobs[shares[other].job].nodes > 1
            else:
                found = True
            if found:
                return other
        other = shares[other].after
    return other


@compiled_inner
def _pairs(
    jobs: Records,
    nodes: Records,
    shares: Records,
    rows: Rows,
    pair: FloatArray,
    product: bool,
    scope: int,
    job: int,
) -> float:
    row = _row(jobs, rows, job)
    least = 1.0
    own = jobs[job].share
    while own != NONE:
        left = 1.0
        other = _next(jobs, shares, scope, own, nodes[shares[own].node].share)
        while other != NONE:
            ratio = pair[row, _row(jobs, rows, np.int64(shares[other].job))]
            left = left * ratio if product else min(left, ratio)
            other = _next(jobs, shares, scope, own, shares[other].after)
        least = min(least, left)
        own = shares[own].next
    return least


@compiled_inner
def _sets(
    jobs: Records,
    nodes: Records,
    shares: Records,
    rows: Rows,
    sets: FloatArray,
    size: int,
    scope: int,
    job: int,
) -> float:
    row, nobody = _row(jobs, rows, job), np.int32(NOBODY)
    left = 1.0
    own = jobs[job].share
    while own != NONE:
        first = _next(jobs, shares, scope, own, nodes[shares[own].node].share)
        while first != NONE:
            a = _row(jobs, rows, np.int64(shares[first].job))
            left = min(left, sets[row, rank(nobody, nobody, a, size)])
            second = _next(jobs, shares, scope, own, shares[first].after) if size > 1 else NONE
            while second != NONE:
                b = _row(jobs, rows, np.int64(shares[second].job))
                left = min(left, sets[row, rank(nobody, a, b, size)])
                third = _next(jobs, shares, scope, own, shares[second].after) if size > 2 else NONE
                while third != NONE:
                    c = _row(jobs, rows, np.int64(shares[third].job))
                    left = min(left, sets[row, rank(a, b, c, size)])
                    third = _next(jobs, shares, scope, own, shares[third].after)
                second = _next(jobs, shares, scope, own, shares[second].after)
            first = _next(jobs, shares, scope, own, shares[first].after)
        own = shares[own].next
    return left


LARGEST = 3
NOBODY = -1


def count(rows: int, largest: int) -> int:
    """Multisets of at most `largest` of `rows` rows."""
    return comb(rows + largest, largest)


@compiled
def rank(a: int, b: int, c: int, largest: int) -> int:
    """The number of the multiset {a, b, c}, in any order; NOBODY fills the places of absent ones.

    The combinatorial number system: with NOBODY as symbol 0 and x <= y <= z the symbols, it is
    C(x, 1) + C(y + 1, 2) + C(z + 2, 3) (Knuth, The Art of Computer Programming 4A, section
    7.2.1.3). Below `largest` = 3, the first places must be NOBODY and are not counted.
    """
    x, y, z = a + 1, b + 1, c + 1
    if x > y:
        x, y = y, x
    if y > z:
        y, z = z, y
    if x > y:
        x, y = y, x
    if largest == 1:
        return z
    if largest == 2:
        return y + z * (z + 1) // 2
    return x + y * (y + 1) // 2 + z * (z + 1) * (z + 2) // 6


def multisets(rows: int, largest: int) -> Iterator[tuple[int, ...]]:
    """All multisets of at most `largest` rows, each ascending."""
    for size in range(largest + 1):
        yield from combinations_with_replacement(range(rows), size)
