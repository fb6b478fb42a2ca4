"""Jobs start in a constant order of priority and run to their end."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from agents.cluster.loops.consolidated import consolidated
from agents.cluster.loops.non_preemptive import backfilled, in_order
from agents.cluster.loops.undisturbed import (
    equal_nodes,
    job_bits,
    never,
    numbers_decide,
    only_gpus_count,
    schedule_of,
)
from agents.cluster.ordered.replay import run_in_order
from agents.cluster.passes import start_in_order
from agents.cluster.placement.codes import PACKED
from agents.cluster.policy import Knowledge, PlacementRule
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.schedule import Schedule
from envs.cluster.workload.trace import Trace

IntArray = NDArray[np.int64]


class NonPreemptive(ABC):
    """Subclasses name the order.

    Args:
        placement: where a gang goes.
        seed: of the placement rule's generator.
    """

    name: str
    knows: Knowledge
    blocking: bool  # whether a job that does not fit keeps those behind it waiting too

    def __init__(self, placement: PlacementRule, seed: int) -> None:
        self.placement, self.seed = placement, seed

    @abstractmethod
    def priority(self, trace: Trace) -> IntArray:
        """(J,) the least first, of equals the first submitted."""

    def replay(self, cluster: Cluster, trace: Trace) -> Schedule | None:
        """The schedule at rate 1, without overheads and failures; None: not by a loop of its own.

        Raises:
            InputError: a job can never run, or the times are too long for the loop.
        """
        if not only_gpus_count(cluster, trace):
            return None
        bits = job_bits(trace)
        jobs = np.arange(len(trace))
        columns = (trace.submit_s, trace.duration_s, trace.num_gpus)
        key = self.priority(trace) << bits | jobs
        start = never(len(trace))
        rule = getattr(self.placement, "code", None)
        if numbers_decide(self.placement, cluster):
            loop = in_order if self.blocking else backfilled
            loop(*columns, key, bits, cluster.num_gpus, start)
        elif rule in PACKED and equal_nodes(cluster):
            size = int(cluster.gpus[0])
            consolidated(*columns, key, bits, self.blocking, rule, cluster.num_nodes, size, start)
        else:
            return None
        return schedule_of(trace, start, start + trace.duration_s, np.zeros(len(trace), np.int32))

    def run(self, simulator: ClusterSimulator) -> bool:
        """Go from a simulation's start to its end in compiled code; False: not by this rule."""
        key = self.priority(simulator.trace).astype(np.float64)
        return run_in_order(simulator, self.placement, key, self.seed, blocking=self.blocking)

    def reset(self, simulator: ClusterSimulator) -> None:
        """Before the first event of a simulation."""
        self._rng = np.random.default_rng(self.seed)
        self._priority = self.priority(simulator.trace)

    def decide(self, simulator: ClusterSimulator) -> None:
        """Start what fits."""
        jobs = simulator.pending()
        order = jobs[np.lexsort((jobs, self._priority[jobs]))].tolist()
        start_in_order(simulator, order, self.placement, self._rng, blocking=self.blocking)

    def wake(self, simulator: ClusterSimulator) -> float:
        """Never between events."""
        return np.inf
