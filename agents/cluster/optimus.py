"""Optimus (Peng et al., EuroSys 2018), for gangs of fixed size and predicted durations."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from agents.cluster.policy import Knowledge
from agents.cluster.prediction import RemainingTime
from agents.cluster.time_shares.demand import Demand, IntArray, one_pool
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator

FloatArray = NDArray[np.float64]


class Optimus:
    """Hands out the GPUs one by one, each to the job whose remaining time it shortens most.

    One GPU each in the order of submission, then by marginal gain (section 4.1 there): Q / w - Q /
    (w + 1) for a job with w GPUs and Q predicted GPU-seconds left. Optimus changes the size of
    jobs. Gangs here run on all of their GPUs or not at all, so a gang of z GPUs that gets w holds
    its z GPUs for w / z of the time, in rounds, and speed is taken as linear up to the gang; its
    fitted speed function has no counterpart, and neither have its loss curves: Q comes from the
    durations of finished jobs. All GPUs are alike.

    Args:
        remaining: predicts what is left of a job.
    """

    name = "optimus"
    knows: Knowledge = "predictions"

    def __init__(self, remaining: RemainingTime) -> None:
        self.remaining = remaining

    def reset(self, simulator: ClusterSimulator) -> None:
        """Nothing has been learned."""
        self.remaining.reset(simulator)

    def pools(self, cluster: Cluster) -> IntArray:
        """(N,) one pool."""
        return one_pool(cluster)

    def shares(self, simulator: ClusterSimulator, demand: Demand) -> FloatArray:
        """(A, 1) X."""
        self.remaining.observe(simulator)
        gangs = np.ceil(demand.gpus).astype(np.int64)
        service = self.remaining.predict(simulator, demand.jobs) * gangs
        given = gainful_gpus(service, gangs, int(demand.capacity[0]))
        shares: FloatArray = np.where(demand.rates > 0.0, (given / gangs)[:, None], 0.0)
        return shares


@njit(cache=True)
def gainful_gpus(service: FloatArray, gangs: IntArray, gpus: int) -> IntArray:
    """(A,) GPUs of each job; where all have one, they minimise the sum of remaining times.

    Args:
        service: (A,) GPU-seconds left.
        gangs: (A,) GPUs beyond which a job is no faster.
        gpus: how many there are.
    """
    given = np.zeros(len(gangs), np.int64)
    given[:gpus] = 1
    gain = np.where(given < gangs, service / 2.0, -1.0)
    for _ in range(min(gpus, gangs.sum()) - given.sum()):
        job = int(np.argmax(gain))
        given[job] += 1
        w = given[job]
        gain[job] = service[job] / (w * (w + 1)) if w < gangs[job] else -1.0
    return given
