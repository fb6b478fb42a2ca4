"""Figures of schedules are those of their definitions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from random_schedules import PREEMPTED, random_schedule

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


def schedule_of(*jobs: tuple[float, ...], runs: list[Any] | None = None) -> Schedule:
    """Of jobs with their submission, start, finish, work and GPUs; -1: never."""
    submit, start, finish, work, gpus = np.array(jobs, float).T
    log = None if runs is None else np.array(runs, RUN)
    none = np.zeros(len(jobs), np.int32)
    return Schedule(submit, start, finish, work, gpus, finish - start, none, log)


# on 2 GPUs: the first job runs at once, the second, of 4 s, behind it
TWO = schedule_of((10, 10, 30, 20, 2), (12, 30, 34, 4, 1))


def test_two_jobs_by_hand() -> None:
    found = measure(TWO, 2)
    assert (found.jobs, found.finished, found.preemptions, found.makespan_s) == (2, 2, 0, 34)
    assert found.sum_jct_s == 42
    assert isinstance(found.sum_jct_s, int)
    assert found.jct == Distribution(21.0, 21.0, 21.9, 21.98, 22.0)
    assert found.first_wait == found.queueing
    assert found.first_wait.max == 18
    assert found.slow_down.mean == pytest.approx((1 + 5.5) / 2)
    assert found.bounded_slow_down.mean == pytest.approx((1 + 2.2) / 2)
    assert found.utilisation == pytest.approx((20 * 2 + 4) / (2 * 24))
    document = found.document()
    assert (document["p99_jct_s"], document["mean_queueing_s"]) == (21.98, 9)
    assert document["max_finish_time_fairness"] == pytest.approx(22 / 4)
    assert not any(isinstance(value, dict) for value in document.values())


SECONDS = np.arange(0.0, 400.0)


@examples(40)
@given(seed=SEEDS, preempt=st.booleans())
@example(seed=PREEMPTED, preempt=True)
def test_all_is_as_counting_seconds_finds_it(seed: int, preempt: bool) -> None:
    schedule, num_gpus = random_schedule(seed, preempt=preempt)
    found, runs = measure(schedule, num_gpus), schedule.runs
    assert runs is not None
    second = SECONDS[:, None]
    jobs = np.arange(len(schedule.submit))
    here = (schedule.submit <= second) & (second < schedule.finish)  # by second and job
    now = (runs["start"] <= second) & (second < runs["end"])  # by second and run
    busy, present = now @ runs["gpus"], here.sum(axis=1)
    waits = here & (now @ (runs["job"][:, None] == jobs) == 0)
    waited, stayed = waits.sum(axis=0), here.sum(axis=0)
    assert_array_equal(busy_gpus(schedule).at(SECONDS), busy)
    assert_array_equal(pending_jobs(schedule).at(SECONDS), waits.sum(axis=1))
    assert_array_equal(jobs_in_system(schedule).at(SECONDS), present)
    assert_array_equal(queueing_s(schedule), waited)
    assert busy.max() <= num_gpus
    assert busy.sum() == (schedule.work * schedule.gpus).sum()
    span = schedule.finish.max() - schedule.submit.min()
    assert found.utilisation == pytest.approx(busy.sum() / span / num_gpus)
    assert found.queueing.mean == pytest.approx(waited.mean())
    assert found.sum_jct_s == (waited + schedule.work).sum() == stayed.sum()
    place = 0.95 * (len(jobs) - 1)  # linear between the ranks on both sides
    assert found.jct.p95 == pytest.approx(np.interp(place, jobs, sorted(stayed)))
    assert found.first_wait.max <= found.queueing.max
    assert found.slow_down.mean >= 1
    assert (found.preemptions > 0) == bool(schedule.preemptions.any())
    for job, rho in enumerate(finish_time_fairness(schedule, num_gpus)):
        gpus_of_share = num_gpus / present[here[:, job]].mean()
        part = min(1.0, gpus_of_share / schedule.gpus[job])
        assert rho == pytest.approx(stayed[job] / (schedule.work[job] / part))
    short = replace(schedule, runs=None)
    assert measure(short, num_gpus) == found
    for usage in (busy_gpus, pending_jobs):
        if schedule.preemptions.any():
            with refusal("job"):
                usage(short)
        else:
            assert_array_equal(usage(schedule).at(SECONDS), usage(short).at(SECONDS))


def test_jobs_that_did_not_finish_count_as_jobs_alone() -> None:
    found = measure(schedule_of((10, 10, 30, 20, 2), (12, -1, -1, 4, 1)), 2)
    assert (found.jobs, found.finished, found.sum_jct_s, found.utilisation) == (2, 1, 20, 1)
    assert found.first_wait.mean == 0
    none = measure(schedule_of((10, -1, -1, 20, 2), (12, -1, -1, 4, 1)), 2)
    assert none.sum_jct_s == 0
    assert np.isnan([none.jct.mean, none.jain]).all()


@pytest.mark.parametrize(
    ("values", "total"),
    [
        ([2.0**52, 1.0, 1.0, 2.0**52], 2**53 + 2),
        ([0.1] * 10, 1.0),
        ([1e16, 1.0, 1.0, -1e16], 2.0),
        ([], 0),
    ],
)
def test_sums_are_exact(values: list[float], total: float) -> None:
    assert exact_sum(np.array(values)) == total


changes = st.lists(st.tuples(st.integers(0, 40), st.integers(-3, 3)), max_size=25)


@given(changes, st.integers(-5, 50), st.integers(1, 20))
def test_values_and_areas_are_those_of_a_loop_over_seconds(
    steps: list[tuple[int, int]], start: int, length: int
) -> None:
    time, change = np.array(steps, float).reshape(-1, 2).T
    function = StepFunction.of_changes(time, change)
    seconds = np.arange(-5.0, 80.0)
    wanted = np.array([change[time <= second].sum() for second in seconds])
    assert_array_equal(function.at(seconds), wanted)
    area = wanted[start + 5 : start + length + 5].sum()
    found = function.mean(np.array([float(start)]), np.array([float(start + length)]))
    assert found[0] * length == pytest.approx(area)
    assert (np.diff(function.time) > 0).all()
    assert (np.diff(function.value) != 0).all()


def test_half_seconds_count() -> None:
    function = StepFunction.of_changes(np.array([0.5, 2.0]), np.array([4.0, -4.0]))
    assert_array_equal(function.integral(np.array([0.0, 1.0, 2.0, 9.0])), [0, 2, 6, 6])


def test_shared_gpus_count_by_thousandths() -> None:
    logged = schedule_of(
        (0, 0, 4, 4, 0.3), (0, 0, 6, 6, 0.3), (2, 2, 6, 4, 0.4),
        runs=[(0, 4, 0, 0, 1, 300), (0, 6, 1, 0, 1, 300), (2, 6, 2, 0, 1, 400)],
    )  # fmt: skip
    for one in (logged, replace(logged, runs=None)):
        found = busy_gpus(one)
        assert_array_equal(found.time, [0, 2, 4, 6])
        assert_array_equal(found.value, [0.6, 1.0, 0.7, 0.0])


def test_a_gang_on_two_nodes_is_one_run() -> None:
    logged = schedule_of(
        (0, 0, 4, 4, 3), (0, 0, 4, 4, 1), (0, 0, 6, 6, 1),
        runs=[(0, 4, 0, 0, 2, 1000), (0, 4, 0, 1, 1, 1000), (0, 4, 1, 2, 1, 1000),
              (0, 6, 2, 1, 1, 1000)],
    )  # fmt: skip
    start, end, job = job_runs(logged)
    assert_array_equal([start, end, job], [[0, 0, 0], [4, 4, 6], [0, 1, 2]])


def test_a_job_that_never_starts_waits_to_the_end() -> None:
    waiting = pending_jobs(schedule_of((0, 0, 5, 5, 1), (1, -1, -1, 5, 9)))
    assert_array_equal(waiting.at(np.array([0.5, 2.0, 100.0])), [0, 1, 1])


def test_a_run_that_has_not_ended_is_not_made_up() -> None:
    with refusal("job 0"):
        busy_gpus(schedule_of((0, 0, -1, 1, 0)))


@pytest.mark.parametrize(
    ("jobs", "num_gpus", "rho"),
    [
        ([(3, 3, 13, 10, 4)], 4, [1]),  # alone
        # Both ask for 2 GPUs, the second waits for the first. The first has the other beside it for
        # 10 s: half of 2 GPUs take 20 s; the second has 1.5 jobs in the system on average.
        ([(0, 0, 10, 10, 2), (0, 10, 20, 10, 2)], 2, [10 / 20, 20 / 15]),
        # With 4 GPUs each has as much as it asks for in half of the cluster.
        ([(0, 0, 10, 10, 2), (0, 10, 20, 10, 2)], 4, [1, 2]),
    ],
)
def test_finish_time_fairness_by_hand(
    jobs: list[tuple[float, ...]], num_gpus: int, rho: list[float]
) -> None:
    assert_allclose(finish_time_fairness(schedule_of(*jobs), num_gpus), rho)


@pytest.mark.parametrize(
    ("values", "index"),
    [
        ([3.0, 3.0, 3.0], 1),
        ([5.0, 0.0, 0.0, 0.0], 0.25),
        ([1.0, 2.0], 9 / 10),
        ([], np.nan),
    ],
)
def test_jain_index_by_hand(values: list[float], index: float) -> None:
    assert jain_index(np.array(values)) == pytest.approx(index, nan_ok=True)


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=20), st.floats(0.1, 50))
def test_jain_index_does_not_know_the_unit(values: list[float], factor: float) -> None:
    found = jain_index(np.array(values))
    assert 1 / len(values) - 1e-9 <= found <= 1 + 1e-9
    assert jain_index(np.array(values) * factor) == pytest.approx(found)
