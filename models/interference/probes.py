"""Probes: fixed jobs beside which a new job is measured, and the fingerprint that this gives."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from envs.cluster.interference.rates import FloatArray
from models.interference.measurements import BoolArray, Measurements

RIDGE = 0.05  # of the reconstruction of the tables from the probes
MISSING = 0.5  # cost of a probe per share of the jobs that cannot be measured beside it
FARTHEST = 3.0  # standard deviations at which a feature is cut


def choose_probes(measurements: Measurements, seen: BoolArray, count: int) -> tuple[int, ...]:
    """`count` jobs from whose rows and columns the tables of the seen jobs are best predicted.

    Greedy forward selection by the mean absolute error of a ridge regression of all rates of a
    seen job, its own and those of its neighbours, on those measured with the probes (as columns
    are selected by Das and Kempe, Submodular meets spectral, ICML 2011). Jobs that are not seen
    have no part in it.

    Args:
        measurements: P jobs.
        seen: (P,) jobs whose measurements may be used.
        count: of probes; no more than there are seen jobs.

    Returns:
        Jobs, the most useful first.
    """
    jobs = np.flatnonzero(seen)
    tables = [rate[np.ix_(jobs, jobs)] for rate in measurements.rate]
    whole = [np.concatenate([_filled(rate), _filled(rate).T], axis=1) for rate in tables]
    chosen: list[int] = []
    for _ in range(min(count, len(jobs))):
        left = [job for job in range(len(jobs)) if job not in chosen]
        cost = [
            sum(
                _reconstruction_error(rate, full, [*chosen, job])
                for rate, full in zip(tables, whole, strict=True)
            )
            for job in left
        ]
        chosen.append(left[int(np.argmin(cost))])
    return tuple(int(jobs[job]) for job in chosen)


def _filled(rate: FloatArray) -> FloatArray:
    return np.where(np.isnan(rate), np.nanmean(rate), rate)


def _reconstruction_error(rate: FloatArray, full: FloatArray, probes: list[int]) -> float:
    seen = np.concatenate([rate[:, probes], rate[probes].T], axis=1)
    missing = float(np.isnan(seen).mean())
    seen = np.where(np.isnan(seen), np.nanmean(rate), seen)
    inputs = np.concatenate([seen - seen.mean(axis=0), np.ones((len(seen), 1))], axis=1)
    weights = np.linalg.solve(inputs.T @ inputs + RIDGE * np.eye(inputs.shape[1]), inputs.T @ full)
    return float(np.abs(full - inputs @ weights).mean()) + MISSING * missing


@dataclass(frozen=True, eq=False)
class Fold:
    """What may be known when the jobs in `unseen` are new.

    Of an unseen job only its profile alone and its fingerprint are known: its measurements beside
    the probes.

    Attributes:
        unseen: (P,) new jobs.
        probes: seen jobs.
        known: (T, P, P) the measurements that may be used.
        asked: (T, P, P) the other measurements of unseen jobs: those to be predicted.
        inputs: (T, P, F + 2 k) profile and fingerprint, standardised over the seen jobs.
    """

    unseen: BoolArray
    probes: tuple[int, ...]
    known: BoolArray
    asked: BoolArray
    inputs: FloatArray


def fold(measurements: Measurements, unseen: BoolArray, probes: Sequence[int]) -> Fold:
    """The fold in which `unseen` jobs are known by the `probes` alone."""
    seen = ~unseen
    probe = np.zeros(len(unseen), np.bool_)
    probe[list(probes)] = True
    either = seen[:, None] & seen | probe[:, None] | probe
    known = measurements.measured & either
    inputs = np.concatenate([measurements.profiles, fingerprints(measurements, probes, seen)], -1)
    rows = inputs[:, seen].reshape(-1, inputs.shape[-1])
    spread = rows.std(axis=0)
    spread = np.where(spread > 1e-9, spread, 1.0)
    scaled = np.clip((inputs - rows.mean(axis=0)) / spread, -FARTHEST, FARTHEST)
    return Fold(unseen, tuple(probes), known, measurements.measured & ~either, scaled)


def fingerprints(measurements: Measurements, probes: Sequence[int], seen: BoolArray) -> FloatArray:
    """(T, P, 2 k) rates of every job beside each probe, and of each probe beside it.

    What was not measured, or does not fit into memory, is the mean over the seen jobs.
    """
    rate, at = measurements.rate, list(probes)
    found = np.concatenate([rate[:, :, at], rate[:, at].transpose(0, 2, 1)], axis=-1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a probe that fits beside nobody
        mean = np.nanmean(found[:, seen], axis=1, keepdims=True)
    mean = np.where(np.isnan(mean), np.nanmean(rate[:, seen][:, :, seen]), mean)
    return np.where(np.isnan(found), mean, found)
