"""What can be known of how long jobs will take: their own progress, and that of jobs like them.

Nothing here looks at what a job still needs. Work is in seconds on the GPU type of the trace: a job
that runs at rate r for t seconds has done r t.
"""

from __future__ import annotations

from math import log2

import numpy as np
from numpy.typing import NDArray

from envs.arrays import IntArray
from envs.cluster.environment.observation import (
    add_finished,
    gangs,
    minutes,
    neighbours,
    write_means,
)
from envs.cluster.simulation.borrowed import borrowed
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_kernel import attained_by
from envs.cluster.simulation.cluster_state import FINISHED, FUTURE, NONE, RUNNING, ClusterState
from envs.compilation import compiled, compiled_inner

OWN_WIDTH, MEANS_WIDTH, NEAR_WIDTH = 4, 5, 4
DURATIONS_OF_OWN = (1, 2, 3)  # columns that are the feature of a time, see `DurationFeatures`
DURATIONS_OF_MEANS = (0, 3)
DURATIONS_OF_NEAR = (1, 3)


def width(history: int) -> int:
    """Columns of a job with K = `history` neighbours on both sides."""
    return OWN_WIDTH + MEANS_WIDTH + 2 * history * NEAR_WIDTH


def columns(history: int) -> list[str]:
    gaps_of = ("arrived", "time of its work", "finished", "time between the submissions")
    return [
        "log2 of the GPUs / 4",
        "time since its submission",
        "time of the work it has done",
        "time for which it held its GPUs",
        "finished alike: mean time of the work",
        "finished alike: deviation",
        "finished alike: count",
        "finished: mean time of the work",
        "finished: deviation",
        *(
            f"{side} {distance}: {name}"
            for side in ("before", "after")
            for distance in range(1, history + 1)
            for name in gaps_of
        ),
    ]


class DurationFeatures:
    """Rows about jobs, brought up to date with the simulator they are about.

    *Time* of t seconds is ln(1 + t / 60) / 4, *count* of n is ln(1 + n) / 4.

    | columns | |
    |---|---|
    | 0 | log2 of its GPUs / 4 |
    | 1, 2, 3 | time since it was submitted, of the work it has done, for which it held its GPUs |
    | 4, 5, 6 | work of the finished jobs of its gang size: mean time, deviation, count of them |
    | 7, 8 | mean time and deviation over all finished jobs |
    | 9.. | 4 columns for each of the K jobs before it, nearest first, then the K after it |

    Neighbours are jobs of the same gang size (and queue and user where the trace has them) in the
    order of submission, as `observation.neighbours` says. Their columns: 1 if it has arrived, time
    of the work it has done, 1 if it has finished, time between the two submissions; all 0 before it
    has arrived.

    Args:
        simulator: at its start.
        history: K.
    """

    def __init__(self, simulator: ClusterSimulator, history: int) -> None:
        trace = simulator.trace
        self.history = history
        self._near, self._gang = neighbours(trace, history), gangs(trace)
        self._means = np.zeros((int(self._gang.max(initial=-1)) + 2, 3))
        self._known = np.zeros(len(trace), np.bool_)
        self._finished = 0

    def rows(self, state: ClusterState, jobs: IntArray) -> NDArray[np.float32]:
        """(A, width) of settled jobs that have arrived; learns first which jobs have finished."""
        out = np.zeros((len(jobs), width(self.history)), np.float32)
        if (finished := int(state.clock[0]["finished"])) != self._finished:
            learn(state, self._gang, self._means, self._known)
            self._finished = finished
        fill(state, self._near, self._gang, self._means, jobs, out)
        return out


@compiled
def learn(
    state: ClusterState,
    gang: NDArray[np.int32],
    means: NDArray[np.float64],
    known: NDArray[np.bool_],
) -> None:
    """Take the jobs that have finished since into the means, the first to finish first."""
    state = borrowed(state)
    for job in newly_finished(state, known):
        add_finished(means, gang[job], minutes(state.jobs[job].work))


@compiled_inner
def newly_finished(state: ClusterState, known: NDArray[np.bool_]) -> IntArray:
    """Jobs that have finished and are not yet `known`: now they are. The first to finish first."""
    arrived, number = state.clock[0].arrived, 0
    new, ended = np.empty(arrived, np.int64), np.empty(arrived)
    for job in range(arrived):
        if state.jobs[job].status == FINISHED and not known[job]:
            known[job] = True
            new[number], ended[number] = job, state.jobs[job].finish
            number += 1
    return new[np.argsort(ended[:number], kind="mergesort")]  # stable: ties by number


@compiled
def fill(
    state: ClusterState,
    near: NDArray[np.int32],
    gang: NDArray[np.int32],
    means: NDArray[np.float64],
    jobs: IntArray,
    out: NDArray[np.float32],
) -> None:
    state = borrowed(state)
    now = state.clock[0].now
    for place in range(len(jobs)):
        job, row = jobs[place], out[place]
        record = state.jobs[job]
        held = record.executed + (now - record.settled if record.status == RUNNING else 0.0)
        row[0] = log2(max(record.gpus, 1)) / 4.0
        row[1] = minutes(now - record.submit)
        row[2] = minutes(attained_by(record, now))
        row[3] = minutes(held)
        write_means(means, gang[job], row[OWN_WIDTH:])
        at = OWN_WIDTH + MEANS_WIDTH
        for neighbour in range(near.shape[1]):
            other = near[job, neighbour]
            if other != NONE and state.jobs[other].status != FUTURE:
                row[at] = 1.0
                row[at + 1] = minutes(attained_by(state.jobs[other], now))
                row[at + 2] = state.jobs[other].status == FINISHED
                row[at + 3] = minutes(abs(state.jobs[other].submit - record.submit))
            at += NEAR_WIDTH
