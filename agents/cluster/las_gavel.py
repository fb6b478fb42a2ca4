"""Least attained service as Gavel states it: max-min fairness that ignores GPU types."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from agents.cluster.policy import Knowledge
from agents.cluster.time_shares.demand import Demand, IntArray, one_pool
from agents.cluster.time_shares.max_min_program import max_min_program
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator

FloatArray = NDArray[np.float64]


class LeastAttainedService:
    """Equal numbers of GPUs for all gangs, each gang's capped at its size; all GPUs are alike.

    The heterogeneity-agnostic baseline of Narayanan et al., OSDI 2020 (section 7): the program of
    `max_min` with every rate 1. The rounds then always take the gang with the least service for its
    share, which is least attained service with a round as quantum.
    """

    name = "las_gavel"
    knows: Knowledge = "nothing"

    def reset(self, simulator: ClusterSimulator) -> None:
        """Nothing is kept."""

    def pools(self, cluster: Cluster) -> IntArray:
        """(N,) one pool."""
        return one_pool(cluster)

    def shares(self, simulator: ClusterSimulator, demand: Demand) -> FloatArray:
        """(A, 1) X."""
        able = demand.rates[:, 0] > 0.0
        rates, gpus = demand.rates[able], demand.gpus[able]
        shares = np.zeros(demand.rates.shape)
        if able.any():
            shares[able] = max_min_program(rates, gpus, demand.capacity).shares(1.0 / gpus)
        return shares
