"""Figures of a schedule: completion times, usage over time, fairness."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import numpy as np

from envs.arrays import FloatArray, IntArray, sums_before
from envs.bounds import Count, bounded
from envs.cluster.simulation.cluster_state import NEVER, Schedule
from envs.cluster.workload.trace import WHOLE_GPU
from envs.errors import InputError


@dataclass(frozen=True, eq=False)
class StepFunction:
    """0 before the first of its times; from each of them on a value, until the next."""

    time: FloatArray  # (K,) seconds, rising
    value: FloatArray  # (K,)

    @classmethod
    def of_changes(cls, time: FloatArray, change: FloatArray) -> StepFunction:
        """The sum of all changes so far; those of one instant count together.

        Args:
            time: (C,) seconds, in any order.
            change: (C,).
        """
        order = np.argsort(time, kind="stable")
        instants, first = np.unique(time[order], return_index=True)
        step = np.add.reduceat(change[order], first) if len(first) else instants
        kept = step != 0
        return cls(instants[kept], np.cumsum(step[kept]))

    def at(self, time: FloatArray) -> FloatArray:
        """The value at each time; at a jump the new one."""
        index = np.searchsorted(self.time, time, side="right")
        return np.asarray(np.concatenate([[0.0], self.value])[index])

    def integral(self, time: FloatArray) -> FloatArray:
        """The area from the beginning to each time."""
        if not len(self.time):
            return np.zeros(np.shape(time))
        area = sums_before(self.value[:-1] * np.diff(self.time))
        index = np.maximum(np.searchsorted(self.time, time, side="right") - 1, 0)
        since = np.maximum(time - self.time[index], 0.0)
        return np.asarray(area[index] + self.value[index] * since)

    def mean(self, start: FloatArray, end: FloatArray) -> FloatArray:
        """The mean from each start to its end, which is later."""
        return np.asarray((self.integral(end) - self.integral(start)) / (end - start))


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
    times = np.concatenate([start, end])
    held = StepFunction.of_changes(times, np.concatenate([milli, -milli]))  # exact: whole numbers
    return StepFunction(held.time, held.value / WHOLE_GPU)


def jobs_in_system(schedule: Schedule) -> StepFunction:
    """Jobs submitted and not finished; one that never finishes stays."""
    return _count(schedule.submit, ended=schedule.finish[schedule.finished])


def pending_jobs(schedule: Schedule) -> StepFunction:
    """Jobs submitted that neither run nor have finished: the length of the queue.

    Raises:
        InputError: as `busy_gpus`.
    """
    start, end, job = job_runs(schedule)
    stopped = end[end != schedule.finish[job]]  # it leaves at the end of its last run
    return _count(np.concatenate([schedule.submit, stopped]), ended=start)


def _count(begun: FloatArray, ended: FloatArray) -> StepFunction:
    """How many have begun and not ended, from the times of both."""
    change = np.repeat([1.0, -1.0], [len(begun), len(ended)])
    return StepFunction.of_changes(np.concatenate([begun, ended]), change)


def job_runs(schedule: Schedule) -> tuple[FloatArray, FloatArray, IntArray]:
    """(R,) start, end and job of every run of a gang, however many nodes it was on.

    Raises:
        InputError: as `busy_gpus`.
    """
    if schedule.runs is None:
        _check_runs_are_known(schedule)
        job = np.flatnonzero(schedule.finished)
        return schedule.start[job], schedule.finish[job], job
    runs = np.unique(schedule.runs[["job", "start", "end"]])
    return (
        runs["start"].astype(np.float64),
        runs["end"].astype(np.float64),
        runs["job"].astype(np.int64),
    )


def _check_runs_are_known(schedule: Schedule) -> None:
    unknown = (schedule.preemptions > 0) | ((schedule.start != NEVER) & ~schedule.finished)
    if unknown.any():
        raise InputError(
            "when it ran is known from a log of the runs alone, and none was kept",
            record=f"job {int(np.argmax(unknown))}",
        )


def finish_time_fairness(schedule: Schedule, num_gpus: int) -> FloatArray:
    """(F,) rho of the jobs that finished: JCT over the JCT in a cluster share of one's own.

    Themis (Mahajan et al., NSDI 2020, section 3): rho = T_shared / T_independent, where the job
    alone has 1/n of the cluster. n is the mean number of jobs in the system, itself included, from
    its submission to its completion. Gangs are rigid here: where a share of M/n GPUs is smaller
    than the gang of g, the job has g GPUs for (M/n)/g of the time, so

        T_independent = work · max(1, g·n/M).

    rho up to 1 is fair: sharing has not made the job slower than a share of its own would.

    Args:
        schedule: of J jobs.
        num_gpus: M, GPUs of the cluster.
    """
    ended = schedule.finished
    submit, finish = schedule.submit[ended], schedule.finish[ended]
    beside = jobs_in_system(schedule).mean(submit, finish)
    share = np.maximum(1.0, schedule.gpus[ended] * beside / num_gpus)
    return np.asarray((finish - submit) / (schedule.work[ended] * share))


def jain_index(values: FloatArray) -> float:
    """(sum x)² / (n · sum x²): from 1/n, one has all, to 1, all have the same; NaN of no values.

    Jain, Chiu, Hawe, DEC-TR-301, 1984.
    """
    if not len(values):
        return float("nan")
    scaled = values / values.max()  # squares of large values are exact to rounding all the same
    return float(scaled.sum() ** 2 / (len(values) * np.square(scaled).sum()))


ROUNDING = 1e-9
BOUND_S = 10.0  # jobs shorter than this have the slow-down of one of this length


@dataclass(frozen=True)
class Distribution:
    """Quantiles are those of `numpy.quantile`: linear between ranks (type 7 of Hyndman and Fan)."""

    mean: float
    p50: float
    p95: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: FloatArray) -> Distribution:
        """Of one value or more; all NaN of none."""
        if not len(values):
            return cls(*[float("nan")] * 5)
        p50, p95, p99 = np.quantile(values, (0.5, 0.95, 0.99)).tolist()
        mean = exact_sum(values) / len(values)
        return cls(mean, p50, p95, p99, float(values.max()))


@dataclass(frozen=True)
class ClusterMetrics:
    """Of the jobs that finished, where nothing else is said; times in seconds."""

    jobs: int  # of the trace
    finished: int
    sum_jct_s: int | float  # an int, and exact, where all JCTs are whole seconds
    jct: Distribution  # completion minus submission
    first_wait: Distribution  # start of the first run minus submission, of the jobs that started
    queueing: Distribution  # JCT minus the time in which GPUs were held
    slow_down: Distribution  # JCT over the job's work
    bounded_slow_down: Distribution  # max(1, JCT / max(work, 10 s)), Feitelson et al., 1997
    makespan_s: float  # the last completion, since the trace's second 0
    utilisation: float  # GPU-seconds held over those there were
    finish_time_fairness: Distribution  # rho, see `fairness.finish_time_fairness`
    unfair: float  # share of the jobs with rho above 1
    jain: float  # index of rho
    preemptions: int  # of all jobs

    def document(self) -> dict[str, object]:
        """As one flat mapping of numbers: `mean_jct_s`, `p99_queueing_s`, ..."""
        flat: dict[str, object] = {}
        seconds = {"jct", "first_wait", "queueing"}
        for name, value in asdict(self).items():
            if isinstance(value, dict):
                unit = "_s" if name in seconds else ""
                flat |= {f"{part}_{name}{unit}": number for part, number in value.items()}
            else:
                flat[name] = value
        return flat


@bounded
def measure(schedule: Schedule, num_gpus: Count) -> ClusterMetrics:
    """All metrics of a schedule on `num_gpus` GPUs.

    Utilisation counts from the first submission to the last completion.
    """
    ended, jct, work = schedule.finished, schedule.jct, schedule.work[schedule.finished]
    started = schedule.start != NEVER
    rho = finish_time_fairness(schedule, num_gpus)
    return ClusterMetrics(
        jobs=len(ended),
        finished=int(ended.sum()),
        sum_jct_s=exact_sum(jct),
        jct=Distribution.of(jct),
        first_wait=Distribution.of((schedule.start - schedule.submit)[started]),
        queueing=Distribution.of(queueing_s(schedule)),
        slow_down=Distribution.of(jct / work),
        bounded_slow_down=Distribution.of(np.maximum(1.0, jct / np.maximum(work, BOUND_S))),
        makespan_s=schedule.makespan,
        utilisation=_utilisation(schedule, num_gpus),
        finish_time_fairness=Distribution.of(rho),
        unfair=float(np.mean(rho > 1 + ROUNDING)) if len(rho) else float("nan"),
        jain=jain_index(rho),
        preemptions=int(schedule.preemptions.sum()),
    )


def queueing_s(schedule: Schedule) -> FloatArray:
    """(F,) seconds for which each finished job has waited, before its first run and after it."""
    return np.asarray((schedule.finish - schedule.submit - schedule.held)[schedule.finished])


def exact_sum(values: FloatArray) -> int | float:
    """The sum: an int where all values are whole numbers, else correctly rounded."""
    if len(values) and (values == np.floor(values)).all() and np.abs(values).max() < 2.0**53:
        return int(sum(values.astype(np.int64).tolist()))
    return math.fsum(values.tolist())


def _utilisation(schedule: Schedule, num_gpus: int) -> float:
    """NaN where nothing has finished, 0 where that took no time."""
    if not schedule.finished.any():
        return float("nan")
    span = schedule.makespan - float(schedule.submit.min())
    return math.fsum(schedule.held * schedule.gpus) / (num_gpus * span) if span else 0.0
