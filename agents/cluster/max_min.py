"""Max-min fairness that knows GPU types (Gavel, OSDI 2020, section 4.1)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from agents.cluster.policy import Knowledge
from agents.cluster.time_shares.demand import Demand, IntArray, pool_per_type
from agents.cluster.time_shares.max_min_program import max_min_program
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.errors import InputError

FloatArray = NDArray[np.float64]


class MaxMinFairness:
    """Maximises the least effective throughput of a gang, water-filling beyond.

    The effective throughput sum_p rate[m, p] X[m, p] is divided by the gang's weight and by its
    throughput where its time is spread over the pools in proportion to their GPUs, and multiplied
    by its GPUs: a gang of one GPU gets twice the time of a gang of two. On one GPU type this is
    equal numbers of GPUs, each gang's capped at its size. Rates are those of the interference model
    without neighbours. Sharing of one GPU by two gangs is not part of it.

    Args:
        weights: of the jobs of a queue, by the queue's name; 1 where it is not named.

    Raises:
        InputError: a weight that is not above 0.
    """

    name = "max_min"
    knows: Knowledge = "nothing"

    def __init__(self, weights: Mapping[str, float]) -> None:
        for queue, weight in weights.items():
            if not weight > 0.0:
                raise InputError(f"{weight} is not above 0", field=f"weights.{queue}")
        self.weights = dict(weights)

    def reset(self, simulator: ClusterSimulator) -> None:
        """Looks up the weight of every job."""
        queue = simulator.trace.queue
        of_name = np.array([self.weights.get(name, 1.0) for name in queue.names] + [1.0])
        self._weight = of_name[queue.codes]  # the last is that of the code UNKNOWN

    def pools(self, cluster: Cluster) -> IntArray:
        """(N,) one pool per GPU type."""
        return pool_per_type(cluster)

    def shares(self, simulator: ClusterSimulator, demand: Demand) -> FloatArray:
        """(A, P) X."""
        able = demand.rates.max(axis=1) > 0.0
        rates, gpus = demand.rates[able], demand.gpus[able]
        shares = np.zeros(demand.rates.shape)
        if able.any():
            usual = rates @ (demand.capacity / demand.capacity.sum())
            asked = usual * self._weight[demand.jobs][able] / gpus
            shares[able] = max_min_program(rates, gpus, demand.capacity).shares(asked)
        return shares
