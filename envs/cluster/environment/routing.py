"""Who owns which racks, and to whose queue a job comes."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from envs.cluster.nodes import Cluster
from envs.cluster.workload.trace import UNKNOWN, Trace
from envs.errors import InputError

IntArray = NDArray[np.int32]


class RackOwners(Protocol):
    """Who owns which racks."""

    def __call__(self, cluster: Cluster, schedulers: int) -> IntArray:
        """(N,) scheduler of every node; each owns a rack, none more than ceil(racks / S).

        Raises:
            InputError: there are fewer racks than schedulers.
        """


class ConsecutiveRacks:
    """Consecutive racks for each scheduler, as equal in number as they can be."""

    def __call__(self, cluster: Cluster, schedulers: int) -> IntArray:
        racks, rack = _racks(cluster, schedulers)
        return (rack * schedulers // racks).astype(np.int32)


class MixedRacks:
    """The racks of each GPU type are dealt out in turn, so that every scheduler has all types.

    A rack counts as of the type that most of its GPUs have; of equals the first. Racks come by type
    and then by number, the i-th goes to scheduler i mod S: of each type, and of all, no scheduler
    has two racks more than another.
    """

    def __call__(self, cluster: Cluster, schedulers: int) -> IntArray:
        racks, rack = _racks(cluster, schedulers)
        held = np.zeros((racks, len(cluster.gpu_types)), np.int64)
        np.add.at(held, (rack, cluster.gpu_type), cluster.gpus)
        order = np.argsort(held.argmax(axis=1), kind="stable")
        owner = np.empty(racks, np.int32)
        owner[order] = np.arange(racks) % schedulers
        return owner[rack]


def _racks(cluster: Cluster, schedulers: int) -> tuple[int, NDArray[np.intp]]:
    """How many racks there are, and (N,) their numbers without gaps.

    Raises:
        InputError: there are fewer racks than schedulers.
    """
    racks, rack = np.unique(cluster.rack, return_inverse=True)
    if len(racks) < schedulers:
        raise InputError(
            f"{len(racks)} racks for {schedulers} schedulers",
            file=f"cluster {cluster.name}",
            field="schedulers",
        )
    return len(racks), rack


class Routing(Protocol):
    """To whose queue jobs come."""

    def __call__(self, trace: Trace, schedulers: int, rng: np.random.Generator) -> IntArray:
        """(J,) a scheduler for every job."""


class OneQueue:
    """All jobs to the first scheduler."""

    def __call__(self, trace: Trace, schedulers: int, rng: np.random.Generator) -> IntArray:
        return np.zeros(len(trace), np.int32)


class RandomRouting:
    """Each job to a scheduler at random."""

    def __call__(self, trace: Trace, schedulers: int, rng: np.random.Generator) -> IntArray:
        return rng.integers(schedulers, size=len(trace)).astype(np.int32)


class QueueRouting:
    """By the trace's queues (virtual clusters): the i-th to scheduler i mod S; others at random."""

    def __call__(self, trace: Trace, schedulers: int, rng: np.random.Generator) -> IntArray:
        codes = trace.queue.codes
        chance = rng.integers(schedulers, size=len(trace))
        return np.where(codes == UNKNOWN, chance, codes % schedulers).astype(np.int32)


def first_that_holds(name: str, home: IntArray, holds: NDArray[np.integer]) -> IntArray:
    """(J,) `home`, or the first scheduler after it that can hold the job.

    Args:
        name: of the trace.
        home: (J,) scheduler of every job.
        holds: (J, S) whether a scheduler could ever run a job on its own nodes.

    Raises:
        InputError: none can.
    """
    schedulers = holds.shape[1]
    order = (home[:, None] + np.arange(schedulers)) % schedulers  # (J, S)
    jobs = np.arange(len(home))
    chosen = order[jobs, holds[jobs[:, None], order].argmax(axis=1)]
    cannot = np.flatnonzero(holds[jobs, chosen] == 0)
    if len(cannot):
        job = int(cannot[0])
        raise InputError("no server group can hold it", file=name, record=job, field="num_gpus")
    return np.asarray(chosen, np.int32)
