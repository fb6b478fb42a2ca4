"""What finished jobs, and nothing else, tell of the others: predictors, and policies that use them.

QSSF orders jobs by predicted GPU time, Gittins by how likely they are to finish for their cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from annotated_types import Gt, Le

from agents.cluster.backfilling import preempt_in_order, start_in_order
from agents.cluster.policy import PlacementRule, Scheduler
from agents.cluster.rules.gangs import BestFit
from agents.solver import Knowledge
from envs.arrays import FloatArray, IntArray, sums_before
from envs.bounds import Positive, bounded
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import FINISHED, PENDING, RUNNING
from envs.cluster.workload.trace import WHOLE_GPU, Trace
from envs.errors import InputError

AboveZero = Annotated[float, Gt(0.0)]
REACHED = 1.0 - 1e-12  # part of a limit at which a job is demoted: rounding of executed times


class Finished:
    """Finished jobs, each once."""

    def __init__(self, simulator: ClusterSimulator) -> None:
        self._known = np.zeros(len(simulator.trace), np.bool_)

    def new(self, simulator: ClusterSimulator) -> IntArray:
        """Jobs that finished since the last call, by completion."""
        if simulator.state.clock[0]["finished"] == np.count_nonzero(self._known):
            return np.zeros(0, np.int64)
        records = simulator.state.jobs
        jobs = np.flatnonzero((records["status"] == FINISHED) & ~self._known)
        self._known[jobs] = True
        return jobs[np.argsort(records["finish"][jobs], kind="stable")]


@bounded
@dataclass(eq=False)
class RollingDuration:
    """Predicts durations by exponential averages over similar jobs.

    The rolling estimate of QSSF (Hu et al., Characterization and Prediction of Deep Learning
    Workloads in Large-Scale GPU Datacenters, SC 2021, section 4.2) looks at the user's jobs of
    the same name and gang; its gradient-boosted trees are left out. Here similar jobs are those of
    the same (user, model, gang), else (user, gang), else (user), else (gang), else all: the first
    of these of which one has finished. Each average m becomes m + recency (d - m) with a further
    duration d.

    Args:
        prior_s: seconds where no job at all has finished.
        recency: weight of the latest duration.
        training: jobs that finished before the simulation, or None.
    """

    prior_s: Positive = 3600.0
    recency: Annotated[float, Gt(0.0), Le(1.0)] = 0.3
    training: Trace | None = None

    def reset(self, simulator: ClusterSimulator) -> None:
        self._mean: dict[tuple[object, ...], float] = {}
        self._finished = Finished(simulator)
        if self.training is not None:
            for job in range(len(self.training)):
                self._learn(self.training, job, float(self.training.duration_s[job]))

    def observe(self, simulator: ClusterSimulator, measured: str = "executed") -> IntArray:
        """Learns from the jobs that have finished since, and returns them.

        `measured` is the field of seconds: "attained" counts them on the reference GPU, alone.
        """
        jobs = self._finished.new(simulator)
        for job in jobs:
            self._learn(simulator.trace, int(job), float(simulator.state.jobs[measured][job]))
        return jobs

    def duration(self, trace: Trace, job: int) -> float:
        """Predicted seconds of a job of `trace`."""
        known = (self._mean[key] for key in _classes(trace, job) if key in self._mean)
        return next(known, self.prior_s)

    def _learn(self, trace: Trace, job: int, seconds: float) -> None:
        for key in _classes(trace, job):
            before = self._mean.get(key, seconds)
            self._mean[key] = before + self.recency * (seconds - before)


def _classes(trace: Trace, job: int) -> list[tuple[object, ...]]:
    """Those of the jobs that are similar to one, the smallest first."""
    user, model = trace.user[job], trace.model[job]
    gang = (int(trace.num_gpus[job]), int(trace.gpu_milli[job]))
    found: list[tuple[object, ...]] = [("gang", gang), ("all",)]
    if user is not None:
        found = [("user, gang", user, gang), ("user", user), *found]
        if model is not None:
            found = [("user, model, gang", user, model, gang), *found]
    return found


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


@bounded
class Gittins(Scheduler):
    """Queues by attained service; in a queue the job most likely to finish for its cost first.

    Service is executed seconds x GPUs. A job is in the first queue whose limit it has not reached;
    earlier queues come first; in a queue jobs go by descending index with the queue's quantum, then
    by submission. The distribution of total service is that of the finished jobs, and of a training
    trace if there is one. Queues and indices are brought up to date at every event and when a
    running job reaches its queue's limit. The published simulator has one quantum for all queues
    and measures costs from a service of 0; here the index is as the paper defines it. Promotion of
    starving jobs is left out.

    Guarantees:
        On one GPU and with independent durations of a known distribution the index is optimal
        (Gittins 1979); none for gangs.

    Source:
        Gu, Chowdhury, Shin, Zhu, Jeon, Qian, Liu, Guo, "Tiresias: A GPU Cluster Manager for
        Distributed Deep Learning", NSDI 2019, section 4.2; the index of Gittins, "Bandit Processes
        and Dynamic Allocation Indices", Journal of the Royal Statistical Society B 41(2), 1979.

    Args:
        placement: where a gang goes.
        limits: ascending GPU-seconds at which queues end; the last queue has none.
        quanta: GPU-seconds, one per queue; None: no limit.
        training: jobs whose service is known beforehand, or None.
        seed: of the placement rule's generator.

    Raises:
        InputError: limits that do not ascend from above 0, or another number of quanta.
    """

    name = "gittins"
    knows: Knowledge = "predictions"

    def __init__(
        self,
        placement: PlacementRule = BestFit(),
        limits: Sequence[float] = (3250.0, 7200.0),
        quanta: Sequence[AboveZero | None] = (3250.0, 7200.0, None),
        training: Trace | None = None,
        seed: int = 0,
    ) -> None:
        self.limits = np.array(limits, np.float64)
        if (np.diff(self.limits, prepend=0.0) <= 0.0).any():
            raise InputError(f"{list(limits)} do not ascend from above 0", field="limits")
        if len(quanta) != len(limits) + 1:
            raise InputError(f"{len(limits) + 1} queues, {len(quanta)} quanta", field="quanta")
        self.quanta = np.array([np.inf if q is None else q for q in quanta], np.float64)
        self.placement, self.training, self.seed = placement, training, seed

    def reset(self, simulator: ClusterSimulator) -> None:
        self._rng = np.random.default_rng(self.seed)
        known = np.zeros(0) if self.training is None else self.training.gpu_seconds
        self._services = np.sort(known)
        self._finished = Finished(simulator)
        records = simulator.state.jobs
        self._gpus = records["gpus"] * (records["milli"] / WHOLE_GPU)

    def decide(self, simulator: ClusterSimulator) -> None:
        """Gives the GPUs to the first jobs of the first queues."""
        simulator.settle()
        records = simulator.state.jobs
        new = self._finished.new(simulator)
        if len(new):
            services = records["executed"][new] * self._gpus[new]
            self._services = np.sort(np.concatenate([self._services, services]))
        if simulator.state.clock[0]["pending"] == 0:
            return
        jobs = np.flatnonzero((records["status"] == PENDING) | (records["status"] == RUNNING))
        service = records["executed"][jobs] * self._gpus[jobs]
        queue = self._queue(service)
        index = gittins_index(self._services, service, self.quanta[queue])
        order = jobs[np.lexsort((-index, queue))].tolist()
        preempt_in_order(simulator, order, self.placement, self._rng)

    def wake(self, simulator: ClusterSimulator) -> float:
        """The first whole second from now at which a running job has reached a limit."""
        clock = simulator.state.clock[0]
        if clock["pending"] == 0:
            return np.inf
        jobs = simulator.running()
        jobs = jobs[self._gpus[jobs] > 0.0]
        records = simulator.state.jobs[jobs]
        executed = records["executed"] + (simulator.now - records["settled"])
        service = executed * self._gpus[jobs]
        limit = np.append(self.limits, np.inf)[self._queue(service)]
        seconds = np.ceil((limit - service) / self._gpus[jobs] * REACHED)
        return float((simulator.now + np.maximum(seconds, 1.0)).min(initial=np.inf))

    def _queue(self, service: FloatArray) -> IntArray:
        return np.searchsorted(self.limits * REACHED, service, side="right")


def gittins_index(services: FloatArray, attained: FloatArray, quantum: FloatArray) -> FloatArray:
    """P(S - a <= q | S > a) / E[min(S - a, q) | S > a], per GPU-second.

    0 where no known service exceeds a: nothing is known of such a job.

    Args:
        services: (K,) known values of S, ascending.
        attained: (A,) a.
        quantum: (A,) q, above 0.
    """
    total = sums_before(services)
    start = np.searchsorted(services, attained, side="right")
    end = np.searchsorted(services, attained + quantum, side="right")
    longer, finishing = len(services) - start, end - start
    beyond = len(services) - end
    cut = np.where(beyond > 0, quantum, 0.0) * beyond
    cost = total[end] - total[start] - attained * finishing + cut
    index: FloatArray = np.where(longer > 0, finishing / np.where(cost > 0.0, cost, 1.0), 0.0)
    return index
