"""What a scheduler is, and what a placement rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np

from agents.solver import Policy
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator, Joined
from envs.cluster.simulation.cluster_state import Schedule
from envs.cluster.workload.trace import Trace

Share = tuple[int, int]  # (node, GPUs there)


class PartialGpuShares(tuple[Share, ...]):
    """The shares of a fractional job that joins others on the GPUs of a set.

    `partial` is the set of its only share, or a set, or None for free GPUs, for each share.
    """

    partial: Joined

    def __new__(cls, shares: Sequence[Share], partial: Joined) -> PartialGpuShares:
        joining = super().__new__(cls, shares)
        joining.partial = partial
        return joining


Option = tuple[int, PartialGpuShares]  # a job that could start now, and where


def same_start(one: Option, other: Option) -> bool:
    """Whether two starts are of the same job, on the same shares and sets."""
    return one == other and one[1].partial == other[1].partial


@runtime_checkable
class PlacementRule(Protocol):
    """Where the next job goes."""

    name: str

    def place(
        self, simulator: ClusterSimulator, job: int, rng: np.random.Generator
    ) -> Sequence[Share] | None:
        """The shares of `job` on the GPUs that are free now; None: it does not fit.

        `PartialGpuShares` send a fractional job to GPUs that it shares with others; with other
        shares it has GPUs of its own until others join it.
        """


@runtime_checkable
class Scheduler(Policy[ClusterSimulator], Protocol):
    """A policy asked at every event; subclasses may know faster ways to the same schedule."""

    name: str
    memoryless: ClassVar[bool] = True  # a state says all that it goes by, nothing asked before

    def reset(self, simulator: ClusterSimulator) -> None:
        """Before the first event of a simulation."""

    def decide(self, simulator: ClusterSimulator) -> None:
        """One scheduling pass at the present instant: starts, preempts and moves jobs."""

    def wake(self, simulator: ClusterSimulator) -> float:
        """When it wants to decide again even if nothing happens, in seconds; inf: not at all."""
        return np.inf

    def run(self, simulator: ClusterSimulator) -> bool:
        """Go from a simulation's start to its end in compiled code; False: nothing has happened."""
        return False

    def replay(self, cluster: Cluster, trace: Trace) -> Schedule | None:
        """The schedule at rate 1, without overheads and failures; None: by the simulator alone.

        Raises:
            InputError: a job can never run, or the times are too long to be added up.
        """
        return None
