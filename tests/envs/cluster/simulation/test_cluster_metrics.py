"""Figures of schedules are those of their definitions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_metrics import (
    Distribution,
    StepFunction,
    busy_gpus,
    exact_sum,
    finish_time_fairness,
    jain_index,
    job_runs,
    jobs_in_system,
    measure,
    pending_jobs,
    queueing_s,
)
from envs.cluster.simulation.cluster_state import RUN, Schedule
from envs.cluster.workload.trace import Trace
from tests.refusal import refusal
from tests.strength import SEEDS, examples


def random_schedule(seed: int, preempt: bool) -> tuple[Schedule, int]:
    """A schedule of up to twelve jobs, and the GPUs of its cluster."""
    rng = np.random.default_rng(seed)
    cluster = Cluster.uniform(int(rng.integers(1, 4)), int(rng.integers(1, 4)))
    jobs = int(rng.integers(1, 13))
    trace = Trace.of(
        "random",
        np.sort(rng.integers(0, 30, jobs)),
        rng.integers(1, 20, jobs),
        rng.integers(1, cluster.num_gpus + 1, jobs),
    )
    simulator = ClusterSimulator(cluster, trace, keep_runs=True)
    while not simulator.done:
        simulator.advance(simulator.now + 3 if preempt else np.inf)
        if preempt and rng.random() < 0.3:
            for job in simulator.running():
                if rng.random() < 0.5:
                    simulator.preempt(int(job))
        for job in simulator.pending():
            shares, need = [], int(trace.num_gpus[job])
            for node in rng.permutation(cluster.num_nodes):
                take = min(need, int(simulator.state.nodes[node]["free"]))
                if take:
                    shares.append((int(node), take))
                    need -= take
            if need == 0:
                simulator.start(int(job), shares)
    return simulator.schedule(), cluster.num_gpus


def preempted_schedule() -> tuple[Schedule, int]:
    """The first of them in which jobs were preempted."""
    for seed in range(100):
        found = random_schedule(seed, True)
        if found[0].preemptions.any():
            return found
    raise AssertionError("nothing is ever preempted")


def schedule(*jobs: tuple[float, ...], runs: Any = None) -> Schedule:
    """Of (submit, start, finish, work, GPUs), and the log of runs, if any.

    Of jobs that did not finish nothing was done.
    """
    submit, start, finish, work, gpus = np.array(jobs, np.float64).T
    log = None if runs is None else np.array(runs, RUN)
    held, preemptions = np.where(finish < 0, 0.0, work), np.zeros(len(jobs), np.int32)
    return Schedule(submit, start, finish, work, gpus, held, preemptions, log)


# On 2 GPUs: the first job runs at once, the second, of 4 s, behind it.
TWO_JOBS = schedule((10, 10, 30, 20, 2), (12, 30, 34, 4, 1))


def test_two_jobs_by_hand() -> None:
    found = measure(TWO_JOBS, 2)
    assert (found.jobs, found.finished, found.preemptions) == (2, 2, 0)
    assert found.sum_jct_s == 42
    assert isinstance(found.sum_jct_s, int)
    assert found.jct == Distribution(21.0, 21.0, 21.9, 21.98, 22.0)
    assert found.first_wait == found.queueing
    assert found.first_wait.max == 18
    assert found.slow_down.mean == pytest.approx((1 + 5.5) / 2)
    assert found.bounded_slow_down.mean == pytest.approx((1 + 2.2) / 2)
    assert found.makespan_s == 34
    assert found.utilisation == pytest.approx((20 * 2 + 4) / (2 * 24))
    document = found.document()  # flat, and it names units
    assert document["p99_jct_s"] == 21.98
    assert document["mean_queueing_s"] == 9
    assert document["max_finish_time_fairness"] == pytest.approx(22 / 4)
    assert not any(isinstance(value, dict) for value in document.values())
    with refusal("num_gpus"):
        measure(TWO_JOBS, 0)


@examples(60)
@given(SEEDS, st.booleans())
def test_all_is_as_a_loop_over_seconds_finds_it(seed: int, preempt: bool) -> None:
    told, num_gpus = random_schedule(seed, preempt)
    runs, seconds = told.runs, np.arange(0.0, told.finish.max() + 9)
    assert runs is not None
    busy, waiting, present = np.zeros((3, len(seconds)))
    waited, stay, beside = np.zeros((3, len(told.submit)))
    for index, second in enumerate(seconds):
        now = runs[(runs["start"] <= second) & (second < runs["end"])]
        here = (told.submit <= second) & (second < told.finish)
        waits = here & ~np.isin(np.arange(len(here)), now["job"])
        busy[index], present[index], waiting[index] = now["gpus"].sum(), here.sum(), waits.sum()
        waited, stay, beside = waited + waits, stay + here, beside + here * here.sum()
    assert_array_equal(busy_gpus(told).at(seconds), busy)
    assert_array_equal(pending_jobs(told).at(seconds), waiting)
    assert_array_equal(jobs_in_system(told).at(seconds), present)
    assert busy.max() <= num_gpus
    assert busy.sum() == (told.work * told.gpus).sum()
    assert_array_equal(queueing_s(told), waited)
    found = measure(told, num_gpus)
    assert found.queueing.mean == pytest.approx(waited.mean())
    span = told.finish.max() - told.submit.min()
    assert found.utilisation == pytest.approx(busy.sum() / span / num_gpus)
    assert found.sum_jct_s == (waited + told.work).sum()
    jct = sorted(told.finish - told.submit)
    place = 0.95 * (len(jct) - 1)  # linear between the ranks on both sides
    low = int(place)
    p95 = jct[low] + (place - low) * (jct[min(low + 1, len(jct) - 1)] - jct[low])
    assert found.jct.p95 == pytest.approx(p95)
    assert found.first_wait.max <= found.queueing.max
    assert found.slow_down.mean >= 1
    assert (found.preemptions > 0) == bool(told.preemptions.any())
    part = np.minimum(1.0, num_gpus / (beside / stay) / told.gpus)  # of its gang, in its share
    assert finish_time_fairness(told, num_gpus) == pytest.approx(stay / (told.work / part))
    if not preempt:  # starts and finishes say as much as the log
        for usage in (busy_gpus, pending_jobs):
            short = usage(replace(told, runs=None))
            assert_array_equal(usage(told).at(seconds), short.at(seconds))


def test_no_log_is_needed() -> None:
    schedule, num_gpus = preempted_schedule()
    assert measure(replace(schedule, runs=None), num_gpus) == measure(schedule, num_gpus)


def test_jobs_that_did_not_finish_count_as_jobs_alone() -> None:
    found = measure(schedule((10, 10, 30, 20, 2), (12, -1, -1, 4, 1)), 2)
    assert (found.jobs, found.finished, found.sum_jct_s) == (2, 1, 20)
    assert found.utilisation == 1
    found = measure(schedule((10, -1, -1, 20, 2), (12, -1, -1, 4, 1)), 2)
    assert found.sum_jct_s == 0
    assert np.isnan(found.jct.mean)
    assert np.isnan(found.jain)


def test_a_job_that_never_starts_waits_to_the_end() -> None:
    waiting = pending_jobs(schedule((0, 0, 5, 5, 1), (1, -1, -1, 5, 9)))
    assert waiting.at(np.array([0.5, 2.0, 100.0])).tolist() == [0, 1, 1]


def test_shared_gpus_count_by_thousandths() -> None:
    runs = [(0, 4, 0, 0, 1, 300), (0, 6, 1, 0, 1, 300), (2, 6, 2, 0, 1, 400)]
    told = schedule((0, 0, 4, 4, 0.3), (0, 0, 6, 6, 0.3), (2, 2, 6, 4, 0.4), runs=runs)
    for found in (busy_gpus(told), busy_gpus(replace(told, runs=None))):
        assert_array_equal(found.time, [0, 2, 4, 6])
        assert_array_equal(found.value, [0.6, 1.0, 0.7, 0.0])


def test_a_gang_on_two_nodes_is_one_run() -> None:
    runs = [(0, 4, 0, 0, 2, 1000), (0, 4, 0, 1, 1, 1000), (0, 6, 1, 0, 1, 1000)]
    start, end, job = job_runs(schedule((0, 0, 4, 4, 3), (0, 0, 6, 6, 1), runs=runs))
    assert_array_equal([job, start, end], [[0, 1], [0, 0], [4, 6]])


def test_without_a_log_nothing_is_made_up() -> None:
    for unknown, named in (
        (preempted_schedule()[0], "job"),
        (schedule((0, 0, -1, 1, 1)), "job 0"),
    ):
        for usage in (busy_gpus, pending_jobs):
            with refusal(named):
                usage(replace(unknown, runs=None))


BOTH = (0, 0, 10, 10, 2), (0, 10, 20, 10, 2)  # ask for 2 GPUs; the second waits for the first


@pytest.mark.parametrize(
    ("jobs", "num_gpus", "rho"),
    [
        ([(3, 3, 13, 10, 4)], 4, [1]),
        # first: two jobs beside each other for 10 s: alone 10·2 = 20; second: 1.5 on average
        (BOTH, 2, [10 / 20, 20 / 15]),
        # with 4 GPUs each of them has as much as it asks for in half of the cluster
        (BOTH, 4, [1, 2]),
    ],
)
def test_finish_time_fairness_by_hand(jobs: Any, num_gpus: int, rho: list[float]) -> None:
    assert_allclose(finish_time_fairness(schedule(*jobs), num_gpus), rho)


def test_sums_are_exact() -> None:
    large = np.array([2.0**52, 1.0, 1.0, 2.0**52])
    assert exact_sum(large) == 2**53 + 2
    assert exact_sum(np.full(10, 0.1)) == 1.0
    assert exact_sum(np.array([1e16, 1.0, 1.0, -1e16])) == 2.0
    assert exact_sum(np.zeros(0)) == 0


changes = st.lists(st.tuples(st.integers(0, 40), st.integers(-3, 3)), max_size=25)


@given(changes, st.integers(-5, 50), st.integers(1, 20))
def test_values_and_areas_are_those_of_a_loop_over_seconds(
    steps: list[tuple[int, int]], start: int, length: int
) -> None:
    time = np.array([at for at, _ in steps], np.float64)
    change = np.array([value for _, value in steps], np.float64)
    function = StepFunction.of_changes(time, change)
    seconds = np.arange(-5, 80)
    wanted = np.array([change[time <= second].sum() for second in seconds])
    assert_array_equal(function.at(seconds.astype(np.float64)), wanted)
    area = wanted[start + 5 : start + length + 5].sum()
    found = function.mean(np.array([float(start)]), np.array([float(start + length)]))
    assert found[0] * length == pytest.approx(area)
    assert (np.diff(function.time) > 0).all()
    assert (np.diff(function.value) != 0).all()


def test_half_seconds_count() -> None:
    function = StepFunction.of_changes(np.array([0.5, 2.0]), np.array([4.0, -4.0]))
    assert_array_equal(function.integral(np.array([0.0, 1.0, 2.0, 9.0])), [0, 2, 6, 6])


def test_jain_index_by_hand() -> None:
    assert jain_index(np.array([3.0, 3.0, 3.0])) == pytest.approx(1)
    assert jain_index(np.array([5.0, 0.0, 0.0, 0.0])) == pytest.approx(0.25)
    assert jain_index(np.array([1.0, 2.0])) == pytest.approx(9 / 10)
    assert np.isnan(jain_index(np.zeros(0)))


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=20), st.floats(0.1, 50))
def test_jain_index_does_not_know_the_unit(values: list[float], factor: float) -> None:
    found = jain_index(np.array(values))
    assert 1 / len(values) - 1e-9 <= found <= 1 + 1e-9
    assert jain_index(np.array(values) * factor) == pytest.approx(found)
