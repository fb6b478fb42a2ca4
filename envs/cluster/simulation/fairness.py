"""How evenly a schedule treats its jobs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from envs.cluster.simulation.cluster_usage import jobs_in_system
from envs.cluster.simulation.schedule import Schedule

FloatArray = NDArray[np.float64]


def finish_time_fairness(schedule: Schedule, num_gpus: int) -> FloatArray:
    """(F,) rho of the jobs that finished: JCT over the JCT in a cluster share of one's own.

    Themis (Mahajan et al., NSDI 2020, section 3): rho = T_shared / T_independent, where the job
    alone has 1/n of the cluster. n is the mean number of jobs in the system, itself included, from
    its submission to its completion. Gangs are rigid here: where a share of M/n GPUs is smaller
    than the gang of g, the job has g GPUs for (M/n)/g of the time, so

        T_independent = work · max(1, g·n/M).

    rho up to 1 is fair: sharing has not made the job slower than a share of its own would.

    Args:
        schedule: of J jobs.
        num_gpus: M, GPUs of the cluster.
    """
    ended = schedule.finished
    submit, finish = schedule.submit[ended], schedule.finish[ended]
    beside = jobs_in_system(schedule).mean(submit, finish)
    share = np.maximum(1.0, schedule.gpus[ended] * beside / num_gpus)
    return np.asarray((finish - submit) / (schedule.work[ended] * share))


def jain_index(values: FloatArray) -> float:
    """(sum x)² / (n · sum x²): from 1/n, one has all, to 1, all have the same; NaN of no values.

    Jain, Chiu, Hawe, DEC-TR-301, 1984.
    """
    if not len(values):
        return float("nan")
    scaled = values / values.max()  # squares of large values are exact to rounding all the same
    return float(scaled.sum() ** 2 / (len(values) * np.square(scaled).sum()))
