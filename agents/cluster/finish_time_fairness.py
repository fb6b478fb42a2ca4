"""Finish-time fairness as a program over time shares (Gavel, OSDI 2020, section 4.2)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from agents.cluster.policy import Knowledge
from agents.cluster.time_shares.demand import Demand, IntArray, pool_per_type
from agents.cluster.time_shares.max_min_program import max_min_program
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator

FloatArray = NDArray[np.float64]
TOLERANCE = 1e-7  # of the worst rho
LEAST = 1e-9  # part of its full speed that a gang asks for at least, to keep the program scaled


class FinishTimeFairness:
    """Minimises the worst rho = time in the shared cluster / time on a 1/A part of it.

    Both count from the submission and assume that the shares of now last: (elapsed + remaining /
    sum_p rate X) / (isolated so far + remaining / isolated throughput). Isolated, a gang has
    capacity[p] / A GPUs of each pool, hence the time shares capacity[p] / (A gpus), scaled down to
    a sum of 1; what it has done since the last computation counts at the throughput it had then.

    rho <= r asks for a throughput of remaining / (r isolated - elapsed): a max-min program with
    those throughputs as levels, and a root in r. A gang whose rho exceeds r even at full speed asks
    for full speed, so it does not hold back the others; the worst rho is still least.
    """

    name = "finish_time_fairness"
    knows: Knowledge = "durations"

    def reset(self, simulator: ClusterSimulator) -> None:
        """No job has run."""
        self._isolated = np.zeros(len(simulator.trace))  # seconds for what has been done
        self._throughput = np.ones(len(simulator.trace))  # isolated, as of the last computation
        self._remaining = simulator.state.jobs["work"].copy()

    def pools(self, cluster: Cluster) -> IntArray:
        """(N,) one pool per GPU type."""
        return pool_per_type(cluster)

    def shares(self, simulator: ClusterSimulator, demand: Demand) -> FloatArray:
        """(A, P) X."""
        records = simulator.state.jobs[demand.jobs]
        elapsed, remaining = simulator.now - records["submit"], records["remaining"]
        done = np.maximum(self._remaining[demand.jobs] - remaining, 0.0)
        self._isolated[demand.jobs] += done / self._throughput[demand.jobs]
        self._remaining[demand.jobs] = remaining
        isolated = isolated_shares(demand)
        throughput = (demand.rates * isolated).sum(axis=1)
        able = throughput > 0.0
        self._throughput[demand.jobs] = np.where(able, throughput, 1.0)
        shares = np.zeros(demand.rates.shape)
        if able.any():
            fair = self._isolated[demand.jobs][able] + remaining[able] / throughput[able]
            shares[able] = least_worst_rho(
                demand.rates[able], demand.gpus[able], demand.capacity, elapsed[able],
                remaining[able], fair, isolated[able],
            )  # fmt: skip
        return shares


def isolated_shares(demand: Demand) -> FloatArray:
    """(A, P) time shares of each gang on a 1/A part of the cluster."""
    part = demand.capacity / len(demand.jobs)
    shares = np.where(demand.rates > 0.0, part / demand.gpus[:, None], 0.0)
    scaled: FloatArray = shares / np.maximum(shares.sum(axis=1), 1.0)[:, None]
    return scaled


def least_worst_rho(
    rates: FloatArray,
    gpus: FloatArray,
    capacity: FloatArray,
    elapsed: FloatArray,
    remaining: FloatArray,
    fair: FloatArray,
    feasible: FloatArray,
) -> FloatArray:
    """(A, P) X with the least max over gangs of (elapsed + remaining / throughput) / fair.

    Args:
        rates: (A, P) work per second; every gang can run somewhere.
        gpus: (A,) of each gang.
        capacity: (P,) GPUs.
        elapsed: (A,) seconds since the submission.
        remaining: (A,) work.
        fair: (A,) seconds, above 0.
        feasible: (A, P) some shares, for a first bound.
    """
    fastest = rates.max(axis=1)
    program = max_min_program(rates, gpus, capacity)

    def needed(rho: float) -> FloatArray:
        left = rho * fair - elapsed
        with np.errstate(divide="ignore"):
            asked = np.where(left > 0.0, remaining / np.maximum(left, 0.0), np.inf)
        levels: FloatArray = np.maximum(np.minimum(asked, fastest), LEAST * fastest)
        return levels

    def spare(rho: float) -> float:
        return float(np.log(program.level(needed(rho))))

    low = float(((elapsed + remaining / fastest) / fair).min())
    high = float(((elapsed + remaining / (rates * feasible).sum(axis=1)) / fair).max())
    rho = low
    if spare(low) < 0.0:
        rho = brentq(spare, low, high * (1.0 + TOLERANCE), rtol=TOLERANCE, xtol=TOLERANCE)
    return program.shares(needed(rho))
