"""What is reported of a schedule."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from envs.cluster.simulation.fairness import finish_time_fairness, jain_index
from envs.cluster.simulation.schedule import NEVER, Schedule
from envs.errors import InputError

FloatArray = NDArray[np.float64]
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


def measure(schedule: Schedule, num_gpus: int) -> ClusterMetrics:
    """All metrics of a schedule on `num_gpus` GPUs.

    Utilisation counts from the first submission to the last completion.

    Raises:
        InputError: `num_gpus` is below 1.
    """
    if num_gpus < 1:
        raise InputError(f"{num_gpus} is below 1", field="num_gpus")
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
