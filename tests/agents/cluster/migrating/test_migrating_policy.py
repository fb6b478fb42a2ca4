"""Schedules of migrating policies: whole gangs, all work done, on the fastest GPUs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from migrating_cases import (
    OVERHEADS,
    JobSpeeds,
    OneSpeed,
    SlowPlan,
    random_cluster,
    random_trace,
    states,
)
from numpy.typing import NDArray

from agents.cluster.migrating.policy import (
    KEEP,
    NOWHERE,
    SERVER,
    START,
    STOP,
    WAIT,
    Migrating,
    check_whole_gpus,
    plan,
    slots_at,
    startable,
)
from agents.cluster.migrating.priorities import (
    AttainedServiceClasses,
    Priority,
    RemainingService,
    RemainingTime,
)
from agents.cluster.queue import SRSF
from agents.cluster.replay import StuckError, replay
from agents.cluster.rules.gangs import BestFit, Count
from envs.cluster.environment.actions import View, start_on, view_of
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import INCIDENT, RUNNING, Overheads, Schedule
from envs.cluster.workload.trace import Trace
from tests.agents.cluster.small_clusters import check_schedule
from tests.refusal import refusal
from tests.strength import SEEDS, examples

ORDERS: list[Priority] = [AttainedServiceClasses(600.0), RemainingTime(), RemainingService()]


State = tuple[ClusterSimulator, View, NDArray[np.int64]]
TWO_TYPES = Cluster.uniform(2, 2, gpu_types=("fast", "slow"))
TWO_JOBS = Trace.of("two", [0, 0], [1000, 2000], [2, 2])


def on_two_types(trace: Trace, gain: float = 1.33, wake_s: float = 600.0) -> Schedule:
    return replay(
        Migrating(RemainingTime(), gain, 600.0, wake_s), TWO_TYPES, trace,
        rates=OneSpeed(1.0, 0.5), overheads=OVERHEADS, keep_runs=True,
    )  # fmt: skip


def begun(
    cluster: Cluster, trace: Trace, job: int, on: tuple[int, int], after_s: float | None = None
) -> State:
    """A state in which one job has just started, or has run for a while."""
    speeds = [1.0, 0.5][: len(cluster.gpu_types)]
    simulator = ClusterSimulator(cluster, trace, rates=OneSpeed(*speeds))
    simulator.advance()
    simulator.start(job, [on])
    if after_s is not None:
        simulator.advance(after_s)
        simulator.settle()
    view = view_of(cluster, simulator.tables, np.arange(cluster.num_nodes), 0, 4)
    return simulator, view, np.arange(len(trace))


@examples(60)
@given(SEEDS, st.sampled_from(ORDERS), st.sampled_from([1.0, 1.4]))
def test_every_job_gets_its_work_and_no_gpu_is_given_twice(
    seed: int, order: Priority, gain: float
) -> None:
    rng = np.random.default_rng(seed)
    cluster = random_cluster(rng)
    trace = random_trace(rng, cluster)
    rates = JobSpeeds(seed % 7)
    policy = Migrating(order, gain, 120.0, 300.0)
    schedule = replay(policy, cluster, trace, rates=rates, overheads=OVERHEADS, keep_runs=True)
    speed = rates.tables(trace, cluster).speed
    check_schedule(cluster, trace, schedule, speed, OVERHEADS.restart_s)


@pytest.mark.parametrize("seed", range(4))
def test_on_equal_gpus_it_is_shortest_remaining_service_first(seed: int) -> None:
    """Exactly on one node; on four, gangs keep together and it is a little worse for that."""
    rng = np.random.default_rng(seed)
    jobs = 150
    trace = Trace.of(
        "equal",
        np.sort(rng.integers(0, 40_000, jobs)),
        np.exp(rng.normal(7.5, 1.5, jobs)).astype(np.int64) + 10,
        rng.choice([1, 1, 2, 4, 8], jobs),
    )
    policy = Migrating(RemainingService(), 1.33, 600.0, 600.0)
    one, four = Cluster.uniform(1, 32), Cluster.uniform(4, 8)
    counted = replay(SRSF(Count(), 0), one, trace)
    np.testing.assert_array_equal(replay(policy, one, trace).finish, counted.finish)
    mine = replay(policy, four, trace).jct.mean()
    assert counted.jct.mean() <= mine < 1.08 * counted.jct.mean()
    assert mine < replay(SRSF(BestFit(), 0), four, trace).jct.mean()


def test_a_job_moves_to_faster_gpus_when_they_become_free() -> None:
    """Job 1 runs at half speed until job 0 ends at 1,000 s, then at full speed after 30 s."""
    schedule = on_two_types(TWO_JOBS)
    assert schedule.runs is not None
    runs = sorted((int(r["job"]), float(r["start"]), int(r["node"])) for r in schedule.runs)
    assert runs == [(0, 0.0, 0), (1, 0.0, 1), (1, 1000.0, 0)]
    assert schedule.finish.tolist() == [1000.0, 1000.0 + 30.0 + 1500.0]
    assert schedule.preemptions.tolist() == [0, 1]


def test_with_a_gain_above_the_ratio_of_speeds_it_stays() -> None:
    assert on_two_types(TWO_JOBS, gain=2.0).finish.tolist() == [1000.0, 4000.0]


def test_it_wakes_to_move_a_job_that_has_run_for_long_enough() -> None:
    """At 100 s job 1 has run too briefly, and job 2 gets the fast GPUs; job 3 waits for long."""
    trace = Trace.of("four", [0, 0, 1, 1], [100, 9000, 20_000, 30_000], [2, 2, 2, 2])
    schedule = on_two_types(trace, wake_s=250.0)
    assert schedule.runs is not None
    moved = [r for r in schedule.runs if r["job"] == 1 and r["start"] > 0]
    assert [(float(r["start"]), int(r["node"])) for r in moved] == [(100.0 + 2 * 250.0, 0)]


def test_jobs_that_can_never_run_again_are_told() -> None:
    """The node fails for good."""
    trace = Trace.of("one", [0, 0], [1000, 1000], [2, 2])
    failure = np.array([(500.0, 0, 0)], INCIDENT)
    policy = Migrating(RemainingTime(), 1.33, 600.0, 600.0)
    with pytest.raises(StuckError):
        replay(
            policy, Cluster.uniform(1, 2), trace, overheads=Overheads(0.0, 0.0), incidents=failure
        )


def test_classes_of_attained_service_double() -> None:
    trace = Trace.of("jobs", [0] * 7, [9000] * 7, [1] * 6 + [2])
    state = ClusterSimulator(Cluster.uniform(1, 8), trace).state
    state.jobs["executed"] = [0.0, 599.0, 600.0, 1799.0, 1800.0, 4200.0, 300.0]
    order = AttainedServiceClasses(600.0)
    assert order(state, np.arange(7)).tolist() == [0, 0, 1, 1, 2, 3, 1]


def planned(
    state: State, gain: float, least_run_s: float, kept_s: float = 0.0
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    simulator, view, order = state
    fate, target = plan(simulator.state, simulator.tables, view, order, gain, least_run_s, kept_s)
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
    fate, target = planned(begun(TWO_TYPES, TWO_JOBS, 1, (0, 2)), 1.0, 600.0)
    assert fate.tolist() == [START, STOP]
    assert target.tolist() == [[SERVER, 0], [SERVER, 1]]


@pytest.mark.parametrize(
    ("kept_s", "expected"), [(0.0, [START, STOP]), (100.0, [START, STOP]), (101.0, [WAIT, KEEP])]
)
def test_a_job_that_cannot_stop_yet_keeps_its_gpus(kept_s: float, expected: list[int]) -> None:
    trace = Trace.of("two", [0, 0], [900, 900], [2, 1])
    fate, _ = planned(begun(Cluster.uniform(1, 2), trace, 1, (0, 1), 100.0), 1.0, 60.0, kept_s)
    assert fate.tolist() == expected


@pytest.mark.parametrize(
    ("gain", "least_run_s", "expected"),
    [
        (1.5, 60.0, (STOP, SERVER)),
        (2.0, 60.0, (KEEP, NOWHERE)),
        (1.5, 100.0, (STOP, SERVER)),
        (1.5, 101.0, (KEEP, NOWHERE)),
    ],
)
def test_gain_and_least_run_hold_a_move_back(
    gain: float, least_run_s: float, expected: tuple[int, int]
) -> None:
    state = begun(TWO_TYPES, Trace.of("one", [0], [1000], [2]), 0, (1, 2), 100.0)
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
    with refusal() as caught:
        check_whole_gpus(ClusterSimulator(cluster, asks))
    assert (caught.value.file, caught.value.record, caught.value.field) == ("jobs", 1, field)
