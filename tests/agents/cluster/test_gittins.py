"""The Gittins index against its definition, and queues by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.cluster.prediction import Gittins, gittins_index
from agents.cluster.replay import simulate
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.workload.trace import Trace
from tests.agents.cluster.small_clusters import LowestNodes
from tests.refusal import refusal
from tests.strength import examples


def definition(services: list[float], attained: float, quantum: float) -> float:
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
    index = gittins_index(
        np.sort(np.array(services, float)), np.array([float(attained)]), np.array([float(quantum)])
    )
    assert index[0] == pytest.approx(definition([float(s) for s in services], attained, quantum))


def gittins(limits: list[float], training: Trace | None) -> Gittins:
    return Gittins(LowestNodes(), limits, [*limits, None], training, seed=0)


def test_demotion() -> None:
    """Without a past the queue alone decides: the first job is demoted after 10 GPU-seconds."""
    trace = Trace.of("two", [0, 1], [15, 5], [1, 1])
    schedule = simulate(gittins([10.0], None), ClusterSimulator(Cluster.uniform(1, 1), trace))
    assert schedule.finish.tolist() == [20.0, 15.0]
    trace = Trace.of("gangs", [0, 1], [15, 5], [2, 2])
    schedule = simulate(gittins([10.0], None), ClusterSimulator(Cluster.uniform(1, 2), trace))
    assert schedule.finish.tolist() == [20.0, 10.0]


def test_the_job_more_likely_to_finish_goes_first() -> None:
    """Past services of 10 and 1000 GPU-seconds: at 4 the index is higher than at 0.

    Las would stop the first job for the newcomer; it goes on to its end. A job at 12, past the
    short ones, is stopped.
    """
    past = Trace.of("past", [0, 0], [10, 1000], [1, 1])
    for first, second in ((10, 10), (12, 22)):
        trace = Trace.of("two", [0, 4], [first, 10], [1, 1])
        simulator = ClusterSimulator(Cluster.uniform(1, 1), trace)
        schedule = simulate(gittins([100.0, 5000.0], past), simulator)
        assert schedule.finish[0] == first
        assert schedule.finish[1] == first + 10 if first == 10 else second
    trace = Trace.of("late", [0, 12], [30, 10], [1, 1])
    schedule = simulate(
        gittins([100.0, 5000.0], past), ClusterSimulator(Cluster.uniform(1, 1), trace)
    )
    assert schedule.finish.tolist() == [40.0, 22.0]


@pytest.mark.parametrize(
    ("limits", "quanta"), [([5.0, 5.0], [1, 1, 1]), ([5.0], [1.0]), ([5.0], [0.0, None])]
)
def test_what_is_refused(limits: list[float], quanta: list[float | None]) -> None:
    with refusal():
        Gittins(LowestNodes(), limits, quanta, None, 0)
