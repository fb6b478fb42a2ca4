"""How numbers become features, and what is known of the jobs like a job.

Jobs submitted one after the other with the same gang size often take a similar time. What is known
of them when durations are not: how long those that have arrived have held their GPUs, and whether
they have finished.
"""

from __future__ import annotations

from math import log

import numpy as np
from numpy.typing import NDArray

from envs.cluster.simulation.cluster_state import NONE
from envs.cluster.workload.trace import Trace
from envs.compilation import compiled, pasted

LOW, HIGH = -1.0, 4.0


@pasted
def bounded(value: float) -> float:
    """The feature inside its bounds."""
    return min(max(value, LOW), HIGH)


@pasted
def count(number: float) -> float:
    """ln(1 + number) / 4."""
    return min(log(1.0 + number) / 4.0, HIGH)


@pasted
def minutes(seconds: float) -> float:
    """ln(1 + seconds / 60) / 4; what is not finite = above all."""
    return min(log(1.0 + max(seconds, 0.0) / 60.0) / 4.0, HIGH)


NEIGHBOUR_WIDTH, MEAN_WIDTH = 4, 5  # columns of a neighbour, of the means over finished jobs
NUMBER, MEAN, VARIANCE = 0, 1, 2  # columns of `Bookkeeping.finished`
LEAST_RECENCY = 0.05  # weight of the job that finished last in an exponential mean


@compiled
def width(history: int) -> int:
    """Columns that K = `history` neighbours on both sides add to a job."""
    return 2 * NEIGHBOUR_WIDTH * history + MEAN_WIDTH if history else 0


def gangs(trace: Trace) -> NDArray[np.int32]:
    """(J,) number of the gang size of every job: its GPUs, and the part of each it asks for."""
    return _codes(trace.num_gpus, trace.gpu_milli)


def neighbours(trace: Trace, history: int) -> NDArray[np.int32]:
    """(J, 2 K) the K jobs before each job by submission, nearest first, then the K after it.

    Only jobs of the same gang size count, of the same virtual cluster and user where the trace
    says them; NONE where there are fewer.
    """
    kind = _codes(trace.num_gpus, trace.gpu_milli, trace.queue.codes, trace.user.codes)
    order = np.argsort(kind, kind="stable").astype(np.int32)
    sorted_kind = kind[order]
    out = np.full((len(trace), 2 * history), NONE, np.int32)
    for distance in range(1, min(history, len(trace) - 1) + 1):
        alike = sorted_kind[distance:] == sorted_kind[:-distance]
        earlier, later = order[:-distance][alike], order[distance:][alike]
        out[later, distance - 1] = earlier
        out[earlier, history + distance - 1] = later
    return out


def gaps(trace: Trace, near: NDArray[np.int32]) -> NDArray[np.float32]:
    """(J, 2 K) feature: time between the submissions of a job and of its `neighbours`."""
    apart = np.abs(trace.submit_s[near] - trace.submit_s[:, None])
    feature: NDArray[np.float32] = np.minimum(np.log1p(apart / 60.0) / 4.0, HIGH).astype(np.float32)
    return feature


def _codes(*columns: NDArray[np.integer]) -> NDArray[np.int32]:
    """(J,) number of every combination of the columns."""
    _, codes = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    return codes.reshape(-1).astype(np.int32)


@compiled
def add_finished(row: NDArray[np.float64], value: float) -> None:
    """Take a value into an exponential mean and variance; `row` is (NUMBER, MEAN, VARIANCE).

    The n-th value has the weight max(0.05, 1 / n): the first twenty count alike. The recursion is
    that of Welford for a moving weight (Finch, Incremental calculation of weighted mean and
    variance, 2009, section 9).
    """
    row[NUMBER] += 1.0
    weight = max(LEAST_RECENCY, 1.0 / row[NUMBER])
    away = value - row[MEAN]
    row[MEAN] += weight * away
    row[VARIANCE] = (1.0 - weight) * (row[VARIANCE] + weight * away * away)
