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
    jobs, gpu_hours, duration_s = len(trace), trace.gpu_seconds / HOUR_S, trace.duration_s
    total, nan = float(gpu_hours.sum()), float("nan")
    hour = (trace.submit_s + origin_s) // HOUR_S % DAY_H
    gangs = []
    for size in np.unique(trace.num_gpus):
        of_size = trace.num_gpus == size
        own_s, hours = duration_s[of_size], float(gpu_hours[of_size].sum())
        gangs.append(
            GangSize(
                num_gpus=int(size),
                jobs=len(own_s),
                job_share=len(own_s) / jobs,
                gpu_hours=hours,
                gpu_hour_share=hours / total if total else 0.0,
                mean_duration_s=float(own_s.mean()),
                duration_s=np.quantile(own_s, QUANTILES),
            )
        )
    by_queue, queue_hours = _by_label(trace.queue, gpu_hours)
    by_user, user_hours = _by_label(trace.user, gpu_hours)
    return TraceSummary(
        name=trace.name,
        jobs=jobs,
        span_s=trace.span_s,
        gpu_hours=total,
        mean_duration_s=float(duration_s.mean()) if jobs else nan,
        duration_s=np.quantile(duration_s, QUANTILES) if jobs else np.full(len(QUANTILES), nan),
        mean_interarrival_s=trace.span_s / (jobs - 1) if jobs > 1 else nan,
        max_gpus=int(trace.num_gpus.max(initial=0)),
        mean_concurrent_gpus=total * HOUR_S / trace.span_s if trace.span_s else nan,
        gangs=tuple(gangs),
        arrivals_by_hour=np.bincount(hour, minlength=DAY_H).astype(np.int64),
        jobs_by_queue=by_queue,
        gpu_hours_by_queue=queue_hours,
        jobs_by_user=by_user,
        gpu_hours_by_user=user_hours,
    )


def _by_label(labels: Labels, gpu_hours: FloatArray) -> tuple[dict[str, int], dict[str, float]]:
    names = (UNNAMED, *labels.names)
    place = labels.codes - UNKNOWN
    jobs = np.bincount(place, minlength=len(names))
    hours = np.bincount(place, weights=gpu_hours, minlength=len(names))
    order = [code for code in np.argsort(-jobs, kind="stable") if jobs[code]]
    return {names[i]: int(jobs[i]) for i in order}, {names[i]: float(hours[i]) for i in order}
