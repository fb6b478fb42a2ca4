"""Clusters of mixed GPUs with jobs on them, drawn by hypothesis, and the plan of who runs where."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from agents.cluster.migrating.learned_priority import NAMES
from agents.cluster.migrating.policy import (
    ALL_SERVERS,
    KEEP,
    NOWHERE,
    RACK,
    SERVER,
    START,
    STOP,
    WAIT,
)
from envs.cluster.environment.actions import View, view_of
from envs.cluster.interference.rates import RateTables, without_neighbours
from envs.cluster.nodes import UNLIMITED, Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import INCIDENT, NONE, PENDING, RUNNING, Overheads
from envs.cluster.workload.trace import Labels, Trace
from tests.strength import SEEDS

TYPES = ("A", "B", "C")
Target = tuple[int, int]  # kind, index
OVERHEADS = Overheads(restart_s=30.0, checkpoint_s=0.0)


class JobSpeeds:
    """Every job has a speed of its own on each GPU type, of few values: often some are equal."""

    name = "job_speeds"

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def tables(self, trace: Trace, cluster: Cluster) -> RateTables:
        """Without neighbours."""
        rng = np.random.default_rng(self.seed)
        speed = rng.choice(
            [[0.5, 1.0], [0.2, 0.8, 1.0]][self.seed % 2], (len(trace), len(cluster.gpu_types))
        )
        return without_neighbours(np.arange(len(trace), dtype=np.int32), speed)


class OneSpeed:
    """Every job has the speeds given, one for each GPU type."""

    name = "one_speed"

    def __init__(self, *speeds: float) -> None:
        self.speeds = speeds

    def tables(self, trace: Trace, cluster: Cluster) -> RateTables:
        """Without neighbours."""
        return without_neighbours(np.zeros(len(trace), np.int32), np.array([self.speeds]))


def weights_of(**given: float) -> dict[str, float]:
    """Weights of a learned priority, 0 where none is given."""
    return {**dict.fromkeys(NAMES, 0.0), **given}


def random_cluster(rng: np.random.Generator) -> Cluster:
    """One to twelve nodes of up to four, two or one GPUs, three types, up to three racks."""
    nodes, most = int(rng.integers(1, 13)), int(rng.choice([1, 2, 4]))
    return Cluster(
        name="random",
        gpus=rng.integers(1, most + 1, nodes).astype(np.int32),
        rack=rng.integers(0, 3, nodes).astype(np.int32),
        gpu_type=rng.integers(0, 3, nodes).astype(np.int32),
        gpu_types=TYPES,
        cpu_milli=np.full(nodes, UNLIMITED),
        memory_mib=np.full(nodes, UNLIMITED),
    )


def random_trace(rng: np.random.Generator, cluster: Cluster, *, longest_s: int = 6000) -> Trace:
    """Up to twenty jobs, gangs up to the whole cluster, a third of them bound to one GPU type."""
    jobs = int(rng.integers(1, 21))
    of_type = np.bincount(cluster.gpu_type, cluster.gpus, 3).astype(int)
    there = [name for name, gpus in zip(TYPES, of_type, strict=True) if gpus]
    wanted = [str(rng.choice(there)) if rng.random() < 0.33 else None for _ in range(jobs)]
    most = [cluster.num_gpus if w is None else of_type[TYPES.index(w)] for w in wanted]
    gpus = np.minimum(rng.choice([1, 1, 2, 3, 4, 6, 12], jobs), most).astype(np.int32)
    trace = Trace.of(
        "random", np.sort(rng.integers(0, 3000, jobs)), rng.integers(60, longest_s, jobs), gpus
    )
    none = Labels.unknown(jobs)
    return Trace(**{**vars(trace), "gpu_type": Labels.of(wanted), "user": none})


@st.composite
def states(draw: st.DrawFn) -> tuple[ClusterSimulator, View, NDArray[np.int64]]:
    """A settled state in which jobs run on arbitrary GPUs, the servers, and the jobs in an order.

    The servers are all, or those of one of two owners; the jobs are those that wait and those that
    run on the servers alone. Sometimes a node is down.
    """
    rng = np.random.default_rng(draw(SEEDS))
    cluster = random_cluster(rng)
    trace = random_trace(rng, cluster)
    down = [(500.0, int(rng.integers(cluster.num_nodes)), 0)] if draw(st.booleans()) else []
    simulator = ClusterSimulator(
        cluster,
        trace,
        rates=JobSpeeds(int(rng.integers(8))),
        overheads=OVERHEADS,
        incidents=np.array(down, INCIDENT),
    )
    until, busy = float(draw(st.integers(0, 4000))), float(rng.choice([0.1, 0.5, 0.9]))
    while simulator.now < until and simulator.advance(until):
        for job in simulator.pending():
            if rng.random() < busy:
                start_anywhere(simulator, int(job), rng)
        for job in simulator.running():
            if rng.random() < 0.1:
                simulator.preempt(int(job))
    simulator.settle()
    nodes = np.arange(cluster.num_nodes)
    if draw(st.booleans()) and len(nodes) > 1:
        nodes = np.sort(rng.permutation(nodes)[: len(nodes) // 2])
    view = view_of(cluster, simulator.tables, nodes, 0, 4)
    mine = [
        job
        for job in simulator.running()
        if all(view.slot[node] != NONE for node, _ in simulator.shares(int(job)))
    ]
    jobs = np.concatenate([simulator.pending(), np.array(mine, np.int64)])
    return simulator, view, rng.permutation(jobs).astype(np.int64)


def start_anywhere(simulator: ClusterSimulator, job: int, rng: np.random.Generator) -> None:
    """On any free GPUs that it may use, if they are enough."""
    record, nodes = simulator.state.jobs[job], simulator.state.nodes
    left, shares = int(record["gpus"]), []
    for node in rng.permutation(len(nodes)):
        if not nodes[node]["up"] or not int(record["types"]) >> int(nodes[node]["type"]) & 1:
            continue
        here = min(left, int(nodes[node]["free"]), int(rng.integers(1, 5)))
        if here:
            shares.append((int(node), here))
            left -= here
    if left == 0:
        simulator.start(job, shares)


class SlowPlan:
    """`plan.plan` as its docstring says it, with dictionaries instead of compiled loops."""

    def __init__(
        self,
        simulator: ClusterSimulator,
        view: View,
        gain: float,
        least_run_s: float,
        kept_s: float,
    ) -> None:
        self.simulator, self.view = simulator, view
        self.gain, self.least_run_s, self.kept_s = gain, least_run_s, kept_s
        state = simulator.state
        up = {slot: state.nodes[node] for slot, node in enumerate(view.node)}
        self.there = {s: int(node["free"]) if node["up"] else 0 for s, node in up.items()}
        self.racks = [
            list(range(view.rack_ptr[r], view.rack_ptr[r + 1]))
            for r in range(len(view.rack_ptr) - 1)
        ]

    def decide(self, order: Sequence[int]) -> list[tuple[int, Target]]:
        """(fate, (kind, index) of the target) of every job."""
        jobs = self.simulator.state.jobs
        self.free = dict(self.there)
        for job in order:
            if jobs[job]["status"] == RUNNING and not self._kept(job):
                for slot, gpus in self._held(job):
                    self.free[slot] += gpus
        return [self._decide(int(job)) for job in order]

    def _kept(self, job: int) -> bool:
        record = self.simulator.state.jobs[job]
        return bool(self.simulator.now - record["since"] < self.kept_s)

    def _decide(self, job: int) -> tuple[int, Target]:
        record = self.simulator.state.jobs[job]
        if record["status"] == RUNNING and self._kept(job):
            return KEEP, (NOWHERE, 0)
        runs, wanted = record["status"] == RUNNING, int(record["gpus"])
        assert runs or record["status"] == PENDING
        best = self._best(job, wanted) if sum(self.free.values()) >= wanted else None
        if runs and sum(self.free.values()) >= wanted:
            held = self._held(job)
            if all(self.free[slot] >= gpus for slot, gpus in held):
                current = min(self._speed(job, slot) for slot, _ in held)
                early = self.simulator.now - record["since"] < self.least_run_s
                if early or best is None or best[1] <= self.gain * current:
                    for slot, gpus in held:
                        self.free[slot] -= gpus
                    return KEEP, (NOWHERE, 0)
        if best is None:
            return (STOP if runs else WAIT), (NOWHERE, 0)
        target, _ = best
        self._take(wanted, [s for s in self._slots(target) if self._allowed(job, s)])
        return (STOP if runs else START), target

    def _best(self, job: int, wanted: int) -> tuple[Target, float] | None:
        """The target and its speed."""
        allowed = [s for s in self.free if self._allowed(job, s)]
        on_one = [s for s in allowed if self.free[s] >= wanted]
        if on_one:
            slot = min(
                on_one,
                key=lambda s: (
                    -self._speed(job, s),
                    -min(self.there[s], wanted),
                    self.free[s],
                    s,
                ),
            )
            return (SERVER, slot), self._speed(job, slot)
        nodes, view = self.simulator.state.nodes, self.view
        if any(wanted <= nodes[view.node[s]]["gpus"] for s in allowed):
            return None
        parts = [[s for s in rack if s in allowed and self.free[s]] for rack in self.racks]
        fitting = [r for r, part in enumerate(parts) if sum(self.free[s] for s in part) >= wanted]
        if fitting:
            rack = min(
                fitting,
                key=lambda r: (
                    -min(self._speed(job, s) for s in parts[r]),
                    -min(sum(self.there[s] for s in parts[r]), wanted),
                    r,
                ),
            )
            return (RACK, rack), min(self._speed(job, s) for s in parts[rack])
        everywhere = [s for part in parts for s in part]
        if sum(self.free[s] for s in everywhere) >= wanted:
            return (ALL_SERVERS, 0), min(self._speed(job, s) for s in everywhere)
        return None

    def _take(self, gpus: int, slots: Sequence[int]) -> None:
        left = gpus
        while left:
            enough = [s for s in slots if self.free[s] >= left]
            slot = (
                min(enough, key=lambda s: (self.free[s], s))
                if enough
                else max(slots, key=lambda s: (self.free[s], -s))
            )
            part = min(left, self.free[slot])
            self.free[slot] -= part
            self.there[slot] = max(self.there[slot] - part, 0)
            left -= part

    def _slots(self, target: Target) -> list[int]:
        kind, index = target
        if kind == SERVER:
            return [index]
        return list(self.free) if kind == ALL_SERVERS else self.racks[index]

    def _held(self, job: int) -> list[tuple[int, int]]:
        return [(int(self.view.slot[n]), gpus) for n, gpus in self.simulator.shares(job)]

    def _speed(self, job: int, slot: int) -> float:
        tables = self.simulator.tables
        kind = self.simulator.state.nodes[self.view.node[slot]]["type"]
        return float(tables.speed[tables.profile[job], kind])

    def _allowed(self, job: int, slot: int) -> bool:
        node = self.simulator.state.nodes[self.view.node[slot]]
        types = int(self.simulator.state.jobs[job]["types"])
        return bool(node["up"]) and bool(types >> int(node["type"]) & 1)
