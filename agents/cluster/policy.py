"""What a cluster policy is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from envs.simulation.cluster import ClusterSimulator

Share = tuple[int, int]  # (node, GPUs there)


class PlacementRule(Protocol):
    """Where the next job goes."""

    name: str

    def place(
        self, simulator: ClusterSimulator, job: int, rng: np.random.Generator
    ) -> Sequence[Share] | None:
        """The shares of `job` on the GPUs that are free now; None: it does not fit."""


class ClusterPolicy(Protocol):
    """Decides at every event."""

    name: str

    def reset(self, simulator: ClusterSimulator) -> None:
        """Before the first event of a simulation."""

    def decide(self, simulator: ClusterSimulator) -> None:
        """One scheduling pass at the present instant: starts, preempts and moves jobs."""

    def wake(self, simulator: ClusterSimulator) -> float:
        """When it wants to decide again even if nothing happens, in seconds; inf: not at all."""
