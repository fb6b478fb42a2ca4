"""Sessions: runs of jobs of one gang size, short or long by the size, with gaps of their own."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numba
import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

LEAST_PAIRS = 20  # gaps of a kind below which it is taken as those of all sizes


@dataclass(frozen=True)
class SessionShape:
    """By gang size. Gaps are told by their mean normal score: 0 is as the mean gap, 1 long."""

    length: tuple[float, ...]  # mean jobs of a session
    gap_within: tuple[float, ...]  # score of the gaps between the jobs of a session
    gap_before: tuple[float, ...]  # score of the gap before a session


def fit_sessions(ranks: FloatArray, size: IntArray, num_sizes: int) -> SessionShape:
    """The sessions of a trace.

    Args:
        ranks: (J-1,) of the gaps from each job to the next, 0..1.
        size: (J,) index of each job's gang size.
        num_sizes: G.
    """
    starts = np.concatenate([[True], size[1:] != size[:-1]])
    sessions = np.bincount(size[starts], minlength=num_sizes)
    length = np.bincount(size, minlength=num_sizes) / np.maximum(sessions, 1)
    score = normal_scores(ranks)
    within = _mean_scores(score, size[1:], ~starts[1:], num_sizes)
    before = _mean_scores(score, size[1:], starts[1:], num_sizes)
    return SessionShape(*(tuple(column.tolist()) for column in (length, within, before)))


def normal_scores(ranks: FloatArray) -> FloatArray:
    """The standard normal values of these ranks, 0 < rank < 1."""
    values, inverse = np.unique(ranks, return_inverse=True)
    return np.array([NormalDist().inv_cdf(float(value)) for value in values])[inverse]


def _mean_scores(
    score: FloatArray, size: IntArray, of_kind: BoolArray, num_sizes: int
) -> FloatArray:
    overall = float(score[of_kind].mean()) if of_kind.any() else 0.0
    means = np.full(num_sizes, overall)
    for index in range(num_sizes):
        chosen = score[of_kind & (size == index)]
        if len(chosen) >= LEAST_PAIRS:
            means[index] = chosen.mean()
    return means


def gap_scores(shape: SessionShape, size: IntArray, starts: BoolArray) -> FloatArray:
    """(J,) the mean score of the gap before each job."""
    within, before = np.array(shape.gap_within), np.array(shape.gap_before)
    return np.asarray(np.where(starts, before[size], within[size]))


def deal_sizes(
    shape: SessionShape, count: IntArray, rng: np.random.Generator
) -> tuple[IntArray, BoolArray]:
    """(J,) index of each job's gang size, and whether it begins a session.

    A session ends after each job with the chance 1 / length. The next one is of another size,
    drawn by the sessions that the remaining jobs of each size make, so that every size has exactly
    the jobs asked for; the last size that is left goes on to the end.

    Args:
        shape: of the sessions.
        count: (G,) jobs of each size, J in all.
        rng: draws.
    """
    end = 1 / np.array(shape.length)
    size, starts = _deal(count, end, rng.random((int(count.sum()), 2)))
    return size, starts


@numba.njit(cache=True)
def _deal(count: IntArray, end: FloatArray, draws: FloatArray) -> tuple[IntArray, BoolArray]:
    left = count.copy()
    size = np.zeros(len(draws), np.int64)
    starts = np.zeros(len(draws), np.bool_)
    now = -1
    for job in range(len(draws)):
        if now < 0 or left[now] == 0 or draws[job, 0] < end[now]:
            total = 0.0
            for index in range(len(left)):
                if index != now:
                    total += left[index] * end[index]
            if total > 0.0:
                starts[job] = True
                before = now
                mark = draws[job, 1] * total
                for index in range(len(left)):
                    if index != before and left[index] > 0:
                        now = index
                        mark -= left[index] * end[index]
                        if mark < 0.0:
                            break
        size[job] = now
        left[now] -= 1
    return size, starts
