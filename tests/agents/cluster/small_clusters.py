"""A plain placement, small random clusters with traces, and what must hold of every schedule."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from agents.cluster.policy import Share
from envs.cluster.interference.rates import RateTables, without_neighbours
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import Schedule
from envs.cluster.workload.trace import Trace


class LowestNodes:
    """The lowest node with enough free GPUs, else any free GPUs, the nodes with the most first."""

    name = "lowest_nodes"

    def place(
        self, simulator: ClusterSimulator, job: int, rng: np.random.Generator
    ) -> list[Share] | None:
        record, nodes = simulator.state.jobs[job], simulator.state.nodes
        permitted, kind = int(record["types"]), nodes["type"].astype(np.int64)
        usable = (permitted >> kind) & 1 == 1
        free = np.where(usable, nodes["free"], 0)
        left = int(record["gpus"])
        enough = np.flatnonzero(free >= left)
        if len(enough):
            return [(int(enough[0]), left)]
        shares = []
        for node in np.argsort(-free, kind="stable"):
            here = min(left, int(free[node]))
            if here:
                shares.append((int(node), here))
                left -= here
        return None if left else shares


class Speeds:
    """Case i is that of job i: its speed on each GPU type."""

    name = "speeds"

    def __init__(self, speed: NDArray[np.float64]) -> None:
        self.speed = speed

    def tables(self, trace: Trace, cluster: Cluster) -> RateTables:
        return without_neighbours(np.arange(len(trace), dtype=np.int32), self.speed)


def random_case(seed: int, *, types: int = 1) -> tuple[Cluster, Trace]:
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 5))
    names = ("V100", "P100", "K80")[:types]
    cluster = Cluster.uniform(types * int(rng.integers(1, 4)), size, gpu_types=names)
    jobs = int(rng.integers(1, 16))
    trace = Trace.of(
        "random",
        np.sort(rng.integers(0, 4000, jobs)),
        rng.integers(1, 3000, jobs),
        rng.integers(1, cluster.num_gpus // types + 1, jobs),
    )
    return cluster, trace


def check_schedule(cluster: Cluster, trace: Trace, schedule: Schedule) -> None:
    """Whole gangs, no GPU given twice, and exactly the work of every job, at rate 1."""
    assert schedule.finished.all()
    assert schedule.runs is not None
    runs = schedule.runs
    held = np.zeros(len(trace))
    np.add.at(held, runs["job"], (runs["end"] - runs["start"]) * runs["gpus"])
    np.testing.assert_allclose(held, trace.duration_s * trace.num_gpus, rtol=1e-9)
    assert (runs["start"] >= trace.submit_s[runs["job"]]).all()
    times = np.unique(np.concatenate([runs["start"], runs["end"]]))
    for start, end in pairwise(times):
        now = runs[(runs["start"] <= start) & (runs["end"] >= end)]
        given = np.bincount(now["node"], now["gpus"], cluster.num_nodes)
        assert (given <= cluster.gpus).all()
        gangs = np.bincount(now["job"], now["gpus"], len(trace))
        assert (gangs[gangs > 0] == trace.num_gpus[gangs > 0]).all()
