"""Orders of priority of jobs that wait or run: the least first."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np

from agents.solver import Knowledge
from envs.arrays import FloatArray, IntArray
from envs.bounds import Positive, bounded
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import ClusterState
from envs.cluster.workload.trace import WHOLE_GPU
from envs.errors import InputError


class Spec(NamedTuple):
    """What a checkpoint says of an adviser or its order, and the folder that it reads."""

    document: dict[str, Any]  # JSON
    folder: Path | None = None


@runtime_checkable
class Described(Protocol):
    """What a checkpoint can describe."""

    def spec(self) -> Spec:
        """Its description.

        Raises:
            InputError: this one cannot be described.
        """


def spec_of(what: object) -> Spec:
    """The description of an adviser or an order.

    Raises:
        InputError: no checkpoint can describe it.
    """
    if not isinstance(what, Described):
        told = f"{type(what).__name__} cannot go into a checkpoint (it has no spec)"
        raise InputError(told, field="adviser")
    return what.spec()


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

    name: str

    def spec(self) -> Spec:
        return Spec({"kind": self.name})

    def reset(self, simulator: ClusterSimulator) -> None:
        """Nothing to forget."""

    def copy(self) -> Self:
        return self


@bounded
class AttainedServiceClasses(Stateless):
    """Classes of attained service whose limits double: log2 of GPU-seconds, rounded down.

    Least attained service in the discrete form of the paper (section 3.3), with classes without end
    instead of three queues.

    Source:
        Own plan; the order is that of Gu, Chowdhury, Shin, Zhu, Jeon, Qian, Liu, Guo, "Tiresias: A
        GPU Cluster Manager for Distributed Deep Learning", NSDI 2019.

    Args:
        first: GPU-seconds at which the first class ends.
    """

    name = "attained_service_classes"
    knows: Knowledge = "nothing"

    def __init__(self, first: Positive = 600.0) -> None:
        self.first = first

    def spec(self) -> Spec:
        return Spec({"kind": self.name, "first": float(self.first)})

    def __call__(self, state: ClusterState, jobs: IntArray) -> FloatArray:
        records = state.jobs[jobs]
        service = records["executed"] * records["gpus"] * (records["milli"] / WHOLE_GPU)
        classes: FloatArray = np.floor(np.log2(service / self.first + 1.0))
        return classes


class RemainingTime(Stateless):
    """Seconds of work left.

    Source:
        Own plan; the order is that of Schrage, "A Proof of the Optimality of the Shortest Remaining
        Processing Time Discipline", Operations Research 16(3), 1968.
    """

    name = "remaining_time"
    knows: Knowledge = "durations"

    def __call__(self, state: ClusterState, jobs: IntArray) -> FloatArray:
        left: FloatArray = state.jobs["remaining"][jobs]
        return left


class RemainingService(Stateless):
    """GPU-seconds of work left.

    Source:
        Own plan, which takes the order of remaining GPU time from Tiresias (Gu et al., NSDI 2019,
        section 4.2).
    """

    name = "remaining_service"
    knows: Knowledge = "durations"

    def __call__(self, state: ClusterState, jobs: IntArray) -> FloatArray:
        records = state.jobs[jobs]
        left: FloatArray = records["remaining"] * records["gpus"] * (records["milli"] / WHOLE_GPU)
        return left
