"""All ways to a schedule end alike."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from agents.cluster.queue import EASY, FIFO, SRTF, FIFOBackfill
from agents.cluster.replay import StuckError, replay
from agents.cluster.rules.gangs import BestFit
from envs.cluster.nodes import Cluster
from envs.cluster.workload.trace import Trace

CLUSTER = replace(Cluster.uniform(2, 4), cpu_milli=np.array([1000, 1000]))


@pytest.mark.parametrize(
    ("policy", "waiting"), [(FIFO, 2), (FIFOBackfill, 1), (SRTF, 1), (EASY, 1)]
)
def test_a_job_that_no_node_can_hold_leaves_the_policy_stuck(policy: type, waiting: int) -> None:
    trace = Trace.of("t", [0, 1], [5, 5], [1, 1])
    trace = replace(trace, cpu_milli=np.array([5000, 10]))
    with pytest.raises(StuckError, match=f"{policy.name} leaves {waiting} jobs"):
        replay(policy(BestFit(), 0), CLUSTER, trace)


@pytest.mark.parametrize("policy", [FIFO, FIFOBackfill, SRTF, EASY])
def test_jobs_that_fit_all_finish(policy: type) -> None:
    trace = Trace.of("t", [0, 1], [5, 5], [1, 1])
    trace = replace(trace, cpu_milli=np.array([1000, 1000]))
    assert replay(policy(BestFit(), 0), CLUSTER, trace).finish.tolist() == [5.0, 6.0]
