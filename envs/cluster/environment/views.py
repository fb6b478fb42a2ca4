"""What schedulers of an episode have: their servers, what they know of jobs, and advice."""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from envs.arrays import FloatArray, sums_before
from envs.cluster.environment.actions import ActionTable
from envs.cluster.environment.features import HIGH, LOW
from envs.cluster.interference.rates import ONE_RACK, SEVERAL_RACKS, RateTables
from envs.cluster.nodes import UNLIMITED, Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import NONE
from envs.cluster.workload.trace import Trace

IntArray = NDArray[np.int32]

PROFILE_WIDTH = 8  # features of a job that only its rate model and its requests say


class View(NamedTuple):
    """The servers of one scheduler, by rack and then by number."""

    scheduler: int
    node: IntArray  # (n,) node of the cluster
    slot: IntArray  # (nodes of the cluster,) place in `node`, or NONE
    rack: IntArray  # (n,) from 0 in the order shown
    rack_ptr: IntArray  # (r + 1,) first slot of each rack
    gpus: int  # of all of its servers
    largest: int  # GPUs of the largest server in the bounds
    # (n, 3) of a server: processor and memory in all, mean speed over cases / fastest type's
    capacity: FloatArray


class Bookkeeping(NamedTuple):
    """What schedulers know of jobs beside the simulator's state; J jobs, S schedulers."""

    home: IntArray  # (J,) scheduler in whose queue a job is, or was when it started
    there: FloatArray  # (J,) seconds from which it is there
    forwards: IntArray  # (J,) how often it has been forwarded
    holds: NDArray[np.int8]  # (J, S) 1: the scheduler's servers can hold it when empty
    window: IntArray  # (S, W) pending jobs shown, or NONE
    shown: IntArray  # (S, M) running jobs shown, or NONE
    row: IntArray  # (J,) scratch: place of a running job
    near: IntArray  # (J, 2 K) jobs submitted before and after of the same kind, or NONE
    gap: NDArray[np.float32]  # (J, 2 K) feature: time between its submission and theirs
    took: FloatArray  # (J,) feature: time for which a job that has finished held its GPUs
    gang: IntArray  # (J,) number of its gang size; (0,) where no history is shown
    finished: FloatArray  # (C + 1, 3) number, mean, variance by gang size, and over all


class Situation(Protocol):
    """What an adviser sees of an episode; `episode.SchedulingEpisode` is one."""

    simulator: ClusterSimulator
    views: list[View]  # by scheduler
    book: Bookkeeping
    action_table: ActionTable
    most_forwards: int  # of a job
    advice: Advice | None  # what the schedulers are shown


class Advice(Protocol):
    """An adviser's thoughts about one episode."""

    def action(self, episode: Situation, scheduler: int) -> int:
        """An allowed action for a scheduler whose window has just been filled."""


@runtime_checkable
class Adviser(Protocol):
    """A known policy, asked at every decision; it changes nothing itself."""

    def begin(self, episode: Situation) -> Advice:
        """At the start of an episode."""


def view_of(
    cluster: Cluster, tables: RateTables, nodes: NDArray[np.integer], scheduler: int, largest: int
) -> View:
    """The view of `scheduler`, who owns `nodes` of `cluster`."""
    order = nodes[np.lexsort((nodes, cluster.rack[nodes]))].astype(np.int32)
    slot = np.full(cluster.num_nodes, NONE, np.int32)
    slot[order] = np.arange(len(order))
    _, rack, sizes = np.unique(cluster.rack[order], return_inverse=True, return_counts=True)
    speed = tables.speed.mean(axis=0)
    return View(
        scheduler=scheduler,
        node=order,
        slot=slot,
        rack=rack.astype(np.int32),
        rack_ptr=sums_before(sizes).astype(np.int32),
        gpus=int(cluster.gpus[order].sum()),
        largest=largest,
        capacity=np.stack(
            [
                cluster.cpu_milli[order].astype(np.float64),
                cluster.memory_mib[order].astype(np.float64),
                (speed / speed.max())[cluster.gpu_type[order]],
            ],
            axis=1,
        ),
    )


def job_profiles(
    cluster: Cluster,
    trace: Trace,
    tables: RateTables,
    permitted: NDArray[np.integer],
    types: int,
) -> NDArray[np.float32]:
    """(J, PROFILE_WIDTH + types) features of jobs that never change.

    Their meaning stands in `envs.cluster.environment.observation.ClusterObservation`.

    Args:
        cluster: where they run.
        trace: the jobs.
        tables: how they run there.
        permitted: (J,) bits of the GPU types they may run on.
        types: T of the bounds.
    """
    profile = tables.profile
    row = tables.row[:, 0]
    by_case = np.stack(
        [
            tables.communication.max(axis=(1, 2, 3)),
            tables.demand.max(axis=1),
            tables.pair[row].mean(axis=1),
            tables.pair[:, row].mean(axis=0),
            tables.locality[:, :, ONE_RACK, min(1, tables.locality.shape[3] - 1)].mean(axis=1),
            tables.locality[:, :, SEVERAL_RACKS, -1].mean(axis=1),
        ],
        axis=1,
    )
    out = np.zeros((len(trace), PROFILE_WIDTH + types))
    out[:, :6] = by_case[profile]
    for column, wanted, there in (
        (6, trace.cpu_milli, cluster.cpu_milli),
        (7, trace.memory_mib, cluster.memory_mib),
    ):
        limited = there[there < UNLIMITED]
        out[:, column] = wanted / max(int(limited.max(initial=0)), 1) if len(limited) else 0.0
    for index in range(len(cluster.gpu_types)):
        may = permitted >> index & 1 == 1
        out[:, PROFILE_WIDTH + index] = np.where(may, tables.speed[profile, index], 0.0)
    return np.clip(out, LOW, HIGH).astype(np.float32)
