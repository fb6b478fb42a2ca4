"""What the jobs of a cluster ask for, as the programs that divide GPU time read it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from agents.cluster.policy import Knowledge
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.workload.trace import WHOLE_GPU
from envs.errors import InputError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Demand:
    """A jobs that wait or run, by number, and P pools of nodes."""

    jobs: IntArray  # (A,)
    gpus: FloatArray  # (A,) of each gang; a fraction for fractional jobs; above 0
    rates: FloatArray  # (A, P) work per second alone on a pool; 0 where the gang cannot run
    capacity: FloatArray  # (P,) GPUs of nodes that are up


class ShareRule(Protocol):
    """Divides the time of all GPUs among the jobs."""

    name: str
    knows: Knowledge

    def reset(self, simulator: ClusterSimulator) -> None:
        """Before the first event of a simulation."""

    def pools(self, cluster: Cluster) -> IntArray:
        """(N,) the pool of each node, from 0: nodes that the rule does not tell apart."""

    def shares(self, simulator: ClusterSimulator, demand: Demand) -> FloatArray:
        """(A, P) X: the part of the time for which each gang should hold GPUs of each pool.

        Rows sum to at most 1, and gpus @ X is at most the capacity.
        """


def one_pool(cluster: Cluster) -> IntArray:
    """(N,) all GPUs are alike."""
    return np.zeros(cluster.num_nodes, np.int64)


def pool_per_type(cluster: Cluster) -> IntArray:
    """(N,) GPU types, numbered in ascending order of those that there are."""
    return np.unique(cluster.gpu_type, return_inverse=True)[1].astype(np.int64)


def demand_of(simulator: ClusterSimulator, jobs: IntArray, pools: IntArray) -> Demand:
    """The demand of `jobs`. A pool of several GPU types has rate 1 for all its jobs."""
    state, tables = simulator.state, simulator.tables
    records, nodes = state.jobs[jobs], state.nodes
    count = int(pools.max()) + 1
    gpus = records["gpus"] * (records["milli"] / WHOLE_GPU)
    up = nodes["up"] != 0
    capacity = np.bincount(pools[up], nodes["gpus"][up], count).astype(np.float64)
    rates = np.ones((len(jobs), count))
    for pool in range(count):
        types = np.unique(nodes["type"][pools == pool]).astype(np.int64)
        usable = (records["types"][:, None] >> types & 1 == 1).any(axis=1)
        if len(types) == 1:
            rates[:, pool] = tables.speed[tables.profile[jobs], types[0]]
        rates[~usable | (gpus > capacity[pool]), pool] = 0.0
    return Demand(jobs=jobs, gpus=gpus, rates=rates, capacity=capacity)


def refuse_gangs_without_pool(simulator: ClusterSimulator, pools: IntArray) -> None:
    """Check that every gang fits on the nodes of one pool while all are up.

    Raises:
        InputError: one does not.
    """
    state = simulator.state
    size = np.bincount(pools, state.nodes["gpus"])
    largest = np.zeros(len(state.jobs))
    for pool, gpus in enumerate(size):
        types = np.unique(state.nodes["type"][pools == pool]).astype(np.int64)
        usable = (state.jobs["types"][:, None] >> types & 1 == 1).any(axis=1)
        largest = np.maximum(largest, np.where(usable, gpus, 0))
    wide = state.jobs["gpus"] > largest
    if wide.any():
        job = int(np.argmax(wide))
        raise InputError(
            f"no pool of alike GPUs holds its {state.jobs['gpus'][job]} GPUs",
            file=simulator.trace.name,
            record=job,
            field="num_gpus",
        )
