"""Several schedulers share a cluster by its racks: who owns which, and how jobs come to them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from agents.cluster.cells import LateViews
from agents.cluster.compiled.joint_choice import ROUTED, VIEWED, Owners
from envs.arrays import FloatArray, IntArray
from envs.bounds import Count, Positive, bounded
from envs.cluster.environment.routing import (
    MixedRacks,
    QueueRouting,
    RackOwners,
    Routing,
    first_that_holds,
)
from envs.cluster.interference.rates import ONE_NODE, ONE_RACK, SEVERAL_RACKS, RateTables
from envs.cluster.nodes import UNLIMITED, Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_kernel import part
from envs.cluster.simulation.cluster_state import NONE
from envs.cluster.workload.trace import UNKNOWN, WHOLE_GPU, Trace

Reach = tuple[int, int]  # how far a gang is spread, and over how many nodes
Arrival = Literal["routed", "least_load", "shortest_queue", "best_offer"]  # as kernels number them


@bounded
@dataclass(frozen=True)
class Partitioned:
    """Several schedulers with the same policy, each with a queue and racks of its own.

    Each decides on its own nodes alone, with what all have learned of durations. A job that its
    scheduler's nodes could never hold goes to the next whose nodes could. It comes to a queue as
    `routing` says, or at its arrival to the scheduler with the least load, of those that could hold
    it: GPU-seconds that wait, as predicted, per GPU, or jobs that wait; of equals to the one with
    the most free GPUs. With "best_offer" it goes to the scheduler that has the best place for it
    that is good enough, and only where none has one to the least loaded. At the first event after
    it has been in a queue for longer than `forward_s`, and as long again later, a job goes to the
    scheduler with the least load, its own not counted. All of this is seen as it is; `views` decide
    in place of `arrival` where schedulers see each other late, and a job may then be sent on once.

    Args:
        schedulers: how many share the cluster.
        racks: who owns which.
        routing: to whose queue jobs come.
        arrival: "routed" (as `routing` says), "least_load", "shortest_queue" or "best_offer".
        forward_s: seconds after which a job may go to another queue; None: never.
        seed: of the routing.
        views: what schedulers see of each other, and how they choose a cell; None: `arrival` says.

    Raises:
        InputError: an arrival that there is not; a number out of bounds.
    """

    schedulers: Count = 1
    racks: RackOwners = MixedRacks()
    routing: Routing = QueueRouting()
    arrival: Arrival = "best_offer"
    forward_s: Positive | None = 60.0
    seed: int = 0
    views: LateViews | None = None

    def owners(self, simulator: ClusterSimulator, tables: RateTables) -> Owners:
        """Who has what at the start of a simulation.

        Args:
            simulator: before its first event.
            tables: how fast jobs are thought to run.

        Raises:
            InputError: there are fewer racks than schedulers, or none can hold a job.
        """
        cluster, trace, schedulers = simulator.cluster, simulator.trace, self.schedulers
        arrival = VIEWED if self.views else get_args(Arrival).index(self.arrival)
        of_node = self.racks(cluster, schedulers).astype(np.int64)
        types = np.array(simulator.state.jobs["types"])
        holds = _holds(cluster, trace, types, of_node, schedulers)
        home = self.routing(trace, schedulers, np.random.default_rng(self.seed))
        home = first_that_holds(trace.name, home, holds)
        cells = (self.views or LateViews()).cells(home, schedulers, trace.span_s)
        if schedulers > 1 and arrival != ROUTED:
            home[:] = NONE
        return Owners(
            arrival=arrival,
            forward_s=np.inf if self.forward_s is None else float(self.forward_s),
            of_node=of_node,
            home=home.astype(np.int64),
            fastest=fastest(cluster, trace, types, tables, of_node, schedulers),
            holds=holds,
            gpus=np.bincount(of_node, cluster.gpus, schedulers).astype(np.int64).clip(1),
            asked=np.zeros(len(trace)),
            user=user_numbers(trace),
            capacity=_capacity(cluster),
            cells=cells,
        )


def user_numbers(trace: Trace) -> IntArray:
    """(J,) numbers from 0 without gaps; a job of an unknown user has one of its own."""
    codes, jobs = trace.user.codes.astype(np.int64), np.arange(len(trace))
    codes = np.where(codes == UNKNOWN, UNKNOWN - jobs, codes)
    return np.unique(codes, return_inverse=True)[1].ravel().astype(np.int64)


def _capacity(cluster: Cluster) -> FloatArray:
    """(3,) see `Owners`."""
    columns = (WHOLE_GPU * cluster.gpus.astype(np.int64), cluster.cpu_milli, cluster.memory_mib)
    each = np.stack(columns).astype(np.float64)
    capacity: FloatArray = np.where(each >= UNLIMITED, np.inf, each).sum(axis=1).clip(1.0)
    return capacity


def fastest(
    cluster: Cluster,
    trace: Trace,
    types: IntArray,
    tables: RateTables,
    of_node: IntArray,
    schedulers: int,
) -> FloatArray:
    """(J, S) rate alone on the fastest GPUs that a scheduler has for a job, as near as can be.

    They are of one type. For a gang that only several types hold together it is the rate of the
    slowest of them; where nothing holds it, 1.

    Args:
        cluster: the nodes.
        trace: the jobs.
        types: (J,) masks of the GPU types that they permit.
        tables: how fast they run.
        of_node: (N,) scheduler of every node.
        schedulers: S.
    """
    keys = np.column_stack([tables.profile, trace.num_gpus, types]).astype(np.int64)
    requests, of_job = np.unique(keys, axis=0, return_inverse=True)
    rate = np.ones((len(requests), schedulers))

    @cache
    def reach(scheduler: int, mask: int, gpus: int) -> list[tuple[list[int], Reach | None]]:
        mine = (of_node == scheduler) & (mask >> cluster.gpu_type & 1 == 1)
        kinds = np.unique(cluster.gpu_type[mine]).tolist()
        found: list[tuple[list[int], Reach | None]] = []
        for chosen in [*([kind] for kind in kinds), kinds]:
            nodes = np.flatnonzero(mine & np.isin(cluster.gpu_type, chosen))
            found.append((chosen, _tightest(cluster, nodes, gpus)))
        return found

    for row, (case, gpus, mask) in enumerate(requests.tolist()):
        for scheduler in range(schedulers):
            *by_type, together = (_alone(tables, case, *at) for at in reach(scheduler, mask, gpus))
            rate[row, scheduler] = max(by_type, default=0.0) or together or 1.0
    return np.ascontiguousarray(rate[of_job.ravel()])


def _alone(tables: RateTables, case: int, kinds: list[int], reach: Reach | None) -> float:
    """Rate on the fewest and nearest nodes of some types; 0: they have too few GPUs."""
    if reach is None:
        return 0.0
    spread, count = reach
    column = min(count, tables.locality.shape[3]) - 1
    return float(
        min(tables.speed[case, t] * tables.locality[case, t, spread, column] for t in kinds)
    )


def _tightest(cluster: Cluster, nodes: IntArray, gpus: int) -> Reach | None:
    """How far a gang has to reach on some nodes, and over how many; None: too few GPUs."""
    if len(nodes) == 0 or gpus > cluster.gpus[nodes].sum():
        return None
    if gpus <= cluster.gpus[nodes].max():
        return ONE_NODE, 1
    racks = cluster.rack[nodes]
    counts = [_fewest(cluster, nodes[racks == rack], gpus) for rack in np.unique(racks)]
    near = [count for count in counts if count is not None]
    if near:
        return ONE_RACK, min(near)
    return SEVERAL_RACKS, _fewest(cluster, nodes, gpus) or len(nodes)


def _fewest(cluster: Cluster, nodes: IntArray, gpus: int) -> int | None:
    """How many of the nodes a gang needs at least; None: they are too small."""
    room = np.cumsum(np.sort(cluster.gpus[nodes])[::-1])
    return int(np.searchsorted(room, gpus)) + 1 if room[-1] >= gpus else None


def _holds(
    cluster: Cluster, trace: Trace, types: IntArray, of_node: IntArray, schedulers: int
) -> NDArray[np.int8]:
    """(J, S) whether a scheduler's nodes, were they empty, would hold a job."""
    keys = np.column_stack([trace.num_gpus, trace.cpu_milli, trace.memory_mib, types])
    requests, of_job = np.unique(keys.astype(np.int64), axis=0, return_inverse=True)
    held = np.zeros((len(requests), schedulers), np.int8)
    sizes, of_size = np.unique(cluster.gpus, return_inverse=True)
    for row, (gpus, cpu, memory, mask) in enumerate(requests.tolist()):
        shares = [min(gpus, size) for size in sizes.tolist()]
        its_cpu = np.array([part(cpu, share, gpus) for share in shares])[of_size]
        its_memory = np.array([part(memory, share, gpus) for share in shares])[of_size]
        enough = (its_cpu <= cluster.cpu_milli) & (its_memory <= cluster.memory_mib)
        permitted = mask >> cluster.gpu_type & 1 == 1
        for scheduler in range(schedulers):
            mine = (of_node == scheduler) & permitted
            whole = mine & (cluster.gpus >= gpus)
            if whole.any():
                held[row, scheduler] = (whole & enough).any()
            else:
                held[row, scheduler] = cluster.gpus[mine & enough].sum() >= max(gpus, 1)
    return held[of_job.ravel()]
