"""What jobs may still need, as a learned posterior has it: means, draws, and an order by them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from agents.cluster.prediction import RollingDuration
from agents.cluster.shipped import scheduler_folder
from agents.solver import Knowledge
from envs.arrays import FloatArray, IntArray
from envs.cluster.environment.duration_features import DurationFeatures
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import ClusterState
from envs.cluster.workload.trace import WHOLE_GPU
from models.durations.bins import LONGEST_S, SHORTEST_S, middles, upper_edges_s
from models.durations.index import read_posterior

LEAST_S = SHORTEST_S / 6.0  # seconds: draws from the first bin are above it
MOST_S = 2.0 * LONGEST_S  # and those from the last below


class WorkLeft:
    """The posterior over a job's remaining work, given its progress and that of jobs like it.

    Args:
        path: the folder that `experiments.train task=durations` wrote, or the name of a shipped
            scheduler whose posterior it is.

    Raises:
        InputError: the folder holds no posterior.
    """

    def __init__(self, path: str = "unknown_durations") -> None:
        folder = Path(path)
        if not folder.is_dir():
            folder = scheduler_folder(path) / "durations"
        self.folder = folder
        self._posterior, self.history = read_posterior(folder)

    def reset(self, simulator: ClusterSimulator) -> None:
        """At the start of a simulation."""
        self._features = DurationFeatures(simulator, self.history)

    def mean(self, state: ClusterState, jobs: IntArray) -> FloatArray:
        """(A,) mean seconds of work left of settled jobs that have arrived."""
        return self._chances(state, jobs) @ np.exp(middles())

    def draws(
        self, state: ClusterState, jobs: IntArray, count: int, rng: np.random.Generator
    ) -> FloatArray:
        """(count, A) seconds of work left of settled jobs, drawn independently for each.

        The draws of a job are stratified: each of `count` equal parts of its chances has one.
        Within a bin logarithms are evenly spread.
        """
        chance = np.cumsum(self._chances(state, jobs), axis=1)
        chance /= chance[:, -1:]
        within = (np.arange(count)[:, None] + rng.random((count, len(jobs)))) / count
        place = (rng.permuted(within, axis=0)[:, :, None] > chance).sum(axis=2)
        edges = np.log(np.concatenate([[LEAST_S], upper_edges_s(), [MOST_S]]))
        width = edges[place + 1] - edges[place]
        drawn: FloatArray = np.exp(edges[place] + rng.random(place.shape) * width)
        return drawn

    def _chances(self, state: ClusterState, jobs: IntArray) -> FloatArray:
        """(A, 26) of the bins."""
        rows = self._features.rows(state, jobs)
        return self._posterior.chances(rows).astype(np.float64) if len(jobs) else np.zeros((0, 26))


class ExpectedService:
    """Jobs by ln GPU-seconds that they are expected to need.

    The seconds are the geometric mean of two that err differently: the posterior's mean, and a
    rolling average over the finished jobs that are similar. Sound of jobs that have not run.

    Args:
        posterior: of the work that jobs need.
        durations: the averages.
    """

    name = "expected_service"
    knows: Knowledge = "predictions"

    def __init__(
        self, posterior: WorkLeft | None = None, durations: RollingDuration = RollingDuration()
    ) -> None:
        self.posterior, self.durations = posterior or WorkLeft(), replace(durations)

    def reset(self, simulator: ClusterSimulator) -> None:
        self._simulator = simulator
        self.posterior.reset(simulator)
        self.durations.reset(simulator)

    def __call__(self, state: ClusterState, jobs: IntArray) -> FloatArray:
        """(A,) of settled jobs that wait."""
        self.durations.observe(self._simulator, "attained")
        trace, records = self._simulator.trace, state.jobs[jobs]
        average = np.array([self.durations.duration(trace, job) for job in jobs.tolist()])
        gpus = np.maximum(records["gpus"] * (records["milli"] / WHOLE_GPU), 1.0 / WHOLE_GPU)
        key: FloatArray = np.log(gpus) + np.log(average * self.posterior.mean(state, jobs)) / 2.0
        return key


def futures_of(
    posterior: WorkLeft | None, simulator: ClusterSimulator, count: int, rng: np.random.Generator
) -> list[ClusterSimulator]:
    """Simulations that go on from here with drawn work, without further arrivals.

    Without a posterior there is one, the future as it will be.
    """
    if posterior is None:
        return [simulator]
    simulator.settle()
    jobs = np.concatenate([simulator.pending(), simulator.running()])
    drawn = posterior.draws(simulator.state, jobs, count, rng)
    return [simulator.imagined(jobs, remaining) for remaining in drawn]
