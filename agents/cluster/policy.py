"""What a cluster policy is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, runtime_checkable

import numpy as np

from envs.cluster.simulation.cluster import ClusterSimulator

Share = tuple[int, int]  # (node, GPUs there)
Knowledge = Literal["nothing", "predictions", "durations"]


@runtime_checkable
class PlacementRule(Protocol):
    """Where the next job goes."""

    name: str

    def place(
        self, simulator: ClusterSimulator, job: int, rng: np.random.Generator
    ) -> Sequence[Share] | None:
        """The shares of `job` on the GPUs that are free now; None: it does not fit.

        `JoiningShares` send a fractional job to a GPU that it shares with others.
        """


@runtime_checkable
class ClusterPolicy(Protocol):
    """Decides at every event.

    `knows` says what a policy may look at of a job that has not finished. "nothing": who submitted
    it, its gang, its profile and what it has executed, never `work`, `remaining` or `end`;
    "predictions": the same, and it predicts durations from jobs that have finished; "durations":
    everything.
    """

    name: str
    knows: Knowledge

    def reset(self, simulator: ClusterSimulator) -> None:
        """Before the first event of a simulation."""

    def decide(self, simulator: ClusterSimulator) -> None:
        """One scheduling pass at the present instant: starts, preempts and moves jobs."""

    def wake(self, simulator: ClusterSimulator) -> float:
        """When it wants to decide again even if nothing happens, in seconds; inf: not at all."""
