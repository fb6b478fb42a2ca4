"""EASY backfilling."""

from __future__ import annotations

import numpy as np

from agents.cluster.loops.easy import easy
from agents.cluster.loops.undisturbed import (
    job_bits,
    never,
    numbers_decide,
    only_gpus_count,
    schedule_of,
)
from agents.cluster.passes import request, start, start_in_order
from agents.cluster.policy import Knowledge, PlacementRule
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.schedule import Schedule
from envs.cluster.workload.trace import WHOLE_GPU, Trace


class EASY:
    """First in, first out, with a reservation for the first job that has to wait.

    That job, the head, is promised the time at which enough GPUs will be free if no job starts any
    more. Another may start before it if it ends by then, or if it takes only GPUs that the head
    will leave over. Free GPUs are counted for the promise, wherever they are: a rule that
    consolidates may keep the head waiting for longer.

    Reference: Mu'alem and Feitelson, "Utilization, Predictability, Workloads, and User Runtime
    Estimates in Scheduling the IBM SP2 with Backfilling", IEEE TPDS 12(6), 2001, section 2.2.

    Args:
        placement: where a gang goes.
        seed: of the placement rule's generator.
    """

    name = "easy"
    knows: Knowledge = "durations"

    def __init__(self, placement: PlacementRule, seed: int) -> None:
        self.placement, self.seed = placement, seed

    def replay(self, cluster: Cluster, trace: Trace) -> Schedule | None:
        """The schedule at rate 1, without overheads and failures; None: not by a loop of its own.

        Raises:
            InputError: a job can never run, or the times are too long for the loop.
        """
        if not (only_gpus_count(cluster, trace) and numbers_decide(self.placement, cluster)):
            return None
        begun = never(len(trace))
        columns = (trace.submit_s, trace.duration_s, trace.num_gpus)
        easy(*columns, job_bits(trace), cluster.num_gpus, begun)
        finish = begun + trace.duration_s
        return schedule_of(trace, begun, finish, np.zeros(len(trace), np.int32))

    def reset(self, simulator: ClusterSimulator) -> None:
        """Before the first event of a simulation."""
        self._rng = np.random.default_rng(self.seed)

    def decide(self, simulator: ClusterSimulator) -> None:
        """Start jobs up to the head, then those that do not delay it."""
        simulator.settle()
        order = np.sort(simulator.pending()).tolist()
        begun = start_in_order(simulator, order, self.placement, self._rng, blocking=True)
        if len(begun) == len(order):
            return
        head, *others = order[len(begun) :]
        jobs = simulator.state.jobs
        gpus = jobs["gpus"] * (jobs["milli"] / WHOLE_GPU)
        until, spare = self._promise(simulator, float(gpus[head]))
        hopeless = {request(simulator, head)}
        for job in others:
            ends = simulator.now + float(jobs[job]["remaining"])
            wanted = request(simulator, job)
            if wanted in hopeless or (ends > until and gpus[job] > spare):
                continue
            shares = self.placement.place(simulator, job, self._rng)
            if shares is None:
                hopeless.add(wanted)
                continue
            start(simulator, job, shares)
            if ends > until:
                spare -= float(gpus[job])

    def wake(self, simulator: ClusterSimulator) -> float:
        """Never between events."""
        return np.inf

    @staticmethod
    def _promise(simulator: ClusterSimulator, need: float) -> tuple[float, float]:
        """When `need` GPUs will be free, and how many more; (inf, inf): not that nodes are down."""
        jobs = simulator.state.jobs
        running = simulator.running()
        running = running[np.argsort(jobs["end"][running], kind="stable")]
        held = jobs["gpus"][running] * (jobs["milli"][running] / WHOLE_GPU)
        nodes = simulator.state.nodes
        there = float(nodes["gpus"][nodes["up"] == 1].sum())
        free = there - held.sum() + np.concatenate([[0.0], np.cumsum(held)])
        enough = np.flatnonzero(free >= need)
        if len(enough) == 0:
            return np.inf, np.inf
        ends = np.concatenate([[simulator.now], jobs["end"][running]])
        until = float(ends[enough[0]])
        return until, float(free[np.flatnonzero(ends <= until)[-1]] - need)
