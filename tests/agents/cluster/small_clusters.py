"""A plain placement, small random clusters with traces, and what must hold of every schedule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from agents.cluster.policy import Share
from envs.arrays import FloatArray
from envs.cluster.interference.rates import RateTables, without_neighbours
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import NONE, Schedule
from envs.cluster.workload.trace import Labels, Trace


class LowestNodes:
    """The lowest node with enough free GPUs, else any free GPUs, the nodes with the most first."""

    name = "lowest_nodes"

    def place(
        self, simulator: ClusterSimulator, job: int, rng: np.random.Generator
    ) -> list[Share] | None:
        record, nodes = simulator.state.jobs[job], simulator.state.nodes
        usable = int(record["types"]) >> nodes["type"].astype(np.int64) & 1 == 1
        free, left = np.where(usable, nodes["free"], 0), int(record["gpus"])
        if (free >= left).any():
            return [(int(np.argmax(free >= left)), left)]
        shares = []
        for node in np.argsort(-free, kind="stable"):
            if here := min(left, int(free[node])):
                shares.append((int(node), here))
                left -= here
        return None if left else shares


class Speeds:
    """Case i is that of job i: its speed on each GPU type, and whatever else rates go by."""

    name = "speeds"

    def __init__(self, speed: FloatArray, **others: Any) -> None:
        self.speed, self.others = speed, others

    def tables(self, trace: Trace, cluster: Cluster) -> RateTables:
        alone = without_neighbours(np.arange(len(trace), dtype=np.int32), self.speed)
        return alone._replace(**self.others)


def with_columns(table: Any, **columns: Any) -> Any:
    """A trace or a cluster with other columns, given as sequences."""
    for name, values in columns.items():
        old = getattr(table, name)
        new = Labels.of(list(values)) if isinstance(old, Labels) else np.array(values, old.dtype)
        table = replace(table, **{name: new})
    return table


def random_case(seed: int, *, types: int = 1) -> tuple[Cluster, Trace]:
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 5))
    names = ("V100", "P100", "K80")[:types]
    cluster = Cluster.uniform(types * int(rng.integers(1, 4)), size, gpu_types=names)
    jobs = int(rng.integers(1, 16))
    return cluster, Trace.of(
        "random",
        np.sort(rng.integers(0, 4000, jobs)),
        rng.integers(1, 3000, jobs),
        rng.integers(1, cluster.num_gpus // types + 1, jobs),
    )


def check_schedule(
    cluster: Cluster,
    trace: Trace,
    schedule: Schedule,
    speed: FloatArray | None = None,
    restart_s: float = 0.0,
) -> None:
    """Whole gangs, no GPU given twice, and exactly the work of every job, at `Speeds`, None: 1."""
    assert schedule.finished.all()
    runs, done = schedule.runs, np.zeros(len(trace))
    assert runs is not None
    assert (runs["start"] >= trace.submit_s[runs["job"]]).all()
    for start, job in np.unique(runs[["start", "job"]]):
        run = runs[(runs["start"] == start) & (runs["job"] == job)]
        rate = 1.0 if speed is None else speed[job, cluster.gpu_type[run["node"]]].min()
        stall = restart_s if start > schedule.start[job] else 0.0
        done[job] += rate * max(run["end"][0] - start - stall, 0.0)
    np.testing.assert_allclose(done, trace.duration_s, rtol=1e-9)
    for time in np.unique([runs["start"], runs["end"]]):
        now = runs[(runs["start"] <= time) & (runs["end"] > time)]
        assert (np.bincount(now["node"], now["gpus"], cluster.num_nodes) <= cluster.gpus).all()
        gangs = np.bincount(now["job"], now["gpus"], len(trace))
        assert ((gangs == 0) | (gangs == trace.num_gpus)).all()


def chain(records: Any, first: Any, following: str = "next") -> list[int]:
    """Numbers of records of which each names the following one."""
    found = []
    while first != NONE:
        found.append(int(first))
        first = records[first][following]
    return found


def jobs_on(simulator: ClusterSimulator, node: int) -> list[int]:
    """Jobs that run on a node, the last to start first."""
    shares = simulator.state.shares
    on_it = chain(shares, simulator.state.nodes[node]["share"], "after")
    return list(shares["job"][on_it].tolist())


def order_of_starts(simulator: ClusterSimulator) -> list[int]:
    """Running jobs, those that began at once in the order that nodes remember."""
    since, order = simulator.state.jobs["since"], list[int]()
    left = sorted(simulator.running().tolist(), key=lambda job: since[job])
    nodes = [jobs_on(simulator, node)[::-1] for node in range(simulator.cluster.num_nodes)]
    while left:
        ready = (
            job
            for job in left
            if all(set(on[: on.index(job)]) <= {*order} for on in nodes if job in on)
        )
        order.append(next(ready))
        left.remove(order[-1])
    return order
