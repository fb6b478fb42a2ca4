"""QSSF by hand: predicted GPU time decides, blocking or not."""

from __future__ import annotations

import pytest

from agents.cluster.prediction import QuasiShortestServiceFirst, RollingDuration
from agents.cluster.replay import simulate
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.workload.trace import Trace
from tests.agents.cluster.small_clusters import LowestNodes


@pytest.mark.parametrize(("blocking", "starts"), [(True, [0, 100, 150]), (False, [0, 100, 50])])
def test_least_predicted_gpu_time_first(blocking: bool, starts: list[int]) -> None:
    """2 GPUs, 1 taken; a gang of 2 (predicted 30 x 2) is before a job of 1 (predicted 80).

    What they really take, 50 s and 10 s, is not known.
    """
    past = Trace.of("past", [0, 0], [80, 30], [1, 2])
    policy = QuasiShortestServiceFirst(
        LowestNodes(), RollingDuration(1.0, 0.5, past), blocking, seed=0
    )
    trace = Trace.of("now", [0, 50, 50], [100, 50, 10], [1, 2, 1])
    schedule = simulate(policy, ClusterSimulator(Cluster.uniform(1, 2), trace))
    assert schedule.start.tolist() == starts
    assert schedule.preemptions.sum() == 0
