"""Random crowds of running jobs, and a slow reference for their rates."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from envs.cluster.interference.rates import (
    ALONE,
    BOTTLENECK,
    CONTENTION,
    CPU,
    GPU_TIME,
    NIC,
    ON_GPU,
    PAIRS_LEAST,
    PAIRS_PRODUCT,
    PCIE,
    RING,
    SHARED,
    SPANNING,
    UPLINK,
    RateModel,
    RateTables,
)
from envs.cluster.interference.tabulated import number_of
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import NONE
from envs.cluster.workload.trace import Trace

NOT_GPU_TIME = np.arange(6) != GPU_TIME
Held = dict[int, dict[int, tuple[int, int]]]  # job: {node: (GPUs, partial)}


def two_type_cluster() -> Cluster:
    return Cluster.uniform(6, 4, nodes_per_rack=2, gpu_types=("V100", "P100"))


def one_type_cluster() -> Cluster:
    return Cluster.uniform(6, 4, nodes_per_rack=2)


def random_trace(rng: np.random.Generator, jobs: int = 30, fractional: bool = True) -> Trace:
    gangs = rng.choice([1, 1, 1, 2, 3, 4, 6, 9], jobs)
    trace = Trace.of("crowd", np.zeros(jobs, int), rng.integers(1, 9, jobs), gangs)
    small = (gangs <= 3) & (rng.random(jobs) < 0.7) & fractional
    milli = np.where(small, rng.choice([200, 300, 500], jobs), 1000).astype(np.int32)
    object.__setattr__(trace, "gpu_milli", milli)
    return trace


def try_to_start(simulator: ClusterSimulator, job: int, rng: np.random.Generator) -> bool:
    """On random nodes, in random parts; a fractional job joins sets of GPUs where it can."""
    state = simulator.state
    need = int(state.jobs[job]["gpus"])
    shares: list[tuple[int, int]] = []
    sets: list[int | None] = []
    if state.jobs[job]["milli"] < 1000:
        for partial in rng.permutation(len(state.partials)).tolist():
            there = state.partials[partial]
            node, gpus = int(there["node"]), int(there["gpus"])
            fits = state.jobs[job]["milli"] <= there["left"] < 1000 and gpus <= need
            if fits and need > 0 and node not in dict(shares):
                shares.append((node, gpus))
                sets.append(partial)
                need -= gpus
    for node in rng.permutation(len(state.nodes)).tolist():
        free = int(state.nodes[node]["free"])
        if need > 0 and free > 0 and node not in dict(shares):
            part = int(rng.integers(1, min(free, need) + 1))
            shares.append((node, part))
            sets.append(None)
            need -= part
    if need > 0:
        return False
    simulator.start(job, shares, sets)
    return True


def crowd(
    model: RateModel, cluster: Cluster, trace: Trace, rng: np.random.Generator
) -> ClusterSimulator:
    """All jobs have arrived; as many as fit run, and a few were stopped again."""
    simulator = ClusterSimulator(cluster, trace, rates=model)
    simulator.advance()
    for job in simulator.pending():
        try_to_start(simulator, int(job), rng)
    for job in simulator.running():
        if rng.random() < 0.25:
            simulator.preempt(int(job))
    return simulator


def holdings(simulator: ClusterSimulator) -> Held:
    state, held = simulator.state, {}
    for job in simulator.running():
        held[int(job)] = {}
        index = int(state.jobs[job]["share"])
        while index != NONE:
            share = state.shares[index]
            held[int(job)][int(share["node"])] = int(share["gpus"]), int(share["partial"])
            index = int(share["next"])
    return held


def rates(simulator: ClusterSimulator) -> dict[int, float]:
    return {int(job): float(simulator.state.jobs[job]["rate"]) for job in simulator.running()}


def alone_rate(tables: RateTables, cluster: Cluster, held: Held, job: int) -> float:
    return min(_alone_by_type(tables, cluster, held, job).values())


def slow_rate(tables: RateTables, cluster: Cluster, held: Held, job: int) -> float:
    by_type = _alone_by_type(tables, cluster, held, job)
    alone = min(by_type.values())
    slowest = next(kind for kind, rate in by_type.items() if rate == alone)
    if tables.kind == ALONE:
        return alone
    if tables.kind == SHARED:
        without_gpu_time = tables._replace(kind=BOTTLENECK, demand=tables.demand * NOT_GPU_TIME)
        pairs = tables._replace(kind=PAIRS_PRODUCT, scope=ON_GPU)
        host, gpus = (
            min(_left(one, cluster, held, job, node, slowest) for node in held[job])
            for one in (without_gpu_time, pairs)
        )
        far = min(_uplink(tables, cluster, held, job, rack) for rack in racks(cluster, held, job))
        return alone * min(host, far) * gpus
    left = [_left(tables, cluster, held, job, node, slowest) for node in held[job]]
    return alone * min(left)


def _spread(cluster: Cluster, held: Held, job: int) -> int:
    if len(held[job]) == 1:
        return 0
    return 1 if len({int(cluster.rack[node]) for node in held[job]}) == 1 else 2


def _alone_by_type(tables: RateTables, cluster: Cluster, held: Held, job: int) -> dict[int, float]:
    case, spread = tables.profile[job], _spread(cluster, held, job)
    column = min(len(held[job]), tables.locality.shape[3]) - 1
    return {
        int(cluster.gpu_type[n]): float(
            tables.speed[case, cluster.gpu_type[n]]
            * tables.locality[case, cluster.gpu_type[n], spread, column]
        )
        for n in held[job]
    }


def _left(
    tables: RateTables, cluster: Cluster, held: Held, job: int, node: int, slowest: int
) -> float:
    on_node = {other: h[node] for other, h in held.items() if node in h}
    spanning = {other for other in on_node if len(held[other]) > 1}
    if tables.kind == BOTTLENECK:
        return _bottleneck(tables, held, on_node, job)
    if tables.kind == CONTENTION:
        column = min(len(held[job]), tables.locality.shape[3]) - 1
        c = tables.communication[tables.profile[job], slowest, _spread(cluster, held, job), column]
        if job not in spanning:
            return 1.0
        k = 1
        for other in spanning - {job}:
            at = min(len(held[other]), tables.locality.shape[3]) - 1
            k += tables.communication[tables.profile[other], cluster.gpu_type[node], 2, at] > 0
        return 1 / (1 - c + c * (k * tables.beta + (k - 1) * tables.eta) / tables.beta)
    if tables.scope == ON_GPU:
        partial = on_node[job][1]
        beside = [o for o, (_, p) in on_node.items() if o != job and p == partial != NONE]
    elif tables.scope == SPANNING:
        beside = [o for o in spanning if o != job] if job in spanning else []
    else:
        beside = [o for o in on_node if o != job]
    rows = {
        o: int(tables.row[tables.profile[o], min(len(held[o]), tables.row.shape[1]) - 1])
        for o in [*beside, job]
    }
    return _beside(tables, rows, job, beside) if beside else 1.0


def _beside(tables: RateTables, rows: dict[int, int], job: int, beside: list[int]) -> float:
    ratios = [tables.pair[rows[job], rows[o]] for o in beside]
    if tables.kind == PAIRS_LEAST:
        return float(max(tables.floor, min(ratios)))
    if tables.kind == PAIRS_PRODUCT:
        return float(max(tables.floor, np.prod(ratios)))
    sets = [
        tables.sets[rows[job], number_of([rows[o] for o in chosen], tables.largest)]
        for size in range(1, tables.largest + 1)
        for chosen in combinations(beside, size)
    ]
    return float(min(sets))


def _bottleneck(
    tables: RateTables, held: Held, on_node: dict[int, tuple[int, int]], job: int
) -> float:
    def demand(other: int) -> np.ndarray:
        same = on_node[other][1] == on_node[job][1] != NONE
        gpu = tables.demand[tables.profile[other], GPU_TIME] * same
        return np.array([gpu, *of_host(tables, held, other, on_node[other][0])])

    own, total = demand(job), sum(demand(other) for other in on_node)
    used = own > 0
    return float((np.maximum(1, own) / np.maximum(1, total))[used].min(initial=1.0))


def of_host(tables: RateTables, held: Held, job: int, gpus: int) -> tuple[float, float, float]:
    """PCIe, network port and processors that a job with so many GPUs on a node asks for there."""
    wanted = tables.demand[tables.profile[job]]
    spans = len(held[job]) > 1
    pcie = wanted[PCIE] * gpus + wanted[RING] * (spans or gpus > 1)
    return pcie, wanted[NIC] * spans, wanted[CPU] * gpus if len(wanted) > CPU else 0.0


def racks(cluster: Cluster, held: Held, job: int) -> set[int]:
    return {int(cluster.rack[node]) for node in held[job]}


def of_uplink(tables: RateTables, cluster: Cluster, held: Held, job: int, rack: int) -> float:
    """What a job asks of the uplink of a rack."""
    its = racks(cluster, held, job)
    return (
        float(tables.demand[tables.profile[job], UPLINK]) if rack in its and its != {rack} else 0.0
    )


def _uplink(tables: RateTables, cluster: Cluster, held: Held, job: int, rack: int) -> float:
    own, *others = (of_uplink(tables, cluster, held, o, rack) for o in (job, *(set(held) - {job})))
    return max(1.0, own) / max(1.0, own + sum(others)) if own > 0.0 else 1.0
