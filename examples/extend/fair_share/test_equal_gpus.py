"""Shares worked out by hand, and jobs that take turns."""

from agents.cluster.replay import replay
from agents.cluster.rounds import Pools, RoundBasedPolicy
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.workload.trace import Trace
from examples.extend.fair_share.equal_gpus import EqualGpus

CLUSTER = Cluster.uniform(1, 4)
TRACE = Trace.of("two", submit_s=[0, 0], duration_s=[7200, 7200], num_gpus=[4, 1])


def test_a_gang_holds_two_gpus_on_average_beside_a_job_of_one() -> None:
    simulator = ClusterSimulator(CLUSTER, TRACE)
    simulator.advance()  # to the arrival of both
    demand = Pools.of(CLUSTER, by_type=False).demand(simulator, simulator.pending())
    assert EqualGpus().shares(demand)[:, 0].tolist() == [0.5, 1.0]


def test_the_small_job_runs_and_the_gang_takes_turns_with_it() -> None:
    schedule = replay(RoundBasedPolicy(EqualGpus()), CLUSTER, TRACE)
    assert schedule.finish[1] < schedule.finish[0]
    assert schedule.preemptions[0] > 0
