"""Two jobs whose schedule can be worked out by hand."""

from agents.cluster.replay import replay
from envs.cluster.nodes import Cluster
from envs.cluster.workload.trace import Trace
from examples.extend.queue_policy.widest_first import WidestFirst


def test_the_wider_job_takes_the_gpus_of_the_other() -> None:
    trace = Trace.of(
        "two", submit_s=[0, 10], duration_s=[100, 50], num_gpus=[1, 4], user=["ann", "bob"]
    )
    schedule = replay(WidestFirst(), Cluster.uniform(1, 4), trace)  # one node with four GPUs
    assert schedule.finish.tolist() == [150.0, 60.0]
