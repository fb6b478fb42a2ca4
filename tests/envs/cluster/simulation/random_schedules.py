"""Schedules of small clusters on which jobs start and stop at random."""

from __future__ import annotations

import numpy as np

from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import Schedule
from envs.cluster.workload.trace import Trace

PREEMPTED = 0  # a seed with which jobs are preempted


def random_schedule(seed: int, *, preempt: bool) -> tuple[Schedule, int]:
    """A schedule of up to twelve jobs, and the GPUs of its cluster."""
    rng = np.random.default_rng(seed)
    cluster = Cluster.uniform(int(rng.integers(1, 4)), int(rng.integers(1, 4)))
    jobs = int(rng.integers(1, 13))
    trace = Trace.of(
        "random",
        np.sort(rng.integers(0, 30, jobs)),
        rng.integers(1, 20, jobs),
        rng.integers(1, cluster.num_gpus + 1, jobs),
    )
    simulator = ClusterSimulator(cluster, trace, keep_runs=True)
    while not simulator.done:
        simulator.advance(simulator.now + 3 if preempt else np.inf)
        if preempt and rng.random() < 0.3:
            for job in simulator.running():
                if rng.random() < 0.5:
                    simulator.preempt(int(job))
        for job in simulator.pending():
            shares, need = [], int(trace.num_gpus[job])
            for node in rng.permutation(cluster.num_nodes):
                take = min(need, int(simulator.state.nodes[node]["free"]))
                if take:
                    shares.append((int(node), take))
                    need -= take
            if need == 0:
                simulator.start(int(job), shares)
    return simulator.schedule(), cluster.num_gpus
