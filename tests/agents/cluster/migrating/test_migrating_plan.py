"""The compiled plan is the slow one; what it starts can start."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from migrating_cases import OneSpeed, SlowPlan, states
from numpy.typing import NDArray

from agents.cluster.migrating.policy import (
    KEEP,
    NOWHERE,
    SERVER,
    START,
    STOP,
    WAIT,
    check_whole_gpus,
    plan,
    slots_at,
    startable,
)
from envs.cluster.environment.play_kernel import start_on
from envs.cluster.environment.views import View, view_of
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import RUNNING
from envs.cluster.workload.trace import Trace
from envs.errors import InputError
from tests.strength import examples

State = tuple[ClusterSimulator, View, NDArray[np.int64]]


def planned(
    state: State, gain: float, least_run_s: float, kept_s: float = 0.0
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    simulator, view, order = state
    fate, target = np.zeros(len(order), np.int64), np.zeros((len(order), 2), np.int64)
    plan(simulator.state, simulator.tables, view, order, gain, least_run_s, kept_s, fate, target)
    return fate, target


@examples(300)
@given(
    states(),
    st.sampled_from([1.0, 1.3, 2.0]),
    st.sampled_from([1.0, 600.0, 1e9]),
    st.sampled_from([0.0, 0.0, 600.0, 1e9]),
)
def test_the_plan_is_the_slow_one(
    state: State, gain: float, least_run_s: float, kept_s: float
) -> None:
    simulator, view, order = state
    fate, target = planned(state, gain, least_run_s, kept_s)
    slow = SlowPlan(simulator, view, gain, least_run_s, kept_s).decide(order.tolist())
    assert list(zip(fate.tolist(), map(tuple, target.tolist()), strict=True)) == slow


@examples(100)
@given(states())
def test_a_plan_changes_nothing(state: State) -> None:
    before = state[0].state.copy()
    planned(state, 1.2, 60.0)
    for now, then in zip(state[0].state, before, strict=True):
        np.testing.assert_array_equal(now, then)


@examples(150)
@given(states())
def test_what_is_kept_and_first_to_start_has_room(state: State) -> None:
    """Of all that a plan starts, the first job can start once those that stop have stopped."""
    simulator, view, order = state
    fate, target = planned(state, 1.2, 60.0)
    kept = order[fate == KEEP]
    before = {int(job): simulator.shares(int(job)) for job in kept}
    for job in order[fate == STOP]:
        simulator.preempt(int(job))
    goes = np.flatnonzero(target[:, 0] != NOWHERE)
    tried = 0
    for rank in goes:
        job, (kind, index) = int(order[rank]), target[rank].tolist()
        if startable(simulator.state, view, job, kind, index):
            first, last = slots_at(view, kind, index)
            start_on(simulator.state, simulator.tables, simulator.overheads, view, job, first, last)
            assert simulator.state.jobs[job]["status"] == RUNNING
            assert {view.slot[node] for node, _ in simulator.shares(job)} <= set(range(first, last))
            tried += 1
    assert tried or not len(goes)
    assert (simulator.state.nodes["free"] >= 0).all()
    assert {int(job): simulator.shares(int(job)) for job in kept} == before


def test_a_job_before_takes_the_fast_gpus_and_the_other_gets_the_slow() -> None:
    cluster = Cluster.uniform(2, 2, gpu_types=("fast", "slow"))
    trace = Trace.of("two", [0, 0], [100, 100], [2, 2])
    simulator = ClusterSimulator(cluster, trace, rates=OneSpeed(1.0, 0.5))
    simulator.advance()
    simulator.start(1, [(0, 2)])
    state = (simulator, _all(simulator), np.array([0, 1]))
    fate, target = planned(state, 1.0, 600.0)
    assert fate.tolist() == [START, STOP]
    assert target.tolist() == [[SERVER, 0], [SERVER, 1]]


def test_a_job_that_cannot_stop_yet_keeps_its_gpus() -> None:
    simulator = ClusterSimulator(Cluster.uniform(1, 2), Trace.of("two", [0, 0], [900, 900], [2, 1]))
    simulator.advance()
    simulator.start(1, [(0, 1)])
    simulator.advance(100.0)
    simulator.settle()
    state = (simulator, _all(simulator), np.array([0, 1]))
    for kept_s, expected in ((0.0, [START, STOP]), (100.0, [START, STOP]), (101.0, [WAIT, KEEP])):
        fate, _ = planned(state, 1.0, 60.0, kept_s)
        assert fate.tolist() == expected


def test_gain_and_least_run_hold_a_move_back() -> None:
    cluster = Cluster.uniform(2, 2, gpu_types=("fast", "slow"))
    trace = Trace.of("one", [0], [1000], [2])
    simulator = ClusterSimulator(cluster, trace, rates=OneSpeed(1.0, 0.5))
    simulator.advance()
    simulator.start(0, [(1, 2)])
    simulator.advance(100.0)
    simulator.settle()
    state = (simulator, _all(simulator), np.array([0]))
    for gain, least_run_s, expected in (
        (1.5, 60.0, (STOP, SERVER)),
        (2.0, 60.0, (KEEP, NOWHERE)),
        (1.5, 100.0, (STOP, SERVER)),
        (1.5, 101.0, (KEEP, NOWHERE)),
    ):
        fate, target = planned(state, gain, least_run_s)
        assert (int(fate[0]), int(target[0, 0])) == expected


@pytest.mark.parametrize("field", ["gpu_milli", "cpu_milli", "memory_mib"])
def test_more_than_whole_gpus_is_refused(field: str) -> None:
    cluster = Cluster.uniform(1, 2)
    trace = Trace.of("jobs", [0, 0], [10, 10], [1, 1])
    check_whole_gpus(ClusterSimulator(cluster, trace))
    values = np.array([1000 if field == "gpu_milli" else 0, 500])
    asks = Trace(**{**vars(trace), field: values})
    if field != "gpu_milli":
        check_whole_gpus(ClusterSimulator(cluster, asks))  # without a limit
        cluster = Cluster(**{**vars(cluster), field: np.array([1000])})
    with pytest.raises(InputError) as caught:
        check_whole_gpus(ClusterSimulator(cluster, asks))
    assert (caught.value.file, caught.value.record, caught.value.field) == ("jobs", 1, field)


def _all(simulator: ClusterSimulator) -> View:
    nodes = np.arange(simulator.cluster.num_nodes)
    return view_of(simulator.cluster, simulator.tables, nodes, 0, 4)
