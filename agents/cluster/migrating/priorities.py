"""Orders of priority of jobs that wait or run: the least first."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from agents.solver import Knowledge
from envs.arrays import FloatArray, IntArray
from envs.bounds import Positive, bounded
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import ClusterState
from envs.cluster.workload.trace import WHOLE_GPU


class Priority(Protocol):
    """A number for every job, the least first."""

    name: str
    knows: Knowledge

    def reset(self, simulator: ClusterSimulator) -> None:
        """Before the first event of a simulation."""

    def __call__(self, state: ClusterState, jobs: IntArray) -> FloatArray:
        """(A,) for (A,) settled jobs; ties go by number."""


class Stateless:
    """Priorities that depend on the present alone."""

    def reset(self, simulator: ClusterSimulator) -> None:
        """Nothing to forget."""


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


@bounded
class Aged:
    """Another order, whose keys are ln seconds, mixed with first come, first served.

    Jobs come by e^key less `share` times the seconds since their submission: with a share near 0
    in the other order, with a large one as they were submitted.

    Knows:
        what the other order looks at.

    Guarantees:
        A job goes before one of S seconds, e^key at most, only if it was submitted no more than
        S / `share` seconds later, however wrong the keys are. So on one machine that never idles
        it starts no later than first come, first served would start it, had it been submitted
        S / `share` seconds later.

    Source:
        Own work. Mixing an order by predictions with a fair share bounds what wrong predictions
        cost: Kumar, Purohit, Svitkina, "Improving Online Algorithms via ML Predictions", NeurIPS
        2018, section 3, and Benomar, Perchet, "Non-clairvoyant Scheduling with Partial
        Predictions", ICML 2024, where the share is round robin's and jobs can be stopped.

    Args:
        order: the other one.
        share: seconds that a second of waiting counts.
    """

    name = "aged"

    def __init__(self, order: Priority, share: Positive = 1.0) -> None:
        self.order, self.share = order, share
        self.knows: Knowledge = order.knows

    def reset(self, simulator: ClusterSimulator) -> None:
        self.order.reset(simulator)

    def __call__(self, state: ClusterState, jobs: IntArray) -> FloatArray:
        waited = state.clock[0]["now"] - state.jobs["submit"][jobs]
        key: FloatArray = np.exp(self.order(state, jobs)) - self.share * waited
        return key
