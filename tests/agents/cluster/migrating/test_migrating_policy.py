"""Schedules of migrating policies: whole gangs, all work done, on the fastest GPUs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from migrating_cases import OVERHEADS, JobSpeeds, OneSpeed, random_cluster, random_trace

from agents.cluster.migrating.policy import Migrating
from agents.cluster.migrating.priorities import (
    AttainedServiceClasses,
    Priority,
    RemainingService,
    RemainingTime,
)
from agents.cluster.queue import SRSF
from agents.cluster.replay import StuckError, replay
from agents.cluster.rules.gangs import BestFit, Count
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import INCIDENT, ClusterState, Overheads
from envs.cluster.workload.trace import Trace
from envs.errors import InputError
from tests.strength import examples

ORDERS: list[Priority] = [AttainedServiceClasses(600.0), RemainingTime(), RemainingService()]


def two_types() -> Cluster:
    return Cluster.uniform(2, 2, gpu_types=("fast", "slow"))


@examples(60)
@given(st.integers(0, 2**32 - 1), st.sampled_from(ORDERS), st.sampled_from([1.0, 1.4]))
def test_every_job_gets_its_work_and_no_gpu_is_given_twice(
    seed: int, order: Priority, gain: float
) -> None:
    rng = np.random.default_rng(seed)
    cluster = random_cluster(rng)
    trace = random_trace(rng, cluster)
    rates = JobSpeeds(seed % 7)
    policy = Migrating(order, gain, 120.0, 300.0)
    schedule = replay(policy, cluster, trace, rates=rates, overheads=OVERHEADS, keep_runs=True)
    assert schedule.finished.all()
    runs = schedule.runs
    assert runs is not None
    assert (runs["start"] >= trace.submit_s[runs["job"]]).all()
    for instant in np.unique(runs["start"]):
        now = runs[(runs["start"] <= instant) & (runs["end"] > instant)]
        given_gpus = np.bincount(now["node"], now["gpus"], cluster.num_nodes)
        assert (given_gpus <= cluster.gpus).all()
        gangs = np.bincount(now["job"], now["gpus"], len(trace))
        assert (gangs[gangs > 0] == trace.num_gpus[gangs > 0]).all()
    tables = rates.tables(trace, cluster)
    for job in range(len(trace)):  # the work of its runs, each on the slowest of its nodes
        mine = runs[runs["job"] == job]
        done = 0.0
        for run, start in enumerate(np.unique(mine["start"])):
            part = mine[mine["start"] == start]
            rate = tables.speed[job, cluster.gpu_type[part["node"]]].min()
            stall = OVERHEADS.restart_s if run else 0.0
            done += max(float(part["end"][0]) - start - stall, 0.0) * rate
        assert done == pytest.approx(trace.duration_s[job], rel=1e-9)


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
    trace = Trace.of("two", [0, 0], [1000, 2000], [2, 2])
    policy = Migrating(RemainingTime(), 1.33, 600.0, 600.0)
    schedule = replay(
        policy, two_types(), trace, rates=OneSpeed(1.0, 0.5), overheads=OVERHEADS, keep_runs=True
    )
    assert schedule.runs is not None
    runs = sorted((int(r["job"]), float(r["start"]), int(r["node"])) for r in schedule.runs)
    assert runs == [(0, 0.0, 0), (1, 0.0, 1), (1, 1000.0, 0)]
    assert schedule.finish.tolist() == [1000.0, 1000.0 + 30.0 + 1500.0]
    assert schedule.preemptions.tolist() == [0, 1]


def test_with_a_gain_above_the_ratio_of_speeds_it_stays() -> None:
    trace = Trace.of("two", [0, 0], [1000, 2000], [2, 2])
    policy = Migrating(RemainingTime(), 2.0, 600.0, 600.0)
    schedule = replay(policy, two_types(), trace, rates=OneSpeed(1.0, 0.5), overheads=OVERHEADS)
    assert schedule.finish.tolist() == [1000.0, 4000.0]


def test_it_wakes_to_move_a_job_that_has_run_for_long_enough() -> None:
    """At 100 s job 1 has run too briefly, and job 2 gets the fast GPUs; job 3 waits for long."""
    trace = Trace.of("four", [0, 0, 1, 1], [100, 9000, 20_000, 30_000], [2, 2, 2, 2])
    policy = Migrating(RemainingTime(), 1.33, 600.0, 250.0)
    schedule = replay(
        policy, two_types(), trace, rates=OneSpeed(1.0, 0.5), overheads=OVERHEADS, keep_runs=True
    )
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


@pytest.mark.parametrize(
    ("field", "settings_of"),
    [("gain", (0.9, 1.0, 1.0)), ("least_run_s", (1.0, 0.0, 1.0)), ("wake_s", (1.0, 1.0, -1.0))],
)
def test_settings_out_of_range_are_refused(
    field: str, settings_of: tuple[float, float, float]
) -> None:
    with pytest.raises(InputError) as caught:
        Migrating(RemainingTime(), *settings_of)
    assert caught.value.field == field


def test_classes_of_attained_service_double() -> None:
    with pytest.raises(InputError):
        AttainedServiceClasses(0.0)
    state = _state_with([0.0, 599.0, 600.0, 1799.0, 1800.0, 4200.0], [1] * 6)
    order = AttainedServiceClasses(600.0)
    assert order(state, np.arange(6)).tolist() == [0, 0, 1, 1, 2, 3]
    two = _state_with([300.0], [2])
    assert order(two, np.arange(1)).tolist() == [1]
    assert order.copy() is order


def _state_with(executed: list[float], gpus: list[int]) -> ClusterState:
    trace = Trace.of("jobs", [0] * len(gpus), [9000] * len(gpus), gpus)
    state = ClusterSimulator(Cluster.uniform(1, 8), trace).state
    state.jobs["executed"] = executed
    return state
