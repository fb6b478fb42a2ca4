"""Rounds by hand, and the shares that they realise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from agents.cluster.replay import simulate
from agents.cluster.rounds import Pools, RoundBasedPolicy
from agents.cluster.shares import Demand, LeastAttainedService, MaxMinFairness, ShareRule
from agents.solver import Knowledge
from envs.arrays import FloatArray
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.workload.trace import Labels
from tests.agents.cluster.further_policies import Jobs, in_rounds, on_nodes, trace_of
from tests.agents.cluster.small_clusters import LowestNodes, Speeds
from tests.refusal import refusal


class Given(ShareRule):
    """Shares by job number."""

    name = "given"
    knows: Knowledge = "nothing"

    def __init__(self, shares: list[float]) -> None:
        self.given = np.array(shares)
        self.computed = 0

    def shares(self, demand: Demand) -> FloatArray:
        self.computed += 1
        shares: FloatArray = self.given[demand.jobs][:, None]
        return shares


def test_two_jobs_take_turns() -> None:
    schedule = on_nodes(in_rounds(LeastAttainedService()), [(0, 720, 1)] * 2, 1, 1)
    assert schedule.finish.tolist() == [1080.0, 1440.0]
    assert schedule.preemptions.tolist() == [1, 1]


def test_arrivals_wait_for_the_next_round_unless_there_is_no_job() -> None:
    jobs = [(0, 500, 1), (100, 500, 1), (2000, 10, 1)]
    schedule = on_nodes(in_rounds(LeastAttainedService()), jobs, 1, 2)
    assert schedule.start.tolist() == [0.0, 360.0, 2000.0]


def played(rule: ShareRule, jobs: Jobs, gpus: int, until: float) -> tuple[ClusterSimulator, int]:
    """One node with so many GPUs after that time, and the decisions until then."""
    policy, simulator = in_rounds(rule), ClusterSimulator(Cluster.uniform(1, gpus), trace_of(jobs))
    policy.reset(simulator)
    decisions = 0
    while not simulator.done and simulator.now < until:
        simulator.advance(policy.wake(simulator))
        policy.decide(simulator)
        decisions += 1
    simulator.settle()
    return simulator, decisions


def test_rounds_that_change_nothing_are_skipped() -> None:
    jobs = [(0, 10**6, 1), (90, 10**6, 1)]
    simulator, decisions = played(Given([1.0, 1.0]), jobs, 2, np.inf)
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
    rule = Given(shares)
    simulator, _ = played(rule, [(0, 10**7, gang) for gang in gangs], gpus, 400 * 360.0)
    received = simulator.state.jobs["executed"] / simulator.now
    assert rule.computed == 1
    # What X leaves idle goes to whoever fits; nobody gets less than X, but for the last rounds.
    assert (received >= np.array(shares) - 0.02).all()
    if np.dot(gangs, shares) == pytest.approx(gpus):
        np.testing.assert_allclose(received, shares, atol=0.02)


class SpreadOrWholeNode(LowestNodes):
    """A job of one GPU where most are free, a gang on one node or nowhere."""

    def place(
        self, simulator: ClusterSimulator, job: int, rng: np.random.Generator
    ) -> list[tuple[int, int]] | None:
        gpus, free = int(simulator.state.jobs[job]["gpus"]), simulator.state.nodes["free"]
        return [(int(np.argmax(free)), gpus)] if free.max() >= gpus else None


def test_a_gang_without_a_place_makes_those_behind_it_move() -> None:
    """A gang of 2 on one node: two single jobs are spread over both nodes and have to move."""
    jobs = [(0, 3600, 1), (0, 3600, 1), (10, 360, 2)]
    policy = RoundBasedPolicy(LeastAttainedService(), SpreadOrWholeNode())
    schedule = on_nodes(policy, jobs, 2, 2, keep_runs=True)
    assert schedule.start.tolist() == [0.0, 0.0, 360.0]
    assert schedule.finish.tolist() == [3600.0, 3600.0, 720.0]


def test_gangs_stay_on_one_gpu_type_and_find_the_better_one() -> None:
    """One V100 and one K80, on which the second job is far slower.

    Over what half the time on each would give, both get 1: half of the V100 each, throughputs 0.95
    and 0.55. The first ends at 3600 / 0.95 = 3789 s, and the second has the V100 for the rest.
    """
    cluster = Cluster.uniform(2, 1, gpu_types=("V100", "K80"))
    rates = Speeds(np.array([[1.0, 0.9], [1.0, 0.1]]))
    trace = trace_of([(0, 3600, 1)] * 2)
    simulator = ClusterSimulator(cluster, trace, rates=rates, keep_runs=True)
    schedule = simulate(in_rounds(MaxMinFairness()), simulator)
    first = 3600 / 0.95
    assert schedule.finish[0] == pytest.approx(first, abs=360.0)
    assert schedule.finish[1] == pytest.approx(first + 3600 - 0.55 * first, abs=720.0)
    assert schedule.runs is not None
    for job in (0, 1):
        runs = schedule.runs[(schedule.runs["job"] == job) & (schedule.runs["end"] <= 3600.0)]
        on_v100 = (runs["end"] - runs["start"])[runs["node"] == 0].sum()
        assert on_v100 == pytest.approx(1800.0, abs=360.0)


def test_demand_of_types_and_failures() -> None:
    types = Labels.of(["V100", "K80|V100", "K80"])
    trace = replace(trace_of([(0, 10, 1), (0, 10, 3), (0, 10, 2)]), gpu_type=types)
    cluster = Cluster.uniform(4, 2, gpu_types=("V100", "K80"))
    rates = Speeds(np.array([[1.0, 0.5], [1.0, 0.4], [1.0, 0.3]]))
    simulator = ClusterSimulator(cluster, trace, rates=rates)

    def demand(*, by_type: bool) -> tuple[list[list[float]], list[float]]:
        found = Pools.of(cluster, by_type=by_type).demand(simulator, np.arange(3))
        return found.rates.tolist(), found.capacity.tolist()

    assert demand(by_type=True) == ([[1.0, 0.0], [1.0, 0.4], [0.0, 0.3]], [4.0, 4.0])
    simulator.state.nodes["up"][0] = 0
    assert demand(by_type=True) == ([[1.0, 0.0], [0.0, 0.4], [0.0, 0.3]], [2.0, 4.0])
    assert demand(by_type=False) == ([[1.0]] * 3, [6.0])


def test_weights_of_queues() -> None:
    trace = replace(trace_of([(0, 36000, 1)] * 2), queue=Labels.of(["paying", "free"]))
    simulator = ClusterSimulator(Cluster.uniform(1, 1), trace)
    schedule = simulate(in_rounds(MaxMinFairness({"paying": 2.0})), simulator)
    assert schedule.finish[0] == pytest.approx(36000 * 1.5, abs=720.0)


def test_what_is_refused() -> None:
    cluster = Cluster.uniform(2, 2, gpu_types=("V100", "K80"))
    simulator = ClusterSimulator(cluster, trace_of([(0, 10, 3)]))
    with refusal("no pool of alike GPUs holds the 3 GPUs"):
        in_rounds(MaxMinFairness()).reset(simulator)
    in_rounds(LeastAttainedService()).reset(simulator)
    with refusal("round_s"):
        in_rounds(LeastAttainedService(), 0.0)
