from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_schedules import preempted_schedule, random_schedule

from envs.cluster.simulation.cluster_metrics import (
    busy_gpus,
    job_runs,
    jobs_in_system,
    pending_jobs,
    running_jobs,
)
from envs.cluster.simulation.cluster_state import RUN, Schedule
from envs.errors import InputError
from tests.strength import examples

SECONDS = np.arange(0.0, 400.0)


@examples(40)
@given(st.integers(0, 2**32), st.booleans())
def test_every_second_is_as_a_loop_finds_it(seed: int, preempt: bool) -> None:
    schedule, num_gpus = random_schedule(seed, preempt=preempt)
    assert schedule.runs is not None
    busy, running = np.zeros(len(SECONDS)), np.zeros(len(SECONDS))
    waiting, present = np.zeros(len(SECONDS)), np.zeros(len(SECONDS))
    for index, second in enumerate(SECONDS):
        now = [run for run in schedule.runs if run["start"] <= second < run["end"]]
        busy[index] = sum(run["gpus"] for run in now)
        running[index] = len({run["job"] for run in now})
        for job in range(len(schedule.submit)):
            here = schedule.submit[job] <= second < schedule.finish[job]
            present[index] += here
            waiting[index] += here and job not in {run["job"] for run in now}
    np.testing.assert_array_equal(busy_gpus(schedule).at(SECONDS), busy)
    np.testing.assert_array_equal(running_jobs(schedule).at(SECONDS), running)
    np.testing.assert_array_equal(pending_jobs(schedule).at(SECONDS), waiting)
    np.testing.assert_array_equal(jobs_in_system(schedule).at(SECONDS), present)
    assert busy.max() <= num_gpus
    assert busy.sum() == (schedule.work * schedule.gpus).sum()


@examples(20)
@given(st.integers(0, 2**32))
def test_without_preemption_starts_and_finishes_say_as_much_as_the_log(seed: int) -> None:
    schedule, _ = random_schedule(seed, preempt=False)
    short = replace(schedule, runs=None)
    for usage in (busy_gpus, running_jobs, pending_jobs):
        np.testing.assert_array_equal(usage(schedule).at(SECONDS), usage(short).at(SECONDS))


def test_shared_gpus_count_by_thousandths() -> None:
    runs = np.array([(0, 4, 0, 0, 1, 300), (0, 6, 1, 0, 1, 300), (2, 6, 2, 0, 1, 400)], RUN)
    found = busy_gpus(schedule_of(runs))
    np.testing.assert_array_equal(found.time, [0, 2, 4, 6])
    np.testing.assert_array_equal(found.value, [0.6, 1.0, 0.7, 0.0])
    short = busy_gpus(replace(schedule_of(runs), runs=None))
    np.testing.assert_array_equal(short.value, found.value)


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
    for usage in (busy_gpus, running_jobs, pending_jobs):
        with pytest.raises(InputError, match="job"):
            usage(replace(schedule, runs=None))
    running = replace(schedule_of(np.zeros(0, RUN), jobs=1), finish=np.array([-1.0]), runs=None)
    with pytest.raises(InputError, match="job 0"):
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
