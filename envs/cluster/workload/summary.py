"""What a trace is made of, as numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from envs.arrays import FloatArray, IntArray
from envs.cluster.workload.trace import UNKNOWN, Labels, Trace

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
HOUR_S, DAY_H = 3600, 24
UNNAMED = ""  # key of the jobs without a label


@dataclass(frozen=True, eq=False)
class GangSize:
    """The jobs that ask for one number of GPUs."""

    num_gpus: int
    jobs: int
    job_share: float  # of all jobs, 0..1
    gpu_hours: float
    gpu_hour_share: float  # of all GPU-hours, 0..1
    mean_duration_s: float
    duration_s: FloatArray  # (Q,) at QUANTILES


@dataclass(frozen=True, eq=False)
class TraceSummary:
    """The numbers of a trace; all zero or NaN where it has no jobs."""

    name: str
    jobs: int
    span_s: int  # from the first submission to the last
    gpu_hours: float
    mean_duration_s: float
    duration_s: FloatArray  # (Q,) at QUANTILES
    mean_interarrival_s: float
    max_gpus: int  # of one job
    mean_concurrent_gpus: float  # GPU-seconds over the span: the GPUs at an offered load of 1
    gangs: tuple[GangSize, ...]  # by ascending number of GPUs
    arrivals_by_hour: IntArray  # (24,) jobs submitted in each hour of the day
    jobs_by_queue: Mapping[str, int]  # most jobs first; UNNAMED: without a queue
    gpu_hours_by_queue: Mapping[str, float]  # in the same order
    jobs_by_user: Mapping[str, int]
    gpu_hours_by_user: Mapping[str, float]

    def offered_load(self, gpus: int) -> float:
        """GPU-seconds asked for per GPU-second of `gpus` GPUs over the span; NaN without one."""
        return self.mean_concurrent_gpus / gpus


def summarise(trace: Trace, origin_s: int = 0) -> TraceSummary:
    """The summary of `trace`.

    Args:
        trace: J jobs.
        origin_s: what the clock showed at second 0 of the trace, in seconds since a midnight; the
            hours of the day count from there.
    """
    jobs, gpu_hours = len(trace), trace.gpu_seconds / HOUR_S
    total = float(gpu_hours.sum())
    hour = (trace.submit_s + origin_s) // HOUR_S % DAY_H
    by_queue, queue_hours = _by_label(trace.queue, gpu_hours)
    by_user, user_hours = _by_label(trace.user, gpu_hours)
    return TraceSummary(
        name=trace.name,
        jobs=jobs,
        span_s=trace.span_s,
        gpu_hours=total,
        mean_duration_s=_mean(trace.duration_s),
        duration_s=_quantiles(trace.duration_s),
        mean_interarrival_s=trace.span_s / (jobs - 1) if jobs > 1 else float("nan"),
        max_gpus=int(trace.num_gpus.max(initial=0)),
        mean_concurrent_gpus=total * HOUR_S / trace.span_s if trace.span_s else float("nan"),
        gangs=tuple(_gang(trace, gpu_hours, size) for size in np.unique(trace.num_gpus)),
        arrivals_by_hour=np.bincount(hour, minlength=DAY_H).astype(np.int64),
        jobs_by_queue=by_queue,
        gpu_hours_by_queue=queue_hours,
        jobs_by_user=by_user,
        gpu_hours_by_user=user_hours,
    )


def _gang(trace: Trace, gpu_hours: FloatArray, size: int) -> GangSize:
    of_size = trace.num_gpus == size
    jobs, hours, total = int(of_size.sum()), float(gpu_hours[of_size].sum()), gpu_hours.sum()
    return GangSize(
        num_gpus=int(size),
        jobs=jobs,
        job_share=jobs / len(trace),
        gpu_hours=hours,
        gpu_hour_share=hours / float(total) if total else 0.0,
        mean_duration_s=_mean(trace.duration_s[of_size]),
        duration_s=_quantiles(trace.duration_s[of_size]),
    )


def _by_label(labels: Labels, gpu_hours: FloatArray) -> tuple[dict[str, int], dict[str, float]]:
    place = labels.codes - UNKNOWN
    jobs = np.bincount(place, minlength=len(labels.names) + 1)
    hours = np.bincount(place, weights=gpu_hours, minlength=len(labels.names) + 1)
    names = (UNNAMED, *labels.names)
    order = [code for code in np.argsort(-jobs, kind="stable") if jobs[code]]
    return {names[i]: int(jobs[i]) for i in order}, {names[i]: float(hours[i]) for i in order}


def _mean(values: IntArray) -> float:
    return float(values.mean()) if len(values) else float("nan")


def _quantiles(values: IntArray) -> FloatArray:
    if not len(values):
        return np.full(len(QUANTILES), np.nan)
    return np.asarray(np.quantile(values, QUANTILES), np.float64)
