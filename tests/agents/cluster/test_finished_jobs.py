"""What finished jobs tell of others: predictions, QSSF's queue, and Gittins by definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.cluster.prediction import (
    Gittins,
    QuasiShortestServiceFirst,
    RemainingTime,
    RollingDuration,
    gittins_index,
)
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.workload.trace import Trace
from tests.agents.cluster.further_policies import Jobs, on_nodes, trace_of
from tests.agents.cluster.small_clusters import LowestNodes
from tests.refusal import refusal
from tests.strength import examples


def labelled(users: list[str], gangs: list[int], seconds: list[int]) -> Trace:
    columns = [*range(0, 1000 * len(users), 1000)], seconds, gangs
    return Trace.of("labelled", *columns, user=users, model=["bert"] * len(users))


@pytest.mark.parametrize(
    ("user", "gang", "seconds"),
    [("ann", 1, 100), ("ann", 2, 200), ("ann", 8, 150), ("eve", 4, 400), ("eve", 8, 275)],
)
def test_the_most_similar_jobs_that_there_are(user: str, gang: int, seconds: int) -> None:
    past = labelled(["ann", "ann", "bob"], [1, 2, 4], [100, 200, 400])
    simulator = ClusterSimulator(Cluster.uniform(1, 8), past)
    for predictor, expected in (
        (RollingDuration(7.0, 0.5, past), seconds),
        (RollingDuration(7.0, 0.5), 7.0),
    ):
        predictor.reset(simulator)
        assert predictor.duration(labelled([user], [gang], [1]), 0) == expected


def test_jobs_are_learned_when_they_finish() -> None:
    trace = labelled(["ann"] * 3, [1] * 3, [100, 300, 50])
    simulator = ClusterSimulator(Cluster.uniform(1, 1), trace)
    predictor, predicted = RollingDuration(7.0, 0.25), []
    predictor.reset(simulator)
    while not simulator.done:
        simulator.advance()
        predictor.observe(simulator)
        predicted.append(predictor.duration(trace, 2))
        for job in simulator.pending():
            simulator.start(int(job), [(0, 1)])
    assert predicted == [7.0, 100.0, 100.0, 150.0, 150.0, 125.0]


def test_what_is_left() -> None:
    """Finished jobs took 0.5, 1 and 3 times what was predicted for them, 100 s each."""
    trace = trace_of([(0, seconds, 1) for seconds in (50, 100, 300, 10_000)])
    simulator = ClusterSimulator(Cluster.uniform(1, 4), trace)
    remaining = RemainingTime(RollingDuration(100.0))
    remaining.reset(simulator)
    simulator.advance()
    assert remaining.predict(simulator, np.arange(4)).tolist() == [100.0] * 4
    for job in range(4):
        simulator.start(job, [(0, 1)])
    while simulator.advance(simulator.now + 10.0) and simulator.now < 400.0:
        remaining.observe(simulator)
    simulator.settle()
    for executed, left in ((0, 150), (60, 200 - 60), (150, 300 - 150), (400, 400)):
        simulator.state.jobs["executed"][3] = executed
        assert remaining.predict(simulator, np.array([3])) == pytest.approx(left)


@pytest.mark.parametrize(("blocking", "starts"), [(True, [0, 100, 150]), (False, [0, 100, 50])])
def test_least_predicted_gpu_time_first(blocking: bool, starts: list[int]) -> None:
    """2 GPUs, 1 taken; a gang of 2 (predicted 30 x 2) is before a job of 1 (predicted 80).

    What they really take, 50 s and 10 s, is not known.
    """
    predictor = RollingDuration(1.0, 0.5, trace_of([(0, 80, 1), (0, 30, 2)]))
    policy = QuasiShortestServiceFirst(LowestNodes(), predictor, blocking)
    schedule = on_nodes(policy, [(0, 100, 1), (50, 50, 2), (50, 10, 1)], 1, 2)
    assert schedule.start.tolist() == starts
    assert schedule.preemptions.sum() == 0


def definition(services: list[int], attained: float, quantum: float) -> float:
    longer = [s for s in services if s > attained]
    if not longer:
        return 0.0
    finish = sum(s - attained <= quantum for s in longer) / len(longer)
    return finish / float(np.mean([min(s - attained, quantum) for s in longer]))


@examples(200)
@given(
    services=st.lists(st.integers(1, 1000), max_size=12),
    attained=st.integers(0, 1100),
    quantum=st.one_of(st.integers(1, 500), st.just(np.inf)),
)
def test_index(services: list[int], attained: int, quantum: float) -> None:
    columns = (np.sort(np.array(one, float)) for one in (services, [attained], [quantum]))
    assert gittins_index(*columns) == pytest.approx(definition(services, attained, quantum))


@pytest.mark.parametrize(
    ("past", "limits", "jobs", "finish"),
    [
        # without a past the queue alone decides: the first is demoted after 10 GPU-seconds
        ([], [10.0], [(0, 15, 1), (1, 5, 1)], [20, 15]),
        ([], [10.0], [(0, 15, 2), (1, 5, 2)], [20, 10]),
        # Past services of 10 and 1000 GPU-seconds: at 4 the index is higher than at 0. Las would
        # stop the first job for the newcomer; it goes on to its end. A job at 12, past the short
        # ones, is stopped.
        ([10, 1000], [100.0, 5000.0], [(0, 10, 1), (4, 10, 1)], [10, 20]),
        ([10, 1000], [100.0, 5000.0], [(0, 12, 1), (4, 10, 1)], [12, 22]),
        ([10, 1000], [100.0, 5000.0], [(0, 30, 1), (12, 10, 1)], [40, 22]),
    ],
)
def test_gittins(past: list[int], limits: list[float], jobs: Jobs, finish: list[float]) -> None:
    training = trace_of([(0, seconds, 1) for seconds in past]) if past else None
    policy = Gittins(LowestNodes(), limits, [*limits, None], training)
    assert on_nodes(policy, jobs, 1, jobs[0][2]).finish.tolist() == finish


@pytest.mark.parametrize(
    ("field", "limits", "quanta"),
    [("limits", [5.0, 5.0], [1, 1, 1]), ("quanta", [5.0], [1.0])],
)
def test_queues_that_do_not_go_together(field: str, limits: Any, quanta: Any) -> None:
    with refusal(field):
        Gittins(LowestNodes(), limits, quanta)
