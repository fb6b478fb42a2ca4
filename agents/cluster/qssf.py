"""Quasi-shortest-service-first (Helios; Hu et al., SC 2021, section 4.2)."""

from __future__ import annotations

import numpy as np

from agents.cluster.passes import start_in_order
from agents.cluster.policy import Knowledge, PlacementRule
from agents.cluster.prediction import RollingDuration
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.workload.trace import WHOLE_GPU


class QuasiShortestServiceFirst:
    """Starts the job with the least predicted GPU time first; nothing is preempted.

    A job's GPU time, predicted duration x GPUs, is predicted once, when it arrives. The published
    simulation lets a first job that does not fit block the others.

    Args:
        placement: where a gang goes.
        durations: the predictor.
        blocking: whether a job that does not fit blocks those behind it; otherwise they backfill.
        seed: of the placement rule's generator.
    """

    name = "qssf"
    knows: Knowledge = "predictions"

    def __init__(
        self, placement: PlacementRule, durations: RollingDuration, blocking: bool, seed: int
    ) -> None:
        self.placement, self.durations = placement, durations
        self.blocking, self.seed = blocking, seed

    def reset(self, simulator: ClusterSimulator) -> None:
        """Before the first event of a simulation."""
        self._rng = np.random.default_rng(self.seed)
        self.durations.reset(simulator)
        self._service = np.full(len(simulator.trace), np.nan)  # predicted GPU-seconds

    def decide(self, simulator: ClusterSimulator) -> None:
        """Starts pending jobs by predicted GPU time."""
        self.durations.observe(simulator)
        jobs = simulator.pending()
        for job in jobs[np.isnan(self._service[jobs])]:
            record = simulator.state.jobs[job]
            gpus = record["gpus"] * record["milli"] / WHOLE_GPU
            self._service[job] = gpus * self.durations.duration(simulator.trace, int(job))
        order = jobs[np.lexsort((jobs, self._service[jobs]))].tolist()
        start_in_order(simulator, order, self.placement, self._rng, blocking=self.blocking)

    def wake(self, simulator: ClusterSimulator) -> float:
        """Never between events."""
        return np.inf
