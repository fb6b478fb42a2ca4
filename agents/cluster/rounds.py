"""Rounds: gangs take turns on the GPUs so that each holds them for its share of the time.

The mechanism of Gavel (Narayanan et al., OSDI 2020, section 5): time is cut into rounds; before
each, gangs are taken by descending X[m, p] / time received on pool p since X was last computed,
until the GPUs are used up. X is computed anew before the first round after an arrival, a completion
or a failure; each gang then starts with half a round received, and what it was owed until then
decides between equals. Arrivals wait for the next round; a gang that goes on keeps its GPUs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from agents.cluster.passes import start_in_order
from agents.cluster.policy import Knowledge, PlacementRule
from agents.cluster.time_shares.demand import (
    Demand,
    ShareRule,
    demand_of,
    refuse_gangs_without_pool,
)
from agents.cluster.time_shares.turn import NOWHERE, Placer, Turn, take_in_order
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import PENDING, RUNNING
from envs.cluster.workload.trace import WHOLE_GPU
from envs.errors import InputError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class RoundBasedPolicy:
    """Realises the shares of a rule in rounds.

    Jobs without GPUs do not take part: they start as soon as they fit.

    Args:
        shares: how the time is divided.
        placement: where a gang goes; it sees the GPUs of the gang's pool only.
        round_s: length of a round in seconds (360 in the paper).
        seed: of the placement rule's generator.

    Raises:
        InputError: a round that is not positive and finite.
    """

    def __init__(
        self, shares: ShareRule, placement: PlacementRule, round_s: float, seed: int
    ) -> None:
        if not 0.0 < round_s < np.inf:
            raise InputError(f"{round_s} is not positive and finite", field="round_s")
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
        refuse_gangs_without_pool(simulator, self._pools)
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
