"""Rounds: gangs take turns on the GPUs so that each holds them for its share of the time.

The mechanism of Gavel (Narayanan et al., OSDI 2020, section 5): time is cut into rounds; before
each, gangs are taken by descending X[m, p] / time received on pool p since X was last computed,
until the GPUs are used up. X is computed anew before the first round after an arrival, a completion
or a failure; each gang then starts with half a round received, and what it was owed until then
decides between equals. Arrivals wait for the next round; a gang that goes on keeps its GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agents.cluster.backfilling import start, start_in_order
from agents.cluster.policy import PlacementRule, Scheduler, Share
from agents.cluster.rules.gangs import BestFit
from agents.cluster.shares import Demand, ShareRule, checked_shares
from agents.solver import Knowledge
from envs.arrays import IntArray
from envs.bounds import Positive, bounded
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import PENDING, RUNNING, fitting, permitted_types
from envs.cluster.workload.trace import WHOLE_GPU, Trace
from envs.compilation import compiled
from envs.errors import InputError

NOWHERE = -1  # pool of a gang that does not run
Place = Callable[[ClusterSimulator, int, int], Sequence[Share] | None]  # of a job, in a pool


@dataclass(frozen=True, eq=False)
class Pools:
    """P pools of GPUs that a share rule does not tell apart: those of a type, or all of them."""

    of_node: IntArray  # (N,)
    types: IntArray  # (P,) a bit for each GPU type
    kinds: IntArray | None  # (P,) the GPU type of each; None: there are several in the only one

    @classmethod
    def of(cls, cluster: Cluster, *, by_type: bool) -> Pools:
        """By ascending type of those that there are, if types are distinguished."""
        kinds, of_node = np.unique(cluster.gpu_type.astype(np.int64), return_inverse=True)
        types = 1 << kinds
        if by_type or len(kinds) == 1:
            return cls(of_node, types, kinds)
        return cls(np.zeros_like(of_node), types.sum(keepdims=True), None)

    def demand(self, simulator: ClusterSimulator, jobs: IntArray) -> Demand:
        """The demand of `jobs`. On GPUs of several types all rates are 1."""
        state, tables = simulator.state, simulator.tables
        records, nodes = state.jobs[jobs], state.nodes
        gpus = records["gpus"] * (records["milli"] / WHOLE_GPU)
        up = nodes["up"] != 0
        capacity = np.bincount(self.of_node[up], nodes["gpus"][up], len(self.types)).astype(float)
        rates = np.ones((len(jobs), len(self.types)))
        if self.kinds is not None:
            rates = tables.speed[tables.profile[jobs][:, None], self.kinds]
        cannot = records["types"][:, None] & self.types == 0
        rates[cannot | (gpus[:, None] > capacity)] = 0.0
        return Demand(simulator, jobs, gpus, rates, capacity)


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

    memoryless = False

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
        self.check(simulator.cluster, simulator.trace)
        self.rule.reset(simulator)
        self._rng = np.random.default_rng(self.seed)
        self._pools = Pools.of(simulator.cluster, by_type=self.rule.by_type)
        shape = len(simulator.trace), len(self._pools.types)
        self._share = np.zeros(shape)  # X
        self._received = np.zeros(shape)  # seconds since X was computed
        self._owed = np.zeros(shape)  # seconds, from before X was computed
        self._seen = np.zeros(shape[0])  # `executed` that has been counted
        self._pool = np.full(shape[0], NOWHERE)  # of running gangs
        self._jobs, self._capacity = np.zeros(0, np.int64), np.zeros(0)  # that X was computed for
        self._computed = 0.0  # when X was
        self._next = np.inf  # round; inf: there is no gang

    def check(self, cluster: Cluster, trace: Trace) -> None:
        """Refuse what `reset` would, before a simulation.

        Raises:
            InputError: a gang that no pool of the rule holds, all nodes being up.
        """
        pools = Pools.of(cluster, by_type=self.rule.by_type)
        usable = permitted_types(cluster, trace)[:, None] & pools.types != 0
        largest = np.where(usable, np.bincount(pools.of_node, cluster.gpus), 0).max(axis=1)
        wide = np.flatnonzero(trace.num_gpus > largest)
        if len(wide):
            job = int(wide[0])
            raise InputError(
                f"no pool of alike GPUs holds the {trace.num_gpus[job]} GPUs of job "
                f"'{trace.job_id[job]}', {fitting(int(largest[job]))}",
                file=trace.name,
                record=job,
                field="num_gpus",
            )

    def decide(self, simulator: ClusterSimulator) -> None:
        """Begins a round where one is due."""
        records = simulator.state.jobs
        status, gpus = records["status"], records["gpus"]
        without = np.flatnonzero((status == PENDING) & (gpus == 0)).tolist()
        start_in_order(simulator, without, self.placement, self._rng, blocking=False)
        jobs = np.flatnonzero(((status == PENDING) | (status == RUNNING)) & (gpus > 0))
        if len(jobs) == 0:
            self._next = np.inf
            return
        if self._next == np.inf:
            self._next = simulator.now
        while self._next < simulator.now:
            rounds = (simulator.now - self._next) // self.round_s
            self._next += max(1.0, rounds) * self.round_s
        if self._next == simulator.now:
            self._begin(simulator, jobs)
            self._next += self.round_s

    def wake(self, simulator: ClusterSimulator) -> float:
        """The next round, unless all gangs run and go on."""
        waiting = simulator.state.clock[0]["pending"] > 0
        return self._next if waiting or len(self._pools.types) > 1 else np.inf

    def _begin(self, simulator: ClusterSimulator, jobs: IntArray) -> None:
        """A round of `jobs`."""
        simulator.settle()
        records = simulator.state.jobs
        executed = records["executed"]
        ran = np.flatnonzero((executed > self._seen) & (self._pool != NOWHERE))
        self._received[ran, self._pool[ran]] += executed[ran] - self._seen[ran]
        self._seen[:] = executed
        self._pool[records["status"] != RUNNING] = NOWHERE

        demand, before = self._pools.demand(simulator, jobs), self._jobs
        alike = np.array_equal(before, jobs) and np.array_equal(self._capacity, demand.capacity)
        if not alike:
            received = self._received[before] - self.round_s / 2.0
            elapsed = simulator.now - self._computed
            self._owed[before] += self._share[before] * elapsed - received
            self._received[jobs] = self.round_s / 2.0
            self._share[:] = 0.0
            self._share[jobs] = checked_shares(self.rule, demand)
            self._jobs, self._capacity, self._computed = jobs, demand.capacity, simulator.now

        share, pool = self._share[jobs].T, self._pool[jobs]
        priority = share / self._received[jobs].T
        entries = np.lexsort((-share, -self._owed[jobs].T, -priority))
        gangs, free = (np.rint(x * WHOLE_GPU).astype(int) for x in (demand.gpus, demand.capacity))
        taken, order = take_in_order(entries, gangs, demand.rates > 0.0, free)
        if not np.array_equal(taken, pool):
            realise(demand, taken, order, pool, self._place)
            self._pool[jobs] = pool

    def _place(self, simulator: ClusterSimulator, job: int, pool: int) -> Sequence[Share] | None:
        """Where a pending job goes in a pool, by the rule; None: it does not fit."""
        types = simulator.state.jobs["types"]
        permitted = types[job]
        types[job] &= self._pools.types[pool]
        try:
            return self.placement.place(simulator, job, self._rng)
        finally:
            types[job] = permitted


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
        (A,) the pool in which each gang is taken, or NOWHERE; (A,) gangs in the order of taking,
        where those that are not taken come last, in the order of the first pool.
    """
    taken = np.full(len(gangs), NOWHERE)
    order = np.empty(len(gangs), np.int64)
    count = 0
    for pool in range(len(entries)):
        for gang in entries[pool]:
            if taken[gang] == NOWHERE and usable[gang, pool] and gangs[gang] <= free[pool]:
                taken[gang] = pool
                free[pool] -= gangs[gang]
                order[count] = gang
                count += 1
    for gang in entries[0]:
        if taken[gang] == NOWHERE:
            order[count] = gang
            count += 1
    return taken, order


def realise(demand: Demand, taken: IntArray, order: IntArray, pool: IntArray, place: Place) -> None:
    """Stop and start gangs so that those that were taken run.

    Where there is no place for one, first all gangs taken that are not larger are placed anew, the
    largest first; then the gangs behind it in the order of taking are placed again after it, taken
    or not, so that no gang starves for want of a whole node. All this is tried on a copy: gangs
    that come to the same place go on.

    Args:
        demand: of A gangs at the beginning of a round.
        taken: (A,) see `take_in_order`.
        order: (A,) likewise.
        pool: (A,) in which each gang runs, or NOWHERE; changed.
        place: where a gang goes in a pool.
    """
    simulator, jobs, gpus = demand.simulator, demand.jobs.tolist(), demand.gpus
    twin = simulator.copy()
    status = twin.state.jobs["status"]
    started: dict[int, None] = {}

    def stop(gangs: list[int]) -> None:
        for at in gangs:
            if status[jobs[at]] == RUNNING:
                twin.preempt(jobs[at])
            pool[at] = NOWHERE

    def starts(at: int, where: int) -> bool:
        shares = place(twin, jobs[at], where)
        if shares is not None:
            start(twin, jobs[at], shares)
            pool[at], started[at] = where, None
        return shares is not None

    def left_out(gangs: list[int]) -> list[int]:
        """Those that wait, and for which there is no place; the others are started."""
        wait = [at for at in gangs if status[jobs[at]] == PENDING]
        return [at for at in wait if not starts(at, int(taken[at]))]

    stop(np.flatnonzero(taken != pool).tolist())
    by_size = sorted(order[taken[order] != NOWHERE].tolist(), key=lambda at: -gpus[at])
    without = left_out(by_size)
    if without:
        largest = gpus[without].max()
        stop([at for at in by_size if gpus[at] <= largest])
        without = left_out(by_size)
    if without:
        behind = order[np.argmax(np.isin(order, without)) :].tolist()
        stop(behind)
        for at in behind:
            pools = [int(taken[at]), *np.argsort(-demand.rates[at], kind="stable").tolist()]
            for where in pools:
                if where != NOWHERE and demand.rates[at, where] > 0.0 and starts(at, where):
                    break

    records = simulator.state.jobs
    for at in np.flatnonzero(records["status"][demand.jobs] == RUNNING).tolist():
        there = sorted(twin.shares(jobs[at]))
        if pool[at] == NOWHERE or sorted(simulator.shares(jobs[at])) != there:
            simulator.preempt(jobs[at])
    whole = records["milli"][demand.jobs] == WHOLE_GPU
    for at in sorted(started, key=lambda at: not whole[at]):
        if pool[at] == NOWHERE or records["status"][jobs[at]] == RUNNING:
            continue
        shares = twin.shares(jobs[at]) if whole[at] else place(simulator, jobs[at], int(pool[at]))
        if shares is None:
            pool[at] = NOWHERE
        else:
            start(simulator, jobs[at], shares)
