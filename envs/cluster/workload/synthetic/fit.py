"""The statistics of a trace, from which traces like it are generated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import ks_2samp, rankdata

from envs.arrays import FloatArray, IntArray
from envs.cluster.workload.synthetic.arrivals import (
    SessionShape,
    WeeklyClock,
    fit_sessions,
    gap_scores,
    normal_scores,
)
from envs.cluster.workload.synthetic.parameters import (
    Durations,
    Memory,
    QuantileTable,
    WorkloadParameters,
)
from envs.cluster.workload.trace import WHOLE_GPU, Trace
from envs.errors import InputError

LEAST_JOBS = 50  # that a trace needs
LEAST_OF_SIZE = 20  # that a gang size needs for durations of its own
BURST_GAP_S = 60
LEAST_PAIRS = 20  # of jobs, for a statistic of pairs
LAGS = np.unique(np.geomspace(1, 128, 15).astype(int))  # places apart at which memory is measured
PERSISTENCE = 1 - 1 / np.geomspace(1.1, 512, 55)  # values tried
DIGITS = 4


def fit(trace: Trace, *, name: str, origin_s: int) -> WorkloadParameters:
    """The statistics of `trace`; they hold no job of it.

    Args:
        trace: at least `LEAST_JOBS` jobs on whole GPUs.
        name: of the parameters.
        origin_s: what the clock showed at second 0 of the trace, in seconds after a Monday 0:00;
            `weekly_clock.EPOCH_S` more where that is given in seconds since 1970.

    Raises:
        InputError: too few jobs, jobs on a fraction of a GPU, all submitted at once.
    """
    if len(trace) < LEAST_JOBS or trace.span_s == 0:
        raise InputError(f"{LEAST_JOBS} jobs, not all at once, are needed", file=trace.name)
    if (trace.gpu_milli != WHOLE_GPU).any():
        job = int(np.argmax(trace.gpu_milli != WHOLE_GPU))
        raise InputError("fractions of a GPU", file=trace.name, record=job, field="gpu_milli")
    clock_s = trace.submit_s + origin_s
    clock = WeeklyClock.fit(clock_s)
    clock = WeeklyClock(clock.daily.round(DIGITS), clock.weekly.round(DIGITS))
    gap = np.diff(clock_s)
    burst = gap <= BURST_GAP_S
    pause = np.diff(clock.busy_time(clock_s))[~burst]
    constant = np.array([BURST_GAP_S])  # where there is no gap of a kind
    gpus = trace.num_gpus
    sizes, count = np.unique(gpus, return_counts=True)
    place = np.searchsorted(sizes, gpus).astype(np.int64)
    starts = np.concatenate([[True], np.diff(place) != 0])
    shape = SessionShape(
        **{
            name: [round(value, DIGITS) for value in column]
            for name, column in fit_sessions(_ranks(gap), place, len(sizes))
        }
    )
    own = normal_scores(_ranks(gap)) - gap_scores(shape, place, starts)[1:]
    duration_ranks = np.zeros(len(trace))
    for size in sizes:
        duration_ranks[gpus == size] = _ranks(trace.duration_s[gpus == size])
    return WorkloadParameters(
        name=name,
        jobs=len(trace),
        daily=clock.daily,
        weekly=clock.weekly,
        burst_gap_s=BURST_GAP_S,
        burst_share=round(float(burst.mean()), 6),
        burst_gap=QuantileTable.fit(gap[burst] if burst.any() else constant),
        pause=QuantileTable.fit(pause if len(pause) else constant),
        gap_memory=_memory(_ranks(own), np.ones(len(gap), np.int64)),
        gang_sizes=sizes.tolist(),
        gang_shares=(count / len(trace)).round(6).tolist(),
        sessions=shape,
        durations=[
            Durations(
                num_gpus=group,
                **dict(QuantileTable.fit(trace.duration_s[np.isin(gpus, group)])),
            )
            for group in _groups(sizes.tolist(), count.tolist())
        ],
        duration_memory=_memory(duration_ranks, gpus.astype(np.int64)),
    )


def _groups(sizes: list[int], count: list[int]) -> list[list[int]]:
    """Gang sizes that share durations: alone with enough jobs, else with the next such sizes.

    Too few even so join the group before them, or after where there is none.
    """
    groups: list[list[int]] = []
    jobs: list[int] = []
    for size, number in zip(sizes, count, strict=True):
        shared = groups and (len(groups[-1]) > 1 or jobs[-1] < LEAST_OF_SIZE)
        if shared and number < LEAST_OF_SIZE:
            groups[-1].append(size)
            jobs[-1] += number
        else:
            groups.append([size])
            jobs.append(number)
    for place in range(len(groups) - 1, -1, -1):
        if jobs[place] < LEAST_OF_SIZE and len(groups) > 1:
            into = place - 1 if place else 1
            groups[into] = sorted(groups[into] + groups[place])
            jobs[into] += jobs[place]
            del groups[place], jobs[place]
    return groups


def _ranks(values: NDArray[np.floating | np.integer]) -> FloatArray:
    """(V,) mean rank of each value over V: its place in the distribution, 0..1."""
    return np.asarray((rankdata(values) - 0.5) / len(values))


def _memory(ranks: FloatArray, kind: IntArray) -> Memory:
    """The memory nearest to the rank correlations of pairs of one kind, `LAGS` places apart.

    It has the correlation of neighbours; the others, in least squares, decide how long it lasts.
    """
    lags, found = [], []
    for lag in LAGS[len(ranks) > LAGS]:
        pairs = kind[lag:] == kind[:-lag]
        first, second = ranks[:-lag][pairs], ranks[lag:][pairs]
        if len(first) >= LEAST_PAIRS and first.std() > 0 and second.std() > 0:
            lags.append(lag)
            found.append(float(np.corrcoef(first, second)[0, 1]))
    if not lags:
        return Memory(strength=0.0, persistence=0.0)
    strength = np.clip(found[0] / PERSISTENCE, 0.0, 1.0)
    places = np.array(lags, np.float64)
    errors = [
        np.square(share * persistence**places - np.array(found)).sum()
        for share, persistence in zip(strength, PERSISTENCE, strict=True)
    ]
    best = int(np.argmin(errors))
    return Memory(
        strength=round(float(strength[best]), DIGITS),
        persistence=round(float(PERSISTENCE[best]), DIGITS),
    )


Values = NDArray[np.floating | np.integer]


@dataclass(frozen=True)
class Agreement:
    """Distances between a real trace and a synthetic one; 0 is alike."""

    duration_ks: float  # 0..1
    interarrival_ks: float  # 0..1
    gang_share: float  # largest difference of a gang size's share of the jobs, 0..1
    gang_duration_ks: float  # of the durations by gang size, weighted by the real shares, 0..1
    load_ratio: float  # synthetic GPU-seconds per second of the span over real ones
    same_gang: tuple[float, float]  # share of jobs with the gang size of the one before: real, syn.
    duration_memory: tuple[float, float]  # rank correlation of consecutive durations
    gap_memory: tuple[float, float]  # rank correlation of consecutive gaps


def kolmogorov_smirnov(first: Values, second: Values) -> float:
    """Largest distance of the two empirical distribution functions, 0..1 (Smirnov 1939)."""
    with np.errstate(divide="ignore"):  # in a probability that is not used
        return float(ks_2samp(first, second, method="asymp").statistic)


def agreement(real: Trace, synthetic: Trace) -> Agreement:
    """The distances of `synthetic` from `real`; at least three jobs each."""

    def both(of: Callable[[Trace], float]) -> tuple[float, float]:
        return of(real), of(synthetic)

    by_gang, differences = 0.0, []
    for size in np.union1d(real.num_gpus, synthetic.num_gpus):
        samples = [trace.duration_s[trace.num_gpus == size] for trace in (real, synthetic)]
        share = len(samples[0]) / len(real)
        differences.append(abs(share - len(samples[1]) / len(synthetic)))
        if share:
            by_gang += share * (kolmogorov_smirnov(*samples) if len(samples[1]) else 1.0)
    return Agreement(
        duration_ks=kolmogorov_smirnov(real.duration_s, synthetic.duration_s),
        interarrival_ks=kolmogorov_smirnov(np.diff(real.submit_s), np.diff(synthetic.submit_s)),
        gang_share=max(differences),
        gang_duration_ks=by_gang,
        load_ratio=synthetic.offered_load(1) / real.offered_load(1),
        same_gang=both(lambda trace: float(np.mean(trace.num_gpus[1:] == trace.num_gpus[:-1]))),
        duration_memory=both(lambda trace: _correlation(trace.duration_s)),
        gap_memory=both(lambda trace: _correlation(np.diff(trace.submit_s))),
    )


def _correlation(values: Values) -> float:
    """Spearman's rank correlation of neighbours."""
    ranks = rankdata(values)
    if ranks[:-1].std() == 0 or ranks[1:].std() == 0:
        return 0.0
    return float(np.corrcoef(ranks[:-1], ranks[1:])[0, 1])
