"""Three jobs on one machine in three slots, whose optimum is known."""

from __future__ import annotations

import numpy as np

from envs.cluster.allocation.problem import AllocationProblem, MalleableJob
from envs.cluster.allocation.speeds import RingSpeed
from envs.cluster.allocation.utilities import LinearUtility, LogUtility, Utility

TOY_OPTIMUM = 7.892789260714373  # tests try all plans


def toy_problem(rng: np.random.Generator | None = None) -> AllocationProblem:
    """On three GPUs: a job that must begin at once, one that pays later, one that can wait."""

    def job(name: str, first: int, last: int, slots: float, worth: Utility) -> MalleableJob:
        speed = RingSpeed(1, 1.0, 5e8)
        return MalleableJob(
            name, first, last, 60.0 * slots, 1, 2, 0, (1.0, 1.0, 0.0), (0.0,) * 3, 1e9, speed, worth
        )

    jobs = (
        job("urgent", 0, 2, 3.0, LinearUtility(4.0, 8.0)),
        job("large", 0, 3, 5.0, LinearUtility(9.0, 6.0)),
        job("patient", 1, 3, 4.0, LogUtility(3.0, 0.5)),
    )
    return AllocationProblem(jobs, np.array([[3.0, 3.0, 1.0, 1e9]]), 1e10, 3, 60.0)
