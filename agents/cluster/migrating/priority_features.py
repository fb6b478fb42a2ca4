"""What counts for a job beside its Gittins index: its own state, and what its siblings will tell.

Siblings of a job are those submitted shortly before and after it that ask for the same GPUs. They
take similar times, so that what one of them still needs is learned from another that is ahead of
it. An index of the job alone does not see that: as long as somebody else finds out, a job had
better wait, and one that many wait to learn from had better run.
"""

from __future__ import annotations

import copy
from math import exp, log

import numpy as np
from numba import njit
from numpy.typing import NDArray

from envs.cluster.environment.features import minutes, neighbours
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_kernel import attained_by
from envs.cluster.simulation.cluster_state import FINISHED, FUTURE, NONE, RUNNING, ClusterState
from envs.cluster.simulation.lent import lent

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

SIBLINGS = 12  # of a job on either side
FADES_RANKS = 4.0  # places in the order of submission in which a sibling's weight falls to 1 / e
FADES_S = 3600.0  # seconds between two submissions in which it does

RUNS = "runs"  # changes within an instant, and is no column
COLUMNS = (
    "gpus", "fresh", "attained", "gpus_attained", "age", "expected", "spread", "unseen",
    "finished_long", "finished", "ahead_running", "ahead_waiting", "ahead_together",
    "behind", "behind_running", "behind_together", "before", "before_together",
)  # fmt: skip
NAMES = (RUNS, *COLUMNS)


class PriorityFeatures:
    """Columns about jobs, of the order of 1.

    *Time* of t seconds is ln(1 + t / 60) / 4. A sibling weighs e^(-r/4), r its rank in the order of
    submission seen from the job, or, *together*, e^(-h), h the hours between the two submissions.
    It is *ahead* where it has done more work, *behind* where it has done no more, and among those
    *before* where neither has done any and it was submitted first.

    | column | |
    |---|---|
    | gpus | ln GPUs |
    | fresh | 1 if it has done no work |
    | attained | time of the work it has done - 1, or -1 |
    | gpus_attained | ln GPUs if it has done some work, or 0 |
    | age | time since it was submitted - 1.5 |
    | expected | (mean of ln remaining seconds - 10) / 3, of the posterior |
    | spread | deviation of ln remaining / 2 - 1 |
    | unseen | share of the siblings that have not arrived, or do not exist |
    | finished_long | mean time of finished siblings' work less that of all finished jobs; 0: none |
    | finished | weight of finished siblings / 4 |
    | ahead_running, ahead_waiting | weight of the siblings ahead that run; that wait |
    | ahead_together | weight of the siblings ahead, together, / 2 |
    | behind | weight of the siblings behind / 3 |
    | behind_running | weight of those of them that run |
    | behind_together | weight of the siblings behind, together, / 4 |
    | before, before_together | weight of the siblings before / 2; together / 4 |

    Args:
        simulator: at its start.
    """

    def __init__(self, simulator: ClusterSimulator) -> None:
        self._siblings = neighbours(simulator.trace, SIBLINGS)
        self._finished = np.zeros(2)  # jobs that have finished, sum of their times
        self._told = np.zeros(len(simulator.trace), np.bool_)

    def copy(self) -> PriorityFeatures:
        """An independent copy, to go with a copy of the simulator."""
        twin = copy.copy(self)
        twin._finished, twin._told = self._finished.copy(), self._told.copy()
        return twin

    def rows(self, state: ClusterState, jobs: IntArray, expected: FloatArray) -> FloatArray:
        """(A, 18) of settled jobs that have arrived.

        Args:
            state: of the cluster.
            jobs: (A,).
            expected: (A, 2) mean and deviation of the logarithm of their remaining seconds.
        """
        out = np.zeros((len(jobs), len(COLUMNS)))
        fill(state, self._siblings, self._finished, self._told, jobs, expected, out)
        return out


@njit(cache=True)
def fill(
    state: ClusterState,
    siblings: NDArray[np.int32],
    finished: FloatArray,
    told: NDArray[np.bool_],
    jobs: IntArray,
    expected: FloatArray,
    out: FloatArray,
) -> None:
    """Write the rows of `jobs`, once the jobs that have finished since are known."""
    state = lent(state)
    if state.clock[0].finished != finished[0]:
        for job in range(state.clock[0].arrived):
            if state.jobs[job].status == FINISHED and not told[job]:
                told[job] = True
                finished[1] += minutes(state.jobs[job].work)
        finished[0] = state.clock[0].finished
    usual = finished[1] / max(finished[0], 1.0)
    now = state.clock[0].now
    for place in range(len(jobs)):
        job, row = jobs[place], out[place]
        record = state.jobs[job]
        mine = attained_by(record, now)
        gpus = log(max(record.gpus, 1))
        row[0] = gpus
        row[1] = mine == 0.0
        row[2] = minutes(mine) - 1.0
        row[3] = gpus if mine > 0.0 else 0.0
        row[4] = minutes(now - record.submit) - 1.5
        row[5] = (expected[place, 0] - 10.0) / 3.0
        row[6] = expected[place, 1] / 2.0 - 1.0
        compare(state, job, mine, siblings[job], usual, row)


@njit(cache=True)
def compare(
    state: ClusterState,
    job: int,
    mine: float,
    siblings: NDArray[np.int32],
    usual: float,
    row: FloatArray,
) -> None:
    """Write the columns about the siblings of a job that has done so many seconds of work."""
    half, now = len(siblings) // 2, state.clock[0].now
    absent, ended, took = 0, 0, 0.0
    for column in range(len(siblings)):
        other = siblings[column]
        if other == NONE or state.jobs[other].status == FUTURE:
            absent += 1
            continue
        beside = state.jobs[other]
        near = exp(-(column % half + 1) / FADES_RANKS)
        together = exp(-abs(beside.submit - state.jobs[job].submit) / FADES_S)
        runs = 1.0 if beside.status == RUNNING else 0.0
        if beside.status == FINISHED:
            ended += 1
            took += minutes(beside.work)
            row[9] += near / 4.0
        elif attained_by(beside, now) > mine:
            row[10] += runs * near
            row[11] += (1.0 - runs) * near
            row[12] += together / 2.0
        else:
            row[13] += near / 3.0
            row[14] += runs * near
            row[15] += together / 4.0
            if mine == 0.0 and other < job:
                row[16] += near / 2.0
                row[17] += together / 4.0
    row[7] = absent / len(siblings)
    if ended:
        row[8] = took / ended - usual
