"""Multilevel feedback queues by attained service, which is GPUs times executed seconds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from agents.cluster.loops.undisturbed import (
    job_bits,
    never,
    numbers_decide,
    only_gpus_count,
    schedule_of,
)
from agents.cluster.ordered.replay import run_by_service
from agents.cluster.passes import preempt_in_order
from agents.cluster.policy import Knowledge, PlacementRule
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import PENDING, RUNNING
from envs.cluster.simulation.schedule import Schedule
from envs.cluster.workload.trace import WHOLE_GPU, Trace
from envs.errors import InputError

FloatArray = NDArray[np.float64]


class AttainedService(ABC):
    """Jobs go down from queue to queue as their service grows; subclasses say when.

    New jobs enter the first queue at its tail, demoted ones the next queue at its tail. GPUs go to
    the queues in turn and to the jobs of each in its order; what does not fit is passed over. Then
    in each queue the jobs that wait go behind those that run, in the same order.

    Args:
        placement: where a gang goes.
        limits: whole GPU-seconds at which a job leaves a queue for the next, ascending.
        seed: of the placement rule's generator.

    Raises:
        InputError: limits that are not ascending or not above 0.
    """

    name: str
    knows: Knowledge = "nothing"
    loop: ClassVar[Callable[..., None]]
    published: ClassVar[bool]  # demotes as Tiresias' simulator does

    def __init__(self, placement: PlacementRule, limits: Sequence[int], seed: int) -> None:
        self.limits = np.array(limits, np.int64)
        if (np.diff(self.limits, prepend=0) <= 0).any() or (self.limits != limits).any():
            problem = f"{list(limits)} are not whole numbers above 0, ascending"
            raise InputError(problem, field="limits")
        self.placement, self.seed = placement, seed

    def replay(self, cluster: Cluster, trace: Trace) -> Schedule | None:
        """The schedule at rate 1, without overheads and failures; None: not by a loop of its own.

        Raises:
            InputError: a job can never run, or the times are too long for the loop.
        """
        if not (only_gpus_count(cluster, trace) and numbers_decide(self.placement, cluster)):
            return None
        job_bits(trace)
        start, finish = never(len(trace)), never(len(trace))
        preemptions = np.zeros(len(trace), np.int32)
        columns = (trace.submit_s, trace.duration_s, trace.num_gpus)
        loop: Any = type(self).loop
        loop(*columns, self.limits, cluster.num_gpus, start, finish, preemptions)
        return schedule_of(trace, start, finish, preemptions)

    def run(self, simulator: ClusterSimulator) -> bool:
        """Go from a simulation's start to its end in compiled code; False: not by this rule."""
        published = type(self).published
        return run_by_service(
            simulator, self.placement, self.limits, self.seed, published=published
        )

    def reset(self, simulator: ClusterSimulator) -> None:
        """Empty queues."""
        self._rng = np.random.default_rng(self.seed)
        jobs = simulator.state.jobs
        self._gpus: FloatArray = jobs["gpus"] * (jobs["milli"] / WHOLE_GPU)
        self._level = np.full(len(jobs), -1)  # -1: not seen yet
        self._queues: list[list[int]] = [[] for _ in range(len(self.limits) + 1)]
        self._ran = np.zeros(len(jobs), np.bool_)

    def decide(self, simulator: ClusterSimulator) -> None:
        """Demote, give the GPUs to the first queues, and put what runs first."""
        simulator.settle()
        jobs, level = simulator.state.jobs, self._level
        service = jobs["executed"] * self._gpus
        new = np.sort(simulator.pending())
        new = new[level[new] < 0]
        demoted: list[tuple[int, int]] = []
        for queue in self._queues:
            for job in queue:
                if self._ran[job] and jobs[job]["status"] in {PENDING, RUNNING}:
                    lower = self.lower(int(level[job]), float(service[job]))
                    if lower != level[job]:
                        demoted.append((job, lower))
        gone = {job for job, _ in demoted}
        for k, queue in enumerate(self._queues):
            self._queues[k] = [
                job
                for job in queue
                if job not in gone and jobs[job]["status"] in {PENDING, RUNNING}
            ]
        for job, lower in sorted(demoted):
            level[job] = lower
            self._queues[lower].append(job)
        level[new] = 0
        self._queues[0] += new.tolist()
        order = [job for queue in self._queues for job in queue]
        preempt_in_order(simulator, order, self.placement, self._rng)
        self._ran = jobs["status"] == RUNNING
        for k, queue in enumerate(self._queues):
            running = [job for job in queue if self._ran[job]]
            self._queues[k] = running + [job for job in queue if not self._ran[job]]

    @abstractmethod
    def lower(self, level: int, service: float) -> int:
        """The queue of a job that is in queue `level` and has so much service."""

    def wake(self, simulator: ClusterSimulator) -> float:
        """When a running job may have to leave its queue."""
        jobs = simulator.running()
        jobs = jobs[(self._gpus[jobs] > 0.0) & (self._level[jobs] < len(self.limits))]
        records = simulator.state.jobs[jobs]
        executed = records["executed"] + (simulator.now - records["settled"])
        seconds = self.until_limit(self.limits[self._level[jobs]], executed, self._gpus[jobs])
        return simulator.now + float(seconds[seconds > 0.0].min(initial=np.inf))

    @abstractmethod
    def until_limit(
        self, limit: NDArray[np.int64], executed: FloatArray, gpus: FloatArray
    ) -> FloatArray:
        """Seconds until running jobs are looked at again; 0: not before the next event.

        Args:
            limit: (R,) GPU-seconds of their queues.
            executed: (R,) seconds.
            gpus: (R,) above 0.
        """
