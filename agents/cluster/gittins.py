"""Discretised 2D-Gittins index (Tiresias; Gu et al., NSDI 2019, section 3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from annotated_types import Gt

from agents.cluster.backfilling import preempt_in_order
from agents.cluster.policy import PlacementRule, Scheduler
from agents.cluster.prediction import Finished
from agents.cluster.rules.gangs import BestFit
from agents.solver import Knowledge
from envs.arrays import FloatArray, sums_before
from envs.bounds import bounded
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import PENDING, RUNNING
from envs.cluster.workload.trace import WHOLE_GPU, Trace
from envs.errors import InputError

AboveZero = Annotated[float, Gt(0.0)]
REACHED = 1.0 - 1e-12  # part of a limit at which a job is demoted: rounding of executed times


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
        queue = np.searchsorted(self.limits * REACHED, service, side="right")
        index = gittins_index(self._services, service, self.quanta[queue])
        order = jobs[np.lexsort((jobs, -index, queue))].tolist()
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
        queue = np.searchsorted(self.limits * REACHED, service, side="right")
        limit = np.append(self.limits, np.inf)[queue]
        seconds = np.ceil((limit - service) / self._gpus[jobs] * REACHED)
        return float((simulator.now + np.maximum(seconds, 1.0)).min(initial=np.inf))


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
