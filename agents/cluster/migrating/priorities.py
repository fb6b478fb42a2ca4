"""Orders of priority of jobs that wait or run: the least first."""

from __future__ import annotations

from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from agents.cluster.policy import Knowledge
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import ClusterState
from envs.cluster.workload.trace import WHOLE_GPU
from envs.errors import InputError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class Priority(Protocol):
    """A number for every job, the least first."""

    name: str
    knows: Knowledge

    def reset(self, simulator: ClusterSimulator) -> None:
        """Before the first event of a simulation."""

    def copy(self) -> Priority:
        """An independent copy, to go with a copy of the simulator."""

    def __call__(self, state: ClusterState, jobs: IntArray) -> FloatArray:
        """(A,) for (A,) settled jobs; ties go by number."""


class Stateless:
    """Priorities that depend on the present alone."""

    def reset(self, simulator: ClusterSimulator) -> None:
        """Nothing to forget."""

    def copy(self) -> Self:
        """Itself."""
        return self


class AttainedServiceClasses(Stateless):
    """Classes of attained service whose limits double: log2 of GPU-seconds, rounded down.

    Least attained service in the discrete form of Gu et al. (NSDI 2019, section 3.3), with classes
    without end instead of three queues.

    Args:
        first: GPU-seconds at which the first class ends.

    Raises:
        InputError: it is not above 0.
    """

    name = "attained_service_classes"
    knows: Knowledge = "nothing"

    def __init__(self, first: float) -> None:
        if not 0.0 < first < np.inf:
            raise InputError(f"{first} is not positive and finite", field="first")
        self.first = first

    def __call__(self, state: ClusterState, jobs: IntArray) -> FloatArray:
        """(A,) classes from 0."""
        records = state.jobs[jobs]
        service = records["executed"] * records["gpus"] * (records["milli"] / WHOLE_GPU)
        classes: FloatArray = np.floor(np.log2(service / self.first + 1.0))
        return classes


class RemainingTime(Stateless):
    """Seconds of work left."""

    name = "remaining_time"
    knows: Knowledge = "durations"

    def __call__(self, state: ClusterState, jobs: IntArray) -> FloatArray:
        """(A,) seconds."""
        left: FloatArray = state.jobs["remaining"][jobs]
        return left


class RemainingService(Stateless):
    """GPU-seconds of work left."""

    name = "remaining_service"
    knows: Knowledge = "durations"

    def __call__(self, state: ClusterState, jobs: IntArray) -> FloatArray:
        """(A,) GPU-seconds."""
        records = state.jobs[jobs]
        left: FloatArray = records["remaining"] * records["gpus"] * (records["milli"] / WHOLE_GPU)
        return left
