"""How near a synthetic trace is to a real one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from envs.cluster.workload.trace import Trace

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
    first, second = np.sort(first), np.sort(second)
    values = np.concatenate([first, second])
    below = [
        np.searchsorted(sample, values, side="right") / len(sample) for sample in (first, second)
    ]
    return float(np.abs(below[0] - below[1]).max(initial=0.0))


def agreement(real: Trace, synthetic: Trace) -> Agreement:
    """The distances of `synthetic` from `real`; at least three jobs each."""
    sizes = np.union1d(real.num_gpus, synthetic.num_gpus)
    shares = [
        np.array([np.mean(trace.num_gpus == size) for size in sizes]) for trace in (real, synthetic)
    ]
    by_gang = 0.0
    for size, share in zip(sizes, shares[0], strict=True):
        samples = [trace.duration_s[trace.num_gpus == size] for trace in (real, synthetic)]
        if share:
            by_gang += share * (kolmogorov_smirnov(*samples) if len(samples[1]) else 1.0)
    return Agreement(
        duration_ks=kolmogorov_smirnov(real.duration_s, synthetic.duration_s),
        interarrival_ks=kolmogorov_smirnov(np.diff(real.submit_s), np.diff(synthetic.submit_s)),
        gang_share=float(np.abs(shares[0] - shares[1]).max()),
        gang_duration_ks=float(by_gang),
        load_ratio=synthetic.offered_load(1) / real.offered_load(1),
        same_gang=(_same_gang(real), _same_gang(synthetic)),
        duration_memory=(_correlation(real.duration_s), _correlation(synthetic.duration_s)),
        gap_memory=(
            _correlation(np.diff(real.submit_s)),
            _correlation(np.diff(synthetic.submit_s)),
        ),
    )


def _same_gang(trace: Trace) -> float:
    return float(np.mean(trace.num_gpus[1:] == trace.num_gpus[:-1]))


def _correlation(values: Values) -> float:
    """Spearman's rank correlation of neighbours."""
    ranks = rankdata(values)
    if ranks[:-1].std() == 0 or ranks[1:].std() == 0:
        return 0.0
    return float(np.corrcoef(ranks[:-1], ranks[1:])[0, 1])
