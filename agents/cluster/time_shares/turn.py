"""One turn of the rounds: which gangs run next, found out on a copy and then done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from agents.cluster.passes import start
from agents.cluster.policy import PlacementRule, Share
from agents.cluster.time_shares.demand import Demand
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import PENDING, RUNNING
from envs.cluster.workload.trace import WHOLE_GPU

IntArray = NDArray[np.int64]
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


@njit(cache=True)
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
