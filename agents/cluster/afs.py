"""Apathetic future share, AFS-L (Hwang et al., NSDI 2021), for gangs of fixed size."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from agents.cluster.policy import Knowledge
from agents.cluster.time_shares.demand import Demand, IntArray, one_pool
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator

FloatArray = NDArray[np.float64]


class ApatheticFutureShare:
    """Hands out the GPUs one by one, each to the winner of all pairwise comparisons.

    AFS gives a job any number w of GPUs. Gangs here run on all of their GPUs or not at all, so a
    gang of z GPUs to which AFS gives w holds its z GPUs for w / z of the time, in rounds. Both make
    progress w / z where the speed of a job is linear in its GPUs up to its gang, which is therefore
    assumed; AFS's measured speed-up curves have no counterpart. Were gangs compared as wholes, the
    rule would be the shortest remaining time first. All GPUs are alike.
    """

    name = "afs"
    knows: Knowledge = "durations"

    def reset(self, simulator: ClusterSimulator) -> None:
        """Nothing is kept."""

    def pools(self, cluster: Cluster) -> IntArray:
        """(N,) one pool."""
        return one_pool(cluster)

    def shares(self, simulator: ClusterSimulator, demand: Demand) -> FloatArray:
        """(A, 1) X."""
        gangs = np.ceil(demand.gpus).astype(np.int64)
        service = simulator.state.jobs["remaining"][demand.jobs] * gangs
        given = apathetic_gpus(service, gangs, int(demand.capacity[0]))
        shares: FloatArray = np.where(demand.rates > 0.0, (given / gangs)[:, None], 0.0)
        return shares


@njit(cache=True)
def apathetic_gpus(service: FloatArray, gangs: IntArray, gpus: int) -> IntArray:
    """(A,) GPUs of each job: the paper's comparison of two jobs, for speeds w / gang.

    Of two jobs without a GPU the one with less service left wins. Else, with a the one that would
    finish earlier on its present GPUs and b the other, b wins the next GPU if its relative gain
    with it, (p_b' - p_b) / p_b', exceeds (p_a' - p_a) / p_a: 1 / (w_b + 1) > 1 / w_a.

    Args:
        service: (A,) GPU-seconds left.
        gangs: (A,) GPUs beyond which a job is no faster.
        gpus: how many there are.
    """
    given = np.zeros(len(gangs), np.int64)
    for _ in range(min(gpus, gangs.sum())):
        winner = -1
        for job in range(len(gangs)):
            if given[job] == gangs[job]:
                continue
            if winner < 0:
                winner = job
                continue
            w_job, w_winner = given[job], given[winner]
            if w_job == 0 and w_winner == 0:
                if service[job] < service[winner]:
                    winner = job
                continue
            job_first = w_job > 0 and (
                w_winner == 0 or service[job] / w_job < service[winner] / w_winner
            )
            a, b = (job, winner) if job_first else (winner, job)
            winner = b if given[b] + 1 < given[a] else a
        given[winner] += 1
    return given
