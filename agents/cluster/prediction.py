"""Durations predicted from finished jobs and from nothing else, and a queue ordered by them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from annotated_types import Gt, Le

from agents.cluster.backfilling import start_in_order
from agents.cluster.policy import PlacementRule, Scheduler
from agents.cluster.rules.gangs import BestFit
from agents.solver import Knowledge
from envs.arrays import FloatArray, IntArray
from envs.bounds import Positive, bounded
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import FINISHED
from envs.cluster.workload.trace import WHOLE_GPU, Trace

Key = tuple[object, ...]


class Finished:
    """Tells of every job once that it has finished."""

    def __init__(self, simulator: ClusterSimulator) -> None:
        self._told = np.zeros(len(simulator.trace), np.bool_)
        self._count = 0

    def new(self, simulator: ClusterSimulator) -> IntArray:
        """Jobs that finished since the last call, by completion."""
        finished = int(simulator.state.clock[0]["finished"])
        if finished == self._count:
            return np.zeros(0, np.int64)
        self._count = finished
        records = simulator.state.jobs
        jobs = np.flatnonzero((records["status"] == FINISHED) & ~self._told)
        self._told[jobs] = True
        return jobs[np.argsort(records["finish"][jobs], kind="stable")]


@bounded
@dataclass(eq=False)
class RollingDuration:
    """The duration of a job's like: an average that forgets.

    The rolling estimate of QSSF (Hu et al., Characterization and Prediction of Deep Learning
    Workloads in Large-Scale GPU Datacenters, SC 2021, section 4.2) looks at the user's jobs of
    the same name and gang; its gradient-boosted trees are left out. Here the likes of a job are
    those of the same (user, model, gang), else (user, gang), else (user), else (gang), else all:
    the first of these of which one has finished. Each average m becomes m + recency (d - m) with a
    further duration d.

    Args:
        prior_s: seconds where no job at all has finished.
        recency: weight of the latest duration.
        training: jobs that finished before the simulation, or None.
    """

    prior_s: Positive = 3600.0
    recency: Annotated[float, Gt(0.0), Le(1.0)] = 0.3
    training: Trace | None = None

    def reset(self, simulator: ClusterSimulator) -> None:
        self._mean: dict[Key, float] = {}
        self._finished = Finished(simulator)
        if self.training is not None:
            for job in range(len(self.training)):
                self._learn(self.training, job, float(self.training.duration_s[job]))

    def observe(self, simulator: ClusterSimulator) -> IntArray:
        """Learns from the jobs that have finished since, and returns them."""
        jobs = self._finished.new(simulator)
        for job in jobs:
            self._learn(simulator.trace, int(job), float(simulator.state.jobs["executed"][job]))
        return jobs

    def duration(self, trace: Trace, job: int) -> float:
        """Predicted seconds of a job of `trace`."""
        for key in _keys(trace, job):
            if key in self._mean:
                return self._mean[key]
        return self.prior_s

    def _learn(self, trace: Trace, job: int, seconds: float) -> None:
        for key in _keys(trace, job):
            before = self._mean.get(key, seconds)
            self._mean[key] = before + self.recency * (seconds - before)


def _keys(trace: Trace, job: int) -> list[Key]:
    user, model = trace.user[job], trace.model[job]
    gang = (int(trace.num_gpus[job]), int(trace.gpu_milli[job]))
    keys: list[Key] = []
    if user is not None:
        keys += [("like", user, model, gang)] if model is not None else []
        keys += [("user, gang", user, gang), ("user", user)]
    return [*keys, ("gang", gang), ("all",)]


class RemainingTime:
    """What is left of a job, from its predicted duration and from how wrong predictions were.

    With d the duration predicted when the job was first seen, a what it has executed, and x the
    ratios of duration to prediction of the finished jobs: d E[x - a / d | x > a / d]. Where no
    finished job has outlived its prediction by as much: max(d - a, a), as much again as so far at
    the latest.

    Args:
        durations: the predictor.
    """

    def __init__(self, durations: RollingDuration = RollingDuration()) -> None:
        self.durations = replace(durations)

    def reset(self, simulator: ClusterSimulator) -> None:
        """Knows what the predictor knows; no prediction has been wrong."""
        self.durations.reset(simulator)
        self._predicted = np.full(len(simulator.trace), np.nan)
        self._ratios = np.zeros(0)

    def observe(self, simulator: ClusterSimulator) -> None:
        """Learns from the jobs that have finished since."""
        jobs = self.durations.observe(simulator)
        known = jobs[~np.isnan(self._predicted[jobs])]
        ratios = simulator.state.jobs["executed"][known] / self._predicted[known]
        self._ratios = np.sort(np.concatenate([self._ratios, ratios]))

    def predict(self, simulator: ClusterSimulator, jobs: IntArray) -> FloatArray:
        """(A,) seconds left of settled `jobs`, above 0."""
        for job in jobs[np.isnan(self._predicted[jobs])]:
            self._predicted[job] = self.durations.duration(simulator.trace, int(job))
        predicted, executed = self._predicted[jobs], simulator.state.jobs["executed"][jobs]
        first = np.searchsorted(self._ratios, executed / predicted, side="right")
        above = np.append(np.cumsum(self._ratios[::-1])[::-1], 0.0)[first]
        count = len(self._ratios) - first
        residual = above / np.maximum(count, 1) * predicted - executed
        left: FloatArray = np.where(count > 0, residual, np.maximum(predicted - executed, executed))
        return np.maximum(left, 1.0)


class QuasiShortestServiceFirst(Scheduler):
    """Starts the job with the least predicted GPU time first; nothing is preempted.

    A job's GPU time, predicted duration x GPUs, is predicted once, when it arrives. The published
    simulation lets a first job that does not fit block the others.

    Guarantees:
        None: as good as the predictions.

    Source:
        QSSF of Helios: Hu, Sun, Yan, Wen, Zhang, "Characterization and Prediction of Deep Learning
        Workloads in Large-Scale GPU Datacenters", SC 2021, section 4.2.

    Args:
        placement: where a gang goes.
        durations: the predictor.
        blocking: whether a job that does not fit blocks those behind it; otherwise they backfill.
        seed: of the placement rule's generator.
    """

    name = "qssf"
    knows: Knowledge = "predictions"

    def __init__(
        self,
        placement: PlacementRule = BestFit(),
        durations: RollingDuration = RollingDuration(),
        blocking: bool = True,
        seed: int = 0,
    ) -> None:
        self.placement, self.durations = placement, replace(durations)
        self.blocking, self.seed = blocking, seed

    def reset(self, simulator: ClusterSimulator) -> None:
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
