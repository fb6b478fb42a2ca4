"""Rounds by hand, and the shares that they realise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from agents.cluster.fairness import LeastAttainedService, MaxMinFairness
from agents.cluster.replay import simulate
from agents.cluster.rounds import (
    Demand,
    RoundBasedPolicy,
    ShareRule,
    demand_of,
    one_pool,
    pool_per_type,
)
from agents.solver import Knowledge
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.workload.trace import Labels, Trace
from tests.agents.cluster.further_policies import in_rounds
from tests.agents.cluster.small_clusters import LowestNodes, Speeds
from tests.refusal import refusal

FloatArray = NDArray[np.float64]


class Given:
    """Shares by job number."""

    name = "given"
    knows: Knowledge = "nothing"

    def __init__(self, shares: list[float]) -> None:
        self.given = np.array(shares)
        self.computed = 0

    def reset(self, simulator: ClusterSimulator) -> None:
        self.computed = 0

    def pools(self, cluster: Cluster) -> NDArray[np.int64]:
        return one_pool(cluster)

    def shares(self, simulator: ClusterSimulator, demand: Demand) -> FloatArray:
        self.computed += 1
        shares: FloatArray = self.given[demand.jobs][:, None]
        return shares


def test_two_jobs_take_turns() -> None:
    trace = Trace.of("two", [0, 0], [720, 720], [1, 1])
    schedule = simulate(
        in_rounds(LeastAttainedService()), ClusterSimulator(Cluster.uniform(1, 1), trace)
    )
    assert schedule.finish.tolist() == [1080.0, 1440.0]
    assert schedule.preemptions.tolist() == [1, 1]


def test_arrivals_wait_for_the_next_round_unless_there_is_no_job() -> None:
    trace = Trace.of("three", [0, 100, 2000], [500, 500, 10], [1, 1, 1])
    schedule = simulate(
        in_rounds(LeastAttainedService()), ClusterSimulator(Cluster.uniform(1, 2), trace)
    )
    assert schedule.start.tolist() == [0.0, 360.0, 2000.0]


def test_rounds_that_change_nothing_are_skipped() -> None:
    trace = Trace.of("long", [0, 90], [10**6, 10**6], [1, 1])
    policy, simulator = in_rounds(Given([1.0, 1.0])), ClusterSimulator(Cluster.uniform(1, 2), trace)
    policy.reset(simulator)
    decisions = 0
    while not simulator.done:
        simulator.advance(policy.wake(simulator))
        policy.decide(simulator)
        decisions += 1
    assert decisions == 5  # two arrivals, the round after the second, two completions
    assert simulator.schedule().finish.tolist() == [10.0**6, 10.0**6 + 360.0]


@pytest.mark.parametrize(
    ("gangs", "shares", "gpus"),
    [
        ([1, 1, 1], [0.9, 0.6, 0.5], 2),
        ([1, 1, 2], [2 / 3, 2 / 3, 1 / 3], 2),
        ([1, 3, 4], [0.5, 0.5, 0.5], 4),
        ([2, 2, 4], [0.3, 0.3, 0.7], 4),
        ([4, 4, 4], [0.6, 0.3, 0.1], 4),
    ],
)
def test_time_received_comes_to_the_shares(
    gangs: list[int], shares: list[float], gpus: int
) -> None:
    rounds = 400
    jobs = len(gangs)
    trace = Trace.of("long", [0] * jobs, [10**7] * jobs, gangs)
    rule = Given(shares)
    policy, simulator = in_rounds(rule), ClusterSimulator(Cluster.uniform(1, gpus), trace)
    policy.reset(simulator)
    while simulator.now < rounds * 360.0:
        simulator.advance(policy.wake(simulator))
        policy.decide(simulator)
    simulator.settle()
    received = simulator.state.jobs["executed"] / simulator.now
    assert rule.computed == 1
    # What X leaves idle goes to whoever fits; nobody gets less than X, but for the last rounds.
    assert (received >= np.array(shares) - 0.02).all()
    if np.dot(gangs, shares) == pytest.approx(gpus):
        np.testing.assert_allclose(received, shares, atol=0.02)


def test_a_gang_without_a_place_makes_those_behind_it_move() -> None:
    """A gang of 2 on one node: two single jobs are spread over both nodes and have to move."""

    class WholeNode(LowestNodes):
        def place(
            self, simulator: ClusterSimulator, job: int, rng: np.random.Generator
        ) -> list[tuple[int, int]] | None:
            gpus = int(simulator.state.jobs[job]["gpus"])
            free = simulator.state.nodes["free"]
            if gpus == 1:  # spread
                return [(int(np.argmax(free)), 1)] if free.max() else None
            return [(int(np.argmax(free)), gpus)] if free.max() >= gpus else None

    trace = Trace.of("three", [0, 0, 10], [3600, 3600, 360], [1, 1, 2])
    simulator = ClusterSimulator(Cluster.uniform(2, 2), trace, keep_runs=True)
    policy = RoundBasedPolicy(LeastAttainedService(), WholeNode(), 360.0, 0)
    schedule = simulate(policy, simulator)
    assert schedule.start.tolist() == [0.0, 0.0, 360.0]
    assert schedule.finish[2] == 720.0
    assert schedule.finish[:2].tolist() == [3600.0, 3600.0]


def test_gangs_stay_on_one_gpu_type_and_find_the_better_one() -> None:
    """One V100 and one K80, on which the second job is far slower.

    Over what half the time on each would give, both get 1: half of the V100 each, throughputs 0.95
    and 0.55. The first ends at 3600 / 0.95 = 3789 s, and the second has the V100 for the rest.
    """
    trace = Trace.of("two", [0, 0], [3600, 3600], [1, 1])
    cluster = Cluster.uniform(2, 1, gpu_types=("V100", "K80"))
    rates = Speeds(np.array([[1.0, 0.9], [1.0, 0.1]]))
    simulator = ClusterSimulator(cluster, trace, rates=rates, keep_runs=True)
    schedule = simulate(in_rounds(MaxMinFairness({})), simulator)
    first = 3600 / 0.95
    assert schedule.finish[0] == pytest.approx(first, abs=360.0)
    assert schedule.finish[1] == pytest.approx(first + 3600 - 0.55 * first, abs=720.0)
    assert schedule.runs is not None
    for job in (0, 1):
        runs = schedule.runs[(schedule.runs["job"] == job) & (schedule.runs["end"] <= 3600.0)]
        on_v100 = (runs["end"] - runs["start"])[runs["node"] == 0].sum()
        assert on_v100 == pytest.approx(1800.0, abs=360.0)


@pytest.mark.parametrize("rule", [LeastAttainedService(), MaxMinFairness({})])
def test_fair_shares_of_gangs(rule: ShareRule) -> None:
    """Gangs of 1, 1, 2 and 5 on 4 GPUs: as many GPUs each on average; 5 cannot run at all."""
    trace = Trace.of("gangs", [0] * 4, [10] * 4, [1, 1, 2, 5])
    simulator = ClusterSimulator(Cluster.uniform(1, 5), trace)
    rule.reset(simulator)
    rates = np.array([[1.0], [1.0], [1.0], [0.0]])
    demand = Demand(np.arange(4), np.array([1.0, 1.0, 2.0, 5.0]), rates, np.array([2.0]))
    shares = rule.shares(simulator, demand)
    np.testing.assert_allclose(shares[:, 0], [2 / 3, 2 / 3, 1 / 3, 0.0])


def test_demand_of_types_and_failures() -> None:
    types = Labels.of(["V100", "K80|V100", "K80"])
    trace = replace(Trace.of("typed", [0] * 3, [10] * 3, [1, 3, 2]), gpu_type=types)
    cluster = Cluster.uniform(4, 2, gpu_types=("V100", "K80"))
    rates = Speeds(np.array([[1.0, 0.5], [1.0, 0.4], [1.0, 0.3]]))
    simulator = ClusterSimulator(cluster, trace, rates=rates)
    jobs = np.arange(3)
    demand = demand_of(simulator, jobs, pool_per_type(cluster))
    assert demand.rates.tolist() == [[1.0, 0.0], [1.0, 0.4], [0.0, 0.3]]
    assert demand.capacity.tolist() == [4.0, 4.0]
    simulator.state.nodes["up"][0] = 0
    demand = demand_of(simulator, jobs, pool_per_type(cluster))
    assert demand.rates.tolist() == [[1.0, 0.0], [0.0, 0.4], [0.0, 0.3]]
    assert demand.capacity.tolist() == [2.0, 4.0]
    assert demand_of(simulator, jobs, one_pool(cluster)).rates.tolist() == [[1.0]] * 3


def test_weights_of_queues() -> None:
    queue = Labels.of(["paying", "free"])
    trace = Trace.of("two", [0, 0], [36000, 36000], [1, 1])
    trace = replace(trace, queue=queue)
    simulator = ClusterSimulator(Cluster.uniform(1, 1), trace)
    schedule = simulate(in_rounds(MaxMinFairness({"paying": 2.0})), simulator)
    assert schedule.finish[0] == pytest.approx(36000 * 1.5, abs=720.0)


def test_what_is_refused() -> None:
    trace = Trace.of("wide", [0], [10], [3])
    cluster = Cluster.uniform(2, 2, gpu_types=("V100", "K80"))
    with refusal("no pool of alike GPUs holds the 3 GPUs"):
        in_rounds(MaxMinFairness({})).reset(ClusterSimulator(cluster, trace))
    in_rounds(LeastAttainedService()).reset(ClusterSimulator(cluster, trace))
    with refusal("round_s"):
        in_rounds(LeastAttainedService(), 0.0)
    with refusal(r"weights\.a"):
        MaxMinFairness({"a": 0.0})
