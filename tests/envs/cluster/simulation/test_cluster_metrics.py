"""Figures of schedules are those of their definitions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from random_schedules import preempted_schedule, random_schedule

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
from tests.refusal import refusal
from tests.strength import SEEDS, examples


def two_jobs() -> Schedule:
    """On 2 GPUs: the first job runs at once, the second, of 4 s, behind it."""
    return Schedule(
        submit=np.array([10.0, 12.0]),
        start=np.array([10.0, 30.0]),
        finish=np.array([30.0, 34.0]),
        work=np.array([20.0, 4.0]),
        gpus=np.array([2.0, 1.0]),
        held=np.array([20.0, 4.0]),
        preemptions=np.zeros(2, np.int32),
    )


def test_two_jobs_by_hand() -> None:
    found = measure(two_jobs(), 2)
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


@examples(40)
@given(SEEDS, st.booleans())
def test_all_is_as_a_loop_over_seconds_finds_it(seed: int, preempt: bool) -> None:
    schedule, num_gpus = random_schedule(seed, preempt=preempt)
    found = measure(schedule, num_gpus)
    assert schedule.runs is not None
    seconds = range(int(schedule.submit.min()), int(schedule.finish.max()))
    waited = np.zeros(len(schedule.submit))
    held = 0
    for second in seconds:
        now = [run for run in schedule.runs if run["start"] <= second < run["end"]]
        held += sum(int(run["gpus"]) for run in now)
        for job in range(len(waited)):
            here = schedule.submit[job] <= second < schedule.finish[job]
            waited[job] += here and job not in {run["job"] for run in now}
    assert_array_equal(queueing_s(schedule), waited)
    assert found.queueing.mean == pytest.approx(waited.mean())
    assert found.utilisation == pytest.approx(held / len(seconds) / num_gpus)
    assert found.sum_jct_s == sum(int(waited[j] + schedule.work[j]) for j in range(len(waited)))
    jct = sorted(schedule.finish - schedule.submit)
    place = 0.95 * (len(jct) - 1)  # linear between the ranks on both sides
    low = int(place)
    p95 = jct[low] + (place - low) * (jct[min(low + 1, len(jct) - 1)] - jct[low])
    assert found.jct.p95 == pytest.approx(p95)
    assert found.first_wait.max <= found.queueing.max
    assert found.slow_down.mean >= 1
    assert (found.preemptions > 0) == bool(schedule.preemptions.any())


def test_no_log_is_needed() -> None:
    schedule, num_gpus = preempted_schedule()
    assert measure(replace(schedule, runs=None), num_gpus) == measure(schedule, num_gpus)


def test_jobs_that_did_not_finish_count_as_jobs_alone() -> None:
    never = replace(
        two_jobs(),
        start=np.array([10.0, -1.0]),
        finish=np.array([30.0, -1.0]),
        held=np.array([20.0, 0.0]),
    )
    found = measure(never, 2)
    assert (found.jobs, found.finished, found.sum_jct_s) == (2, 1, 20)
    assert found.utilisation == 1
    none = replace(never, start=np.full(2, -1.0), finish=np.full(2, -1.0))
    found = measure(none, 2)
    assert found.sum_jct_s == 0
    assert np.isnan(found.jct.mean)
    assert np.isnan(found.jain)


def test_sums_are_exact() -> None:
    large = np.array([2.0**52, 1.0, 1.0, 2.0**52])
    assert exact_sum(large) == 2**53 + 2
    assert exact_sum(np.full(10, 0.1)) == 1.0
    assert exact_sum(np.array([1e16, 1.0, 1.0, -1e16])) == 2.0
    assert exact_sum(np.zeros(0)) == 0


def test_the_document_is_flat_and_names_units() -> None:
    document = measure(two_jobs(), 2).document()
    assert document["p99_jct_s"] == 21.98
    assert document["mean_queueing_s"] == 9
    assert document["max_finish_time_fairness"] == pytest.approx(22 / 4)
    assert not any(isinstance(value, dict) for value in document.values())


def test_a_cluster_without_gpus_is_refused() -> None:
    with refusal("num_gpus"):
        measure(two_jobs(), 0)


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


SECONDS = np.arange(0.0, 400.0)


@examples(40)
@given(SEEDS, st.booleans())
def test_every_second_is_as_a_loop_finds_it(seed: int, preempt: bool) -> None:
    schedule, num_gpus = random_schedule(seed, preempt=preempt)
    assert schedule.runs is not None
    busy, waiting, present = np.zeros((3, len(SECONDS)))
    for index, second in enumerate(SECONDS):
        now = [run for run in schedule.runs if run["start"] <= second < run["end"]]
        busy[index] = sum(run["gpus"] for run in now)
        for job in range(len(schedule.submit)):
            here = schedule.submit[job] <= second < schedule.finish[job]
            present[index] += here
            waiting[index] += here and job not in {run["job"] for run in now}
    assert_array_equal(busy_gpus(schedule).at(SECONDS), busy)
    assert_array_equal(pending_jobs(schedule).at(SECONDS), waiting)
    assert_array_equal(jobs_in_system(schedule).at(SECONDS), present)
    assert busy.max() <= num_gpus
    assert busy.sum() == (schedule.work * schedule.gpus).sum()


@examples(20)
@given(SEEDS)
def test_without_preemption_starts_and_finishes_say_as_much_as_the_log(seed: int) -> None:
    schedule, _ = random_schedule(seed, preempt=False)
    short = replace(schedule, runs=None)
    for usage in (busy_gpus, pending_jobs):
        assert_array_equal(usage(schedule).at(SECONDS), usage(short).at(SECONDS))


def test_shared_gpus_count_by_thousandths() -> None:
    runs = np.array([(0, 4, 0, 0, 1, 300), (0, 6, 1, 0, 1, 300), (2, 6, 2, 0, 1, 400)], RUN)
    found = busy_gpus(schedule_of(runs))
    assert_array_equal(found.time, [0, 2, 4, 6])
    assert_array_equal(found.value, [0.6, 1.0, 0.7, 0.0])
    short = busy_gpus(replace(schedule_of(runs), runs=None))
    assert_array_equal(short.value, found.value)


def test_a_gang_on_two_nodes_is_one_run() -> None:
    runs = np.array([(0, 4, 0, 0, 2, 1000), (0, 4, 0, 1, 1, 1000), (0, 6, 1, 0, 1, 1000)], RUN)
    start, end, job = job_runs(schedule_of(runs, jobs=2))
    assert list(zip(job.tolist(), start.tolist(), end.tolist(), strict=True)) == [
        (0, 0.0, 4.0),
        (1, 0.0, 6.0),
    ]


def test_a_job_that_never_starts_waits_to_the_end() -> None:
    schedule = Schedule(
        submit=np.array([0.0, 1.0]),
        start=np.array([0.0, -1.0]),
        finish=np.array([5.0, -1.0]),
        work=np.array([5.0, 5.0]),
        gpus=np.array([1.0, 9.0]),
        held=np.array([5.0, 0.0]),
        preemptions=np.zeros(2, np.int32),
    )
    assert pending_jobs(schedule).at(np.array([0.5, 2.0, 100.0])).tolist() == [0, 1, 1]


def test_without_a_log_nothing_is_made_up() -> None:
    schedule, _ = preempted_schedule()
    for usage in (busy_gpus, pending_jobs):
        with refusal("job"):
            usage(replace(schedule, runs=None))
    running = replace(schedule_of(np.zeros(0, RUN), jobs=1), finish=np.array([-1.0]), runs=None)
    with refusal("job 0"):
        busy_gpus(running)


def schedule_of(runs: np.ndarray, jobs: int = 3) -> Schedule:
    start, finish, gpus = np.zeros(jobs), np.zeros(jobs), np.zeros(jobs)
    for job in range(jobs):
        mine = runs[runs["job"] == job]
        start[job], finish[job] = mine["start"].min(initial=0), mine["end"].max(initial=0)
        gpus[job] = (mine["gpus"] * mine["milli"] / 1000).sum()
        if len(mine):
            start[job] = mine["start"].min()
    return Schedule(
        submit=start.copy(),
        start=start,
        finish=finish,
        work=np.maximum(finish - start, 1),
        gpus=gpus,
        held=finish - start,
        preemptions=np.zeros(jobs, np.int32),
        runs=runs,
    )


def schedule(jobs: list[tuple[float, float, float, float, float]]) -> Schedule:
    """Of (submit, start, finish, work, gpus)."""
    columns = np.array(jobs).T
    return Schedule(*columns, held=columns[3], preemptions=np.zeros(len(jobs), np.int32))


def test_a_job_alone_has_rho_1() -> None:
    assert finish_time_fairness(schedule([(3, 3, 13, 10, 4)]), 4).tolist() == [1.0]


def test_finish_time_fairness_of_two_jobs_by_hand() -> None:
    # both ask for the whole cluster of 2 GPUs; the second waits for the first
    found = finish_time_fairness(schedule([(0, 0, 10, 10, 2), (0, 10, 20, 10, 2)]), 2)
    # first: two jobs beside each other for 10 s: alone 10·2 = 20; second: 1.5 on average
    assert_allclose(found, [10 / 20, 20 / 15])
    # with 4 GPUs each of them has as much as it asks for in half of the cluster
    found = finish_time_fairness(schedule([(0, 0, 10, 10, 2), (0, 10, 20, 10, 2)]), 4)
    assert_allclose(found, [1, 2])


@examples(30)
@given(SEEDS, st.booleans())
def test_rho_is_that_of_a_loop_over_seconds(seed: int, preempt: bool) -> None:
    result, num_gpus = random_schedule(seed, preempt=preempt)
    for job, rho in enumerate(finish_time_fairness(result, num_gpus)):
        stay = np.arange(result.submit[job], result.finish[job])
        present = [
            np.count_nonzero((result.submit <= second) & (second < result.finish))
            for second in stay
        ]
        gpus_of_share = num_gpus / np.mean(present)
        part = min(1.0, gpus_of_share / result.gpus[job])
        alone = result.work[job] / part
        assert rho == pytest.approx(len(stay) / alone)


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
