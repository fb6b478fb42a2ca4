"""Rounds by hand, and the shares that they realise."""

from __future__ import annotations

import numpy as np
import pytest

from agents.cluster.replay import simulate
from agents.cluster.rounds import Pools, RoundBasedPolicy
from agents.cluster.shares import LeastAttainedService, MaxMinFairness
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from tests.agents.cluster.further_policies import GivenShares, Jobs, in_rounds, on_nodes, trace_of
from tests.agents.cluster.small_clusters import LowestNodes, Speeds
from tests.refusal import refusal


class SpreadOrWholeNode(LowestNodes):
    """A job of one GPU where most are free, a gang on one node or nowhere."""

    def place(
        self, simulator: ClusterSimulator, job: int, rng: np.random.Generator
    ) -> list[tuple[int, int]] | None:
        gpus, free = int(simulator.state.jobs[job]["gpus"]), simulator.state.nodes["free"]
        return [(int(np.argmax(free)), gpus)] if free.max() >= gpus else None


@pytest.mark.parametrize(
    ("jobs", "nodes", "gpus", "expected"),
    [
        ([(0, 720, 1)] * 2, 1, 1, {"finish": [1080, 1440], "preemptions": [1, 1]}),  # turns
        # arrivals wait for the next round unless there is no job
        ([(0, 500, 1), (100, 500, 1), (2000, 10, 1)], 1, 2, {"start": [0, 360, 2000]}),
        # for a gang of 2 on one node two single jobs, spread over both nodes, have to move
        (
            [(0, 3600, 1), (0, 3600, 1), (10, 360, 2)], 2, 2,
            {"start": [0, 0, 360], "finish": [3600, 3600, 720]},
        ),
    ],
)  # fmt: skip
def test_rounds(jobs: Jobs, nodes: int, gpus: int, expected: dict[str, list[int]]) -> None:
    policy = RoundBasedPolicy(LeastAttainedService(), SpreadOrWholeNode())
    found = on_nodes(policy, jobs, nodes, gpus)
    assert {name: getattr(found, name).tolist() for name in expected} == expected


def played(
    rule: GivenShares, jobs: Jobs, gpus: int, until: float = np.inf
) -> tuple[ClusterSimulator, int]:
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
    simulator, decisions = played(GivenShares([[1.0], [1.0]]), jobs, 2)
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
    expected = np.array(shares)
    rule = GivenShares(expected[:, None])
    simulator, _ = played(rule, [(0, 10**7, gang) for gang in gangs], gpus, 400 * 360.0)
    received = simulator.state.jobs["executed"] / simulator.now
    assert rule.computed == 1
    # What X leaves idle goes to whoever fits; nobody gets less than X, but for the last rounds.
    assert (received >= expected - 0.02).all()
    if gangs @ expected == pytest.approx(gpus):
        np.testing.assert_allclose(received, shares, atol=0.02)


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
    runs = schedule.runs[(schedule.runs["end"] <= 3600.0) & (schedule.runs["node"] == 0)]
    on_v100 = np.bincount(runs["job"], runs["end"] - runs["start"])
    np.testing.assert_allclose(on_v100, [1800.0] * 2, atol=360.0)


def test_demand_of_types_and_failures() -> None:
    trace = trace_of([(0, 10, 1), (0, 10, 3), (0, 10, 2)], gpu_type=["V100", "K80|V100", "K80"])
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
    trace = trace_of([(0, 36000, 1)] * 2, queue=["paying", "free"])
    simulator = ClusterSimulator(Cluster.uniform(1, 1), trace)
    schedule = simulate(in_rounds(MaxMinFairness({"paying": 2.0})), simulator)
    assert schedule.finish[0] == pytest.approx(36000 * 1.5, abs=720.0)


def test_what_is_refused() -> None:
    cluster = Cluster.uniform(2, 2, gpu_types=("V100", "K80"))
    simulator = ClusterSimulator(cluster, trace_of([(0, 10, 3)]))
    with refusal("no pool of alike GPUs holds the 3 GPUs"):
        in_rounds(MaxMinFairness()).reset(simulator)
    in_rounds(LeastAttainedService()).reset(simulator)
