"""The jobs with the least left run, and preempt others for it."""

from __future__ import annotations

import numpy as np

from agents.cluster.loops.shortest_remaining import shortest_remaining
from agents.cluster.loops.undisturbed import (
    job_bits,
    never,
    numbers_decide,
    only_gpus_count,
    schedule_of,
)
from agents.cluster.ordered.replay import run_shortest_first
from agents.cluster.passes import preempt_in_order
from agents.cluster.policy import Knowledge, PlacementRule
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import PENDING, RUNNING
from envs.cluster.simulation.schedule import Schedule
from envs.cluster.workload.trace import WHOLE_GPU, Trace


class ShortestRemaining:
    """Subclasses say what is left: seconds, or seconds times GPUs.

    At every event jobs are sorted by what is left; equal ones stay in the order of the sort before,
    new ones come last.

    Args:
        placement: where a gang goes.
        seed: of the placement rule's generator.
    """

    name: str
    knows: Knowledge = "durations"
    times_gpus: bool

    def __init__(self, placement: PlacementRule, seed: int) -> None:
        self.placement, self.seed = placement, seed

    def replay(self, cluster: Cluster, trace: Trace) -> Schedule | None:
        """The schedule at rate 1, without overheads and failures; None: not by a loop of its own.

        Raises:
            InputError: a job can never run, or the times are too long for the loop.
        """
        if not (only_gpus_count(cluster, trace) and numbers_decide(self.placement, cluster)):
            return None
        start, finish = never(len(trace)), never(len(trace))
        preemptions = np.zeros(len(trace), np.int32)
        columns = (trace.submit_s, trace.duration_s, trace.num_gpus)
        bits, gpus = job_bits(trace), cluster.num_gpus
        shortest_remaining(*columns, self.times_gpus, bits, gpus, start, finish, preemptions)
        return schedule_of(trace, start, finish, preemptions)

    def run(self, simulator: ClusterSimulator) -> bool:
        """Go from a simulation's start to its end in compiled code; False: not by this rule."""
        times_gpus = self.times_gpus
        return run_shortest_first(simulator, self.placement, self.seed, times_gpus=times_gpus)

    def reset(self, simulator: ClusterSimulator) -> None:
        """Before the first event of a simulation."""
        self._rng = np.random.default_rng(self.seed)
        self._sorted: list[int] = []

    def decide(self, simulator: ClusterSimulator) -> None:
        """Give the GPUs to the jobs with the least left."""
        simulator.settle()
        jobs = simulator.state.jobs
        left = jobs["remaining"]
        if self.times_gpus:
            left = left * jobs["gpus"] * (jobs["milli"] / WHOLE_GPU)
        known = np.array(self._sorted, np.int64)
        known = known[np.isin(jobs["status"][known], (PENDING, RUNNING))]
        new = np.setdiff1d(simulator.pending(), known)
        order = np.concatenate([known, new])
        self._sorted = order[np.argsort(left[order], kind="stable")].tolist()
        preempt_in_order(simulator, self._sorted, self.placement, self._rng)

    def wake(self, simulator: ClusterSimulator) -> float:
        """Never between events."""
        return np.inf
