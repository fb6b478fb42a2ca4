"""Who owns which racks, and to whose queue a job comes."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from envs.errors import InputError
from envs.hardware.cluster import Cluster
from envs.workload.trace import UNKNOWN, Trace

IntArray = NDArray[np.int32]


def owner_of_racks(cluster: Cluster, schedulers: int) -> IntArray:
    """(N,) scheduler of every node: consecutive racks, as equal in number as they can be.

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
    return (rack * schedulers // len(racks)).astype(np.int32)


class Routing(Protocol):
    """To whose queue jobs come."""

    def __call__(self, trace: Trace, schedulers: int, rng: np.random.Generator) -> IntArray:
        """(J,) a scheduler for every job."""


class RandomRouting:
    """Each job to a scheduler at random."""

    def __call__(self, trace: Trace, schedulers: int, rng: np.random.Generator) -> IntArray:
        """(J,) schedulers."""
        return rng.integers(schedulers, size=len(trace)).astype(np.int32)


class QueueRouting:
    """By the trace's queues (virtual clusters): the i-th to scheduler i mod S; others at random."""

    def __call__(self, trace: Trace, schedulers: int, rng: np.random.Generator) -> IntArray:
        """(J,) schedulers."""
        codes = trace.queue.codes
        chance = rng.integers(schedulers, size=len(trace))
        return np.where(codes == UNKNOWN, chance, codes % schedulers).astype(np.int32)
