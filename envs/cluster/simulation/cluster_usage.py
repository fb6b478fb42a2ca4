"""What happens on a cluster over time: GPUs in use, jobs that run, jobs that wait."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from envs.cluster.simulation.schedule import NEVER, Schedule
from envs.cluster.simulation.step_function import StepFunction
from envs.cluster.workload.trace import WHOLE_GPU
from envs.errors import InputError

FloatArray = NDArray[np.float64]


def busy_gpus(schedule: Schedule) -> StepFunction:
    """GPUs held by jobs; a GPU that is shared counts by the thousandths that are taken.

    Read from the log of runs where one was kept; it has the runs that have ended.

    Raises:
        InputError: there is no log, and jobs were preempted or have not finished.
    """
    if schedule.runs is None:
        _check_runs_are_known(schedule)
        ran = schedule.finished
        start, end = schedule.start[ran], schedule.finish[ran]
        milli = np.rint(schedule.gpus[ran] * WHOLE_GPU)
    else:
        start, end = schedule.runs["start"], schedule.runs["end"]
        milli = schedule.runs["gpus"] * schedule.runs["milli"].astype(np.float64)
    held = _held(start, end, milli)  # whole numbers: no rounding adds up
    return StepFunction(held.time, held.value / WHOLE_GPU)


def running_jobs(schedule: Schedule) -> StepFunction:
    """Jobs that hold GPUs; otherwise as `busy_gpus`.

    Raises:
        InputError: as `busy_gpus`.
    """
    start, end, _ = job_runs(schedule)
    return _held(start, end, np.ones(len(start)))


def jobs_in_system(schedule: Schedule) -> StepFunction:
    """Jobs submitted and not finished; one that never finishes stays."""
    finish = schedule.finish[schedule.finished]
    return StepFunction.of_changes(
        np.concatenate([schedule.submit, finish]),
        np.concatenate([np.ones(len(schedule.submit)), -np.ones(len(finish))]),
    )


def pending_jobs(schedule: Schedule) -> StepFunction:
    """Jobs submitted that neither run nor have finished: the length of the queue.

    Raises:
        InputError: as `busy_gpus`.
    """
    start, end, job = job_runs(schedule)
    last = end == schedule.finish[job]  # the job leaves at the end of its last run
    return StepFunction.of_changes(
        np.concatenate([schedule.submit, start, end[~last]]),
        np.concatenate(
            [np.ones(len(schedule.submit)), -np.ones(len(start)), np.ones(int((~last).sum()))]
        ),
    )


def job_runs(schedule: Schedule) -> tuple[FloatArray, FloatArray, NDArray[np.int64]]:
    """(R,) start, end and job of every run of a gang, however many nodes it was on.

    Raises:
        InputError: as `busy_gpus`.
    """
    if schedule.runs is None:
        _check_runs_are_known(schedule)
        job = np.flatnonzero(schedule.finished)
        return schedule.start[job], schedule.finish[job], job
    runs = schedule.runs
    start, end = runs["start"].astype(np.float64), runs["end"].astype(np.float64)
    job = runs["job"].astype(np.int64)
    order = np.lexsort((end, start, job))
    start, end, job = start[order], end[order], job[order]
    first = np.ones(len(job), np.bool_)
    first[1:] = (np.diff(job) != 0) | (np.diff(start) != 0) | (np.diff(end) != 0)
    return start[first], end[first], job[first]


def _held(start: FloatArray, end: FloatArray, amount: FloatArray) -> StepFunction:
    return StepFunction.of_changes(np.concatenate([start, end]), np.concatenate([amount, -amount]))


def _check_runs_are_known(schedule: Schedule) -> None:
    unknown = (schedule.preemptions > 0) | ((schedule.start != NEVER) & ~schedule.finished)
    if unknown.any():
        raise InputError(
            "when it ran is known from a log of the runs alone, and none was kept",
            record=f"job {int(np.argmax(unknown))}",
        )
