"""Durations predicted from the past alone, and a queue ordered by them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from agents.cluster.prediction import QuasiShortestServiceFirst, RemainingTime, RollingDuration
from agents.cluster.replay import simulate
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.workload.trace import Labels, Trace
from tests.agents.cluster.small_clusters import LowestNodes
from tests.refusal import refusal


def labelled(users: list[str], gangs: list[int], seconds: list[int]) -> Trace:
    trace = Trace.of("labelled", range(0, 1000 * len(users), 1000), seconds, gangs)
    return replace(trace, user=Labels.of(users), model=Labels.of(["bert"] * len(users)))


def test_the_closest_likes_that_there_are() -> None:
    past = labelled(["ann", "ann", "bob"], [1, 2, 4], [100, 200, 400])
    predictor = RollingDuration(7.0, 0.5, past)
    predictor.reset(ClusterSimulator(Cluster.uniform(1, 8), past))
    cases = {("ann", 1): 100, ("ann", 2): 200, ("ann", 8): 150, ("eve", 4): 400, ("eve", 8): 275}
    for (user, gang), seconds in cases.items():
        assert predictor.duration(labelled([user], [gang], [1]), 0) == seconds
    predictor = RollingDuration(7.0, 0.5, None)
    predictor.reset(ClusterSimulator(Cluster.uniform(1, 8), past))
    assert predictor.duration(past, 0) == 7.0


def test_jobs_are_learned_when_they_finish() -> None:
    trace = labelled(["ann"] * 3, [1] * 3, [100, 300, 50])
    simulator = ClusterSimulator(Cluster.uniform(1, 1), trace)
    predictor = RollingDuration(7.0, 0.25, None)
    predictor.reset(simulator)
    seen = []
    while not simulator.done:
        simulator.advance()
        predictor.observe(simulator)
        seen.append(predictor.duration(trace, 2))
        for job in simulator.pending():
            simulator.start(int(job), [(0, 1)])
    assert seen == [7.0, 100.0, 100.0, 150.0, 150.0, 125.0]


def test_what_is_left() -> None:
    """Finished jobs took 0.5, 1 and 3 times what was predicted for them, 100 s each."""
    trace = Trace.of("four", [0, 0, 0, 0], [50, 100, 300, 10_000], [1] * 4)
    simulator = ClusterSimulator(Cluster.uniform(1, 4), trace)
    remaining = RemainingTime(RollingDuration(100.0, 0.3, None))
    remaining.reset(simulator)
    jobs = np.arange(4)
    simulator.advance()
    assert remaining.predict(simulator, jobs).tolist() == [100.0] * 4
    for job in range(4):
        simulator.start(job, [(0, 1)])
    expected = {0.0: 150.0 - 0.0, 60.0: 200.0 - 60.0, 150.0: 300.0 - 150.0, 400.0: 400.0}
    while simulator.advance(simulator.now + 10.0) and simulator.now < 400.0:
        remaining.observe(simulator)
    simulator.settle()
    record = simulator.state.jobs
    for executed, left in expected.items():
        record["executed"][3] = executed
        assert remaining.predict(simulator, np.array([3]))[0] == pytest.approx(left)


@pytest.mark.parametrize(("prior", "recency"), [(0.0, 0.5), (1.0, 0.0), (1.0, 1.5)])
def test_what_is_refused(prior: float, recency: float) -> None:
    with refusal():
        RollingDuration(prior, recency, None)


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
