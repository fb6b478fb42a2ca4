"""Two jobs on two nodes, and nodes of different size."""

from dataclasses import replace as changed

import numpy as np

from agents.cluster.queue import FIFO
from agents.cluster.replay import replay
from envs.cluster.nodes import Cluster
from envs.cluster.workload.trace import Trace
from examples.extend.place_rule.fewest_jobs import FewestJobs


def test_a_job_goes_to_the_empty_node() -> None:
    trace = Trace.of("two", submit_s=[0, 1], duration_s=[9, 9], num_gpus=[1, 1])
    cluster = Cluster.uniform(2, 4, nodes_per_rack=1)  # two nodes with four GPUs each
    schedule = replay(FIFO(FewestJobs()), cluster, trace, keep_runs=True)
    assert schedule.runs is not None
    assert schedule.runs["node"].tolist() == [0, 1]


def test_nodes_without_room_are_passed_over() -> None:
    trace = Trace.of("three", submit_s=[0, 1, 2], duration_s=[9, 9, 9], num_gpus=[8, 8, 4])
    cluster = changed(Cluster.uniform(3), gpus=np.array([8, 4, 8], np.int32))
    schedule = replay(FIFO(FewestJobs()), cluster, trace, keep_runs=True)
    assert schedule.runs is not None
    assert schedule.runs["node"].tolist() == [0, 2, 1]
