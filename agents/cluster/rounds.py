"""Rounds: gangs take turns on the GPUs so that each holds them for its share of the time.

The mechanism of Gavel (Narayanan et al., OSDI 2020, section 5): time is cut into rounds; before
each, gangs are taken by descending X[m, p] / time received on pool p since X was last computed,
until the GPUs are used up. X is computed anew before the first round after an arrival, a completion
or a failure; each gang then starts with half a round received, and what it was owed until then
decides between equals. Arrivals wait for the next round; a gang that goes on keeps its GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from agents.cluster.backfilling import start, start_in_order
from agents.cluster.policy import PlacementRule, Scheduler, Share
from agents.cluster.rules.gangs import BestFit
from agents.solver import Knowledge
from envs.arrays import FloatArray, IntArray
from envs.bounds import Positive, bounded
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import PENDING, RUNNING, fitting, permitted_types
from envs.cluster.workload.trace import WHOLE_GPU, Trace
from envs.compilation import compiled
from envs.errors import InputError


@dataclass(frozen=True, eq=False)
class Demand:
    """A jobs that wait or run, by number, and P pools of nodes."""

    jobs: IntArray  # (A,)
    gpus: FloatArray  # (A,) of each gang; a fraction for fractional jobs; above 0
    rates: FloatArray  # (A, P) work per second alone on a pool; 0 where the gang cannot run
    capacity: FloatArray  # (P,) GPUs of nodes that are up


class ShareRule(Protocol):
    """Divides the time of all GPUs among the jobs."""

    name: str
    knows: Knowledge

    def reset(self, simulator: ClusterSimulator) -> None:
        """Before the first event of a simulation."""

    def pools(self, cluster: Cluster) -> IntArray:
        """(N,) the pool of each node, from 0: nodes that the rule does not tell apart."""

    def shares(self, simulator: ClusterSimulator, demand: Demand) -> FloatArray:
        """(A, P) X: the part of the time for which each gang should hold GPUs of each pool.

        Rows sum to at most 1, and gpus @ X is at most the capacity.
        """


def one_pool(cluster: Cluster) -> IntArray:
    """(N,) all GPUs are alike."""
    return np.zeros(cluster.num_nodes, np.int64)


def pool_per_type(cluster: Cluster) -> IntArray:
    """(N,) GPU types, numbered in ascending order of those that there are."""
    return np.unique(cluster.gpu_type, return_inverse=True)[1].astype(np.int64)


def demand_of(simulator: ClusterSimulator, jobs: IntArray, pools: IntArray) -> Demand:
    """The demand of `jobs`. A pool of several GPU types has rate 1 for all its jobs."""
    state, tables = simulator.state, simulator.tables
    records, nodes = state.jobs[jobs], state.nodes
    count = int(pools.max()) + 1
    gpus = records["gpus"] * (records["milli"] / WHOLE_GPU)
    up = nodes["up"] != 0
    capacity = np.bincount(pools[up], nodes["gpus"][up], count).astype(np.float64)
    rates = np.ones((len(jobs), count))
    for pool in range(count):
        types = np.unique(nodes["type"][pools == pool]).astype(np.int64)
        usable = (records["types"][:, None] >> types & 1 == 1).any(axis=1)
        if len(types) == 1:
            rates[:, pool] = tables.speed[tables.profile[jobs], types[0]]
        rates[~usable | (gpus > capacity[pool]), pool] = 0.0
    return Demand(jobs=jobs, gpus=gpus, rates=rates, capacity=capacity)


def refuse_gangs_without_pool(cluster: Cluster, trace: Trace, pools: IntArray) -> None:
    """Check that every gang fits on the nodes of one pool while all are up.

    Raises:
        InputError: one does not.
    """
    permitted = permitted_types(cluster, trace)
    largest = np.zeros(len(trace), np.int64)
    for pool, gpus in enumerate(np.bincount(pools, cluster.gpus)):
        types = np.unique(cluster.gpu_type[pools == pool]).astype(np.int64)
        usable = (permitted[:, None] >> types & 1 == 1).any(axis=1)
        largest = np.maximum(largest, np.where(usable, int(gpus), 0))
    wide = trace.num_gpus > largest
    if wide.any():
        job = int(np.argmax(wide))
        raise InputError(
            f"no pool of alike GPUs holds the {trace.num_gpus[job]} GPUs of job "
            f"'{trace.job_id[job]}', {fitting(int(largest[job]))}",
            file=trace.name,
            record=job,
            field="num_gpus",
        )


@bounded
class RoundBasedPolicy(Scheduler):
    """Realises the shares of a rule in rounds.

    Jobs without GPUs do not take part: they start as soon as they fit.

    Args:
        shares: how the time is divided.
        placement: where a gang goes; it sees the GPUs of the gang's pool only.
        round_s: length of a round in seconds (360 in the paper).
        seed: of the placement rule's generator.
    """

    def __init__(
        self,
        shares: ShareRule,
        placement: PlacementRule = BestFit(),
        round_s: Positive = 360.0,
        seed: int = 0,
    ) -> None:
        self.rule, self.placement, self.round_s, self.seed = shares, placement, round_s, seed
        self.name: str = shares.name
        self.knows: Knowledge = shares.knows

    def reset(self, simulator: ClusterSimulator) -> None:
        """Before the first event of a simulation.

        Raises:
            InputError: a gang that no pool of the rule holds.
        """
        self.rule.reset(simulator)
        self._rng = np.random.default_rng(self.seed)
        self._pools = self.rule.pools(simulator.cluster)
        self.check(simulator.cluster, simulator.trace)
        jobs, count = len(simulator.trace), int(self._pools.max()) + 1
        self._share = np.zeros((jobs, count))  # X
        self._received = np.zeros((jobs, count))  # seconds since X was computed
        self._owed = np.zeros((jobs, count))  # seconds, from before X was computed
        self._seen = np.zeros(jobs)  # `executed` that has been counted
        self._pool = np.full(jobs, NOWHERE)  # of running gangs
        self._demand: Demand | None = None
        self._computed = 0.0  # when X was
        self._next: float | None = None  # round; None: there is no gang
        types = simulator.cluster.gpu_type
        masks = [1 << np.unique(types[self._pools == p]).astype(np.int64) for p in range(count)]
        pool_types = [int(np.bitwise_or.reduce(mask)) for mask in masks]
        self._placer = Placer(self.placement, self._rng, pool_types)

    def check(self, cluster: Cluster, trace: Trace) -> None:
        """Refuse what `reset` would, before a simulation.

        Raises:
            InputError: a gang that no pool of the rule holds.
        """
        refuse_gangs_without_pool(cluster, trace, self.rule.pools(cluster))

    def decide(self, simulator: ClusterSimulator) -> None:
        """Begins a round where one is due."""
        records = simulator.state.jobs
        active = (records["status"] == PENDING) | (records["status"] == RUNNING)
        without = np.flatnonzero((records["status"] == PENDING) & (records["gpus"] == 0)).tolist()
        start_in_order(simulator, without, self.placement, self._rng, blocking=False)
        jobs = np.flatnonzero(active & (records["gpus"] > 0))
        if len(jobs) == 0:
            self._next = None
            return
        if self._next is None:
            self._next = simulator.now
        while self._next < simulator.now:
            rounds = (simulator.now - self._next) // self.round_s
            self._next += max(1.0, rounds) * self.round_s
        if self._next == simulator.now:
            self._turn(simulator, jobs)
            self._next += self.round_s

    def wake(self, simulator: ClusterSimulator) -> float:
        """The next round, unless all gangs run and go on."""
        waiting = simulator.state.clock[0]["pending"] > 0
        if self._next is None or (not waiting and self._share.shape[1] == 1):
            return np.inf
        return self._next

    def _turn(self, simulator: ClusterSimulator, jobs: IntArray) -> None:
        simulator.settle()
        self._count(simulator)
        demand = demand_of(simulator, jobs, self._pools)
        if self._is_new(demand):
            self._compute(simulator, demand)
        share, gangs = self._share[jobs], np.rint(demand.gpus * WHOLE_GPU).astype(np.int64)
        priority = share / self._received[jobs]
        entries = [
            np.lexsort((jobs, -share[:, p], -self._owed[jobs, p], -priority[:, p]))
            for p in range(share.shape[1])
        ]
        free = np.rint(demand.capacity * WHOLE_GPU).astype(np.int64)
        taken, rank = take_in_order(np.array(entries), gangs, demand.rates > 0.0, free)
        if not np.array_equal(taken, self._pool[jobs]):
            turn = Turn(simulator, demand, taken, rank, self._pool[jobs], self._placer)
            self._pool[jobs] = turn.realise()

    def _count(self, simulator: ClusterSimulator) -> None:
        """Adds the time since the last count to what was received."""
        executed = simulator.state.jobs["executed"]
        ran = np.flatnonzero(executed > self._seen)
        ran = ran[self._pool[ran] != NOWHERE]
        self._received[ran, self._pool[ran]] += executed[ran] - self._seen[ran]
        self._seen[:] = executed
        stopped = simulator.state.jobs["status"] != RUNNING
        self._pool[stopped] = NOWHERE

    def _is_new(self, demand: Demand) -> bool:
        last = self._demand
        return (
            last is None
            or not np.array_equal(last.jobs, demand.jobs)
            or not np.array_equal(last.capacity, demand.capacity)
        )

    def _compute(self, simulator: ClusterSimulator, demand: Demand) -> None:
        elapsed = simulator.now - self._computed
        if self._demand is not None:
            before = self._demand.jobs
            received = self._received[before] - self.round_s / 2.0
            self._owed[before] += self._share[before] * elapsed - received
        self._received[demand.jobs] = self.round_s / 2.0
        self._share[:] = 0.0
        self._share[demand.jobs] = self.rule.shares(simulator, demand)
        self._demand, self._computed = demand, simulator.now


NOWHERE = -1  # pool of a gang that does not run


@dataclass(frozen=True, eq=False)
class Placer:
    """A placement rule that is shown the GPUs of one pool."""

    rule: PlacementRule
    rng: np.random.Generator
    types: Sequence[int]  # (P,) a bit for each GPU type of a pool

    def place(self, simulator: ClusterSimulator, job: int, pool: int) -> Sequence[Share] | None:
        """Where a pending job goes in a pool, in any if NOWHERE; None: it does not fit."""
        records = simulator.state.jobs
        permitted = int(records["types"][job])
        if len(self.types) > 1 and pool != NOWHERE:
            records["types"][job] = self.types[pool] & permitted
        try:
            return self.rule.place(simulator, job, self.rng)
        finally:
            records["types"][job] = permitted


@compiled
def take_in_order(
    entries: IntArray, gangs: IntArray, usable: NDArray[np.bool_], free: IntArray
) -> tuple[IntArray, IntArray]:
    """Give out GPUs by numbers alone: pool by pool, gangs that are too large passed over.

    Args:
        entries: (P, A) gangs in order of priority.
        gangs: (A,) thousandths of GPUs.
        usable: (A, P) whether a gang may run on a pool.
        free: (P,) thousandths of GPUs; used up.

    Returns:
        (A,) the pool in which each gang is taken, or NOWHERE; (A,) its place in the order of
        taking, where those that are not taken come last, in the order of the first pool.
    """
    taken = np.full(len(gangs), NOWHERE)
    rank = np.full(len(gangs), -1)
    place = 0
    for pool in range(len(entries)):
        for gang in entries[pool]:
            if taken[gang] == NOWHERE and usable[gang, pool] and gangs[gang] <= free[pool]:
                taken[gang] = pool
                free[pool] -= gangs[gang]
                rank[gang] = place
                place += 1
    for gang in entries[0]:
        if rank[gang] < 0:
            rank[gang] = place
            place += 1
    return taken, rank


class Turn:
    """Places the gangs that were taken. Where there is no place for one, in this order:

    1. all gangs taken that are not larger are placed anew, the largest first;
    2. the gangs behind it in the order of taking are placed again after it, taken or not, so that
       no gang starves for want of a whole node.

    Args:
        simulator: at the beginning of a round.
        demand: of A gangs.
        taken: (A,) see `take_in_order`.
        rank: (A,) likewise.
        held: (A,) the pool in which a gang runs, or NOWHERE.
        placer: where gangs go.
    """

    def __init__(
        self,
        simulator: ClusterSimulator,
        demand: Demand,
        taken: IntArray,
        rank: IntArray,
        held: IntArray,
        placer: Placer,
    ) -> None:
        self._simulator, self._twin = simulator, simulator.copy()
        self._demand, self._taken, self._rank = demand, taken, rank
        self._pool, self._placer = held.copy(), placer
        self._started: list[int] = []

    def realise(self) -> IntArray:
        """Stops and starts gangs; (A,) the pool in which each runs now, or NOWHERE."""
        demand, taken, rank = self._demand, self._taken, self._rank
        self._stop(np.flatnonzero(taken != self._pool).tolist())
        chosen = np.flatnonzero(taken != NOWHERE).tolist()
        by_size = sorted(chosen, key=lambda at: (-demand.gpus[at], rank[at]))
        without = self._place(by_size)
        if without:
            largest = demand.gpus[without].max()
            self._stop([at for at in by_size if demand.gpus[at] <= largest])
            without = self._place(by_size)
        if without:
            order = np.argsort(rank)[rank[without].min() :].tolist()
            self._stop(order)
            for at in order:
                pools = [int(p) for p in np.argsort(-demand.rates[at], kind="stable")]
                first = [] if taken[at] == NOWHERE else [int(taken[at])]
                for pool in first + pools:
                    if demand.rates[at, pool] > 0.0 and self._start(at, pool):
                        break
        self._apply()
        return self._pool

    def _place(self, order: list[int]) -> list[int]:
        """Starts those in `order` that wait; those for which there is no place."""
        status = self._twin.state.jobs["status"]
        wait = [at for at in order if status[self._demand.jobs[at]] == PENDING]
        return [at for at in wait if not self._start(at, int(self._taken[at]))]

    def _start(self, at: int, pool: int) -> bool:
        job = int(self._demand.jobs[at])
        place = self._placer.place(self._twin, job, pool)
        if place is None:
            return False
        start(self._twin, job, place)
        self._pool[at] = pool
        self._started.append(at)
        return True

    def _stop(self, gangs: list[int]) -> None:
        for at in gangs:
            if self._twin.state.jobs["status"][self._demand.jobs[at]] == RUNNING:
                self._twin.preempt(int(self._demand.jobs[at]))
            self._pool[at] = NOWHERE

    def _apply(self) -> None:
        """Does to the simulator what was found out; gangs that come to the same place go on."""
        jobs, records = self._demand.jobs, self._simulator.state.jobs
        for at in np.flatnonzero(records["status"][jobs] == RUNNING).tolist():
            job = int(jobs[at])
            there = sorted(self._twin.shares(job))
            if self._pool[at] == NOWHERE or sorted(self._simulator.shares(job)) != there:
                self._simulator.preempt(job)
        whole = records["milli"][jobs] == WHOLE_GPU
        for at in sorted(dict.fromkeys(self._started), key=lambda at: not whole[at]):
            job, pool = int(jobs[at]), int(self._pool[at])
            if pool == NOWHERE or records["status"][job] == RUNNING:
                continue
            if whole[at]:
                self._simulator.start(job, self._twin.shares(job))
                continue
            place = self._placer.place(self._simulator, job, pool)
            if place is None:
                self._pool[at] = NOWHERE
            else:
                start(self._simulator, job, place)
