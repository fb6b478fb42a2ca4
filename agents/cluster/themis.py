"""Themis (Mahajan et al., NSDI 2020): leases auctioned among the jobs worst off."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from annotated_types import Ge, Lt

from agents.cluster.backfilling import start_in_order
from agents.cluster.policy import PlacementRule, Scheduler
from agents.cluster.rules.gangs import BestFit
from agents.solver import Knowledge
from envs.arrays import BoolArray, FloatArray, IntArray
from envs.bounds import Positive, bounded
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import PENDING, RUNNING
from envs.cluster.workload.trace import WHOLE_GPU


@bounded
class Themis(Scheduler):
    """Offers free GPUs and those of ended leases to the 1 - f of the jobs with the worst rho.

    rho = (elapsed + remaining) / ideal; ideal is the work on a 1/n part of the cluster, n the mean
    number of jobs since the submission: work x max(1, n gpus / capacity) for a gang that takes
    turns with itself.

    The auction (section 3.3 there) maximises the product of valuations 1 / rho. A gang takes all of
    its GPUs or none, and without them it waits one lease, so the product is a knapsack with worth
    log((elapsed + lease + remaining) / (elapsed + remaining)), solved exactly. Bids are true here;
    hidden payments, which make them so, would cut gangs in parts and are left out. Every job is an
    application of its own. What the winners leave goes to the other bidders and to jobs that were
    not asked, in random order, as published. A winner that runs keeps its GPUs. A gang larger than
    the offer cannot win: it waits until enough leases end together.

    Guarantees:
        The auction of one moment is solved exactly; whoever is worst off is asked first.

    Source:
        Mahajan, Balasubramanian, Singhvi, Venkataraman, Akella, Phanishayee, Chawla, "Themis: Fair
        and Efficient GPU Cluster Scheduling", NSDI 2020.

    Args:
        placement: where a gang goes.
        fairness: f, in [0, 1) (0.8 in the paper).
        lease_s: seconds for which a gang keeps what it won (1200 in the paper).
        seed: of the random order and of the placement rule's generator.
    """

    name = "themis"
    knows: Knowledge = "durations"
    memoryless = False

    def __init__(
        self,
        placement: PlacementRule = BestFit(),
        fairness: Annotated[float, Ge(0.0), Lt(1.0)] = 0.8,
        lease_s: Positive = 1200.0,
        seed: int = 0,
    ) -> None:
        self.placement, self.fairness, self.lease_s = placement, fairness, lease_s
        self.seed = seed

    def reset(self, simulator: ClusterSimulator) -> None:
        self._rng = np.random.default_rng(self.seed)
        jobs = len(simulator.trace)
        self._lease = np.full(jobs, -np.inf)  # its end
        self._joined = np.full(jobs, np.nan)  # job-seconds of the cluster at the submission
        self._job_seconds, self._since, self._present = 0.0, 0.0, 0
        records = simulator.state.jobs
        self._gpus = records["gpus"] * (records["milli"] / WHOLE_GPU)

    def decide(self, simulator: ClusterSimulator) -> None:
        """Holds an auction if GPUs are on offer and jobs wait."""
        simulator.settle()
        status = simulator.state.jobs["status"]
        waits, runs, gangs = status == PENDING, status == RUNNING, self._gpus > 0.0
        self._job_seconds += (simulator.now - self._since) * self._present
        self._since, self._present = simulator.now, int((waits | runs).sum())
        self._joined[(waits | runs) & np.isnan(self._joined)] = self._job_seconds
        without = np.flatnonzero(waits & ~gangs).tolist()
        start_in_order(simulator, without, self.placement, self._rng, blocking=False)
        if (status == PENDING).any():
            bidders = waits | (runs & (self._lease <= simulator.now))
            self._auction(simulator, np.flatnonzero(bidders & gangs))

    def wake(self, simulator: ClusterSimulator) -> float:
        """The end of the next lease, if jobs wait."""
        if simulator.state.clock[0]["pending"] == 0:
            return np.inf
        ends = self._lease[simulator.running()]
        return float(ends[ends > simulator.now].min(initial=np.inf))

    def rho(self, simulator: ClusterSimulator, jobs: IntArray) -> FloatArray:
        """(A,) finish-time fairness of settled jobs that would go on without a break."""
        records, nodes = simulator.state.jobs[jobs], simulator.state.nodes
        elapsed = simulator.now - records["submit"]
        shared = self._job_seconds - self._joined[jobs]
        mean = shared / np.where(elapsed > 0.0, elapsed, 1.0)
        others = np.where(elapsed > 0.0, mean, self._present)
        capacity = max(int(nodes["gpus"][nodes["up"] != 0].sum()), 1)
        ideal = records["work"] * np.maximum(1.0, others * self._gpus[jobs] / capacity)
        rho: FloatArray = (elapsed + records["remaining"]) / ideal
        return rho

    def _auction(self, simulator: ClusterSimulator, bidders: IntArray) -> None:
        records = simulator.state.jobs[bidders]
        runs = records["status"] == RUNNING
        gpus = np.ceil(self._gpus[bidders]).astype(np.int64)
        offered = int(simulator.state.clock[0]["free"] + gpus[runs].sum())
        if offered == 0:
            return
        worst = np.argsort(-self.rho(simulator, bidders), kind="stable")
        asked = worst[: int(np.ceil((1.0 - self.fairness) * len(bidders)))]
        alone = simulator.now - records["submit"] + records["remaining"]
        worth = np.log1p(self.lease_s / np.maximum(alone, 1e-9))
        winners = asked[knapsack(worth[asked], gpus[asked], offered)]
        order = np.concatenate([winners, self._rng.permutation(np.setdiff1d(worst, winners))])
        stays = np.zeros(len(bidders), np.bool_)
        for bidder in order:
            stays[bidder] = gpus[bidder] <= offered
            offered -= gpus[bidder] * stays[bidder]
        for job in bidders[runs & ~stays].tolist():
            simulator.preempt(job)
        waiting = bidders[order[~(runs & stays)[order]]].tolist()
        start_in_order(simulator, waiting, self.placement, self._rng, blocking=False)
        self._lease[bidders] = simulator.now + self.lease_s


def knapsack(worth: FloatArray, weights: IntArray, capacity: int) -> BoolArray:
    """(A,) the choice of greatest total worth whose weights sum to at most `capacity`.

    Exact, by dynamic programming over capacities; worths and weights above 0.
    """
    best = np.zeros(capacity + 1)
    taken = np.zeros((len(worth), capacity + 1), np.bool_)
    for item, (value, weight) in enumerate(zip(worth, weights, strict=True)):
        if weight <= capacity:
            with_item = best[: capacity + 1 - weight] + value
            taken[item, weight:] = with_item > best[weight:]
            best[weight:] = np.maximum(best[weight:], with_item)
    chosen = np.zeros(len(worth), np.bool_)
    left = capacity
    for item in range(len(worth) - 1, -1, -1):
        if taken[item, left]:
            chosen[item] = True
            left -= int(weights[item])
    return chosen
