"""Random crowds of running jobs, random tables, and a slow reference for rates."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from made_up import arrived

from envs.cluster.interference.kernel import count, disturbs, neighbour_rate
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
    without_neighbours,
)
from envs.cluster.interference.tabulated import number_of, tabulate
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import NONE
from envs.cluster.workload.trace import Trace

NOT_GPU_TIME = np.arange(6) != GPU_TIME
Held = dict[int, dict[int, tuple[int, int]]]  # job: {node: (GPUs, partial)}


CASES, ROWS, COLUMNS = 5, 4, 3


class RandomRates:
    """A model of any kind that promises what models promise, and nothing else."""

    name = "random"

    def __init__(self, seed: int, kind: int, scope: int, largest: int = 3) -> None:
        self.seed, self.kind, self.scope, self.largest = seed, kind, scope, largest

    def tables(self, trace: Trace, cluster: Cluster) -> RateTables:
        rng = np.random.default_rng(self.seed)
        types = len(cluster.gpu_types)
        shape = (CASES, types, 3, COLUMNS)
        profile = rng.integers(0, CASES, len(trace)).astype(np.int32)
        raw = rng.uniform(0.1, 1.0, (ROWS, count(ROWS, self.largest)))

        def predict(own: np.ndarray, _: np.ndarray) -> np.ndarray:
            return raw[:, 1:].reshape(-1)[: len(own)]

        speed = rng.uniform(0.3, 2.0, (CASES, types))
        return without_neighbours(profile, speed, rng.uniform(0.3, 1.0, shape))._replace(
            kind=self.kind,
            scope=self.scope,
            communication=rng.choice([0.0, 0.2, 0.7], shape[:1])[:, None, None, None]
            * np.ones(shape),
            row=rng.integers(0, ROWS, (CASES, COLUMNS)).astype(np.int32),
            pair=rng.uniform(0.1, 1.0, (ROWS, ROWS)),
            feasible=np.ones((ROWS, ROWS), np.bool_),
            floor=0.25,
            demand=rng.choice([0.0, 0.1, 0.5, 1.5], (CASES, 6 if self.kind == SHARED else 4)),
            beta=2.0,
            eta=0.5,
            sets=tabulate(predict, ROWS, self.largest),
            largest=self.largest,
        )


ONE_TYPE = Cluster.uniform(6, 4, nodes_per_rack=2)
TWO_TYPES = Cluster.uniform(6, 4, nodes_per_rack=2, gpu_types=("V100", "P100"))


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
    taken: dict[int, tuple[int, int | None]] = {}  # GPUs and set by node
    if state.jobs[job]["milli"] < 1000:
        for partial in rng.permutation(len(state.partials)).tolist():
            there = state.partials[partial]
            node, gpus = int(there["node"]), int(there["gpus"])
            fits = state.jobs[job]["milli"] <= there["left"] < 1000 and gpus <= need
            if fits and need > 0 and node not in taken:
                taken[node] = gpus, partial
                need -= gpus
    for node in rng.permutation(len(state.nodes)).tolist():
        free = int(state.nodes[node]["free"])
        if need > 0 and free > 0 and node not in taken:
            taken[node] = int(rng.integers(1, min(free, need) + 1)), None
            need -= taken[node][0]
    if need == 0:
        shares = [(node, gpus) for node, (gpus, _) in taken.items()]
        simulator.start(job, shares, [one for _, one in taken.values()])
    return need == 0


def crowd(
    model: RateModel, cluster: Cluster, trace: Trace, rng: np.random.Generator
) -> ClusterSimulator:
    """All jobs have arrived; as many as fit run, and a few were stopped again."""
    simulator = arrived(model, cluster, trace)
    for job in simulator.pending():
        try_to_start(simulator, int(job), rng)
    for job in simulator.running():
        if rng.random() < 0.25:
            simulator.preempt(int(job))
    return simulator


def holdings(simulator: ClusterSimulator) -> Held:
    state, held = simulator.state, {}
    for job in simulator.running().tolist():
        held[job] = {}
        index = state.jobs[job]["share"]
        while index != NONE:
            share = state.shares[index]
            held[job][int(share["node"])] = int(share["gpus"]), int(share["partial"])
            index = share["next"]
    return held


def rates(simulator: ClusterSimulator) -> dict[int, float]:
    return {int(job): float(simulator.state.jobs[job]["rate"]) for job in simulator.running()}


def check_rates(simulator: ClusterSimulator, cluster: Cluster, rng: np.random.Generator) -> float:
    """All jobs by themselves, then all that fit beside each other until each is stopped.

    At any time all rates are the reference's, and neighbours only lower them; who lowers one is
    said to disturb. Returned is the greatest rate of a job alone.
    """
    state, tables, most = simulator.state, simulator.tables, 0.0

    def after_move(before: dict[int, float], sign: int) -> bool:
        now, held = rates(simulator), holdings(simulator)
        for job, rate in now.items():
            expected = slow_rate(tables, cluster, held, job)
            assert rate == pytest.approx(expected, rel=1e-12)
            # the simulator has kept it up to date
            assert rate == neighbour_rate(state.jobs, state.nodes, state.shares, tables, job)
            assert 0.0 < rate <= alone_rate(tables, cluster, held, job)
        both = before.keys() & now.keys()
        assert all(sign * now[other] <= sign * before[other] for other in both)
        return any(now[other] != before[other] for other in both)

    for job in simulator.pending().tolist():
        if try_to_start(simulator, job, rng):
            rate = rates(simulator)[job]
            assert rate == alone_rate(tables, cluster, holdings(simulator), job)
            most = max(most, rate)
            simulator.preempt(job)
    for job in simulator.pending().tolist():
        before = rates(simulator)
        if try_to_start(simulator, job, rng) and after_move(before, 1):
            assert disturbs(state.jobs, state.shares, tables, job)
    for job in simulator.running().tolist():
        before = rates(simulator)
        simulator.preempt(job)
        after_move(before, -1)
    return most


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
