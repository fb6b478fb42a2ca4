"""A user's own order of priority: one function of the jobs that are there."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agents.cluster.backfilling import preempt_in_order, start_in_order
from agents.cluster.policy import PlacementRule
from agents.cluster.queue import QueuePolicy
from agents.solver import Knowledge
from envs.arrays import BoolArray, FloatArray, IntArray
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import PENDING
from envs.cluster.workload.trace import WHOLE_GPU, Labels
from envs.errors import InputError


@dataclass(frozen=True, eq=False)
class Jobs:
    """A jobs that wait or run, as columns; times in seconds.

    Raises:
        InputError: `duration_s` or `remaining_s` is read by an order that knows no durations.
    """

    simulator: ClusterSimulator
    jobs: IntArray  # (A,) numbers in the trace
    knows: Knowledge
    name: str  # of the order

    def __len__(self) -> int:
        return len(self.jobs)

    @property
    def now_s(self) -> float:
        """The present."""
        return self.simulator.now

    @property
    def submit_s(self) -> FloatArray:
        """(A,) when they were submitted."""
        return self._column("submit")

    @property
    def waited_s(self) -> FloatArray:
        """(A,) seconds since their submission in which they held no GPUs."""
        return self.now_s - self.submit_s - self.executed_s

    @property
    def executed_s(self) -> FloatArray:
        """(A,) seconds in which they have held their GPUs."""
        return self._column("executed")

    @property
    def num_gpus(self) -> FloatArray:
        """(A,) GPUs that they ask for, fractions included."""
        return self._column("gpus") * self._column("milli") / WHOLE_GPU

    @property
    def running(self) -> BoolArray:
        """(A,) whether they run."""
        return ~self.waiting

    @property
    def waiting(self) -> BoolArray:
        """(A,) whether they wait."""
        return np.equal(self._column("status"), PENDING)

    @property
    def user(self) -> NDArray[np.str_]:
        """(A,) who submitted them, "" where the trace does not say."""
        return self._labels(self.simulator.trace.user)

    @property
    def queue(self) -> NDArray[np.str_]:
        """(A,) the virtual cluster they were submitted to, "" where the trace does not say."""
        return self._labels(self.simulator.trace.queue)

    @property
    def model(self) -> NDArray[np.str_]:
        """(A,) what they train, "" where the trace does not say."""
        return self._labels(self.simulator.trace.model)

    @property
    def duration_s(self) -> FloatArray:
        """(A,) seconds they take alone; for an order with `knows="durations"`."""
        return self._column("work", "duration_s")

    @property
    def remaining_s(self) -> FloatArray:
        """(A,) seconds they still need alone; for an order with `knows="durations"`."""
        return self._column("remaining", "remaining_s")

    def _column(self, field: str, kept: str = "") -> FloatArray:
        """A field of the records; `kept`: the name of a column for orders that know durations."""
        if kept and self.knows != "durations":
            problem = f"reads {kept}, and knows {self.knows!r}: say knows='durations'"
            raise InputError(problem, file=f"policy {self.name}")
        column: FloatArray = self.simulator.state.jobs[field][self.jobs].astype(np.float64)
        return column

    def _labels(self, labels: Labels) -> NDArray[np.str_]:
        names = np.array([*labels.names, ""])  # UNKNOWN is -1, the last one
        return names[labels.codes[self.jobs]]


class PriorityPolicy(QueuePolicy):
    """Jobs run in an order of priority, the least value first, equal ones as submitted.

    It is asked at every event. With preemption a job of a later place gives its GPUs to one of an
    earlier place; without it, jobs start in this order where they fit. A subclass has a `name`,
    what it `knows` and a `rank`.
    """

    knows: Knowledge = "nothing"
    preemptive: bool = True

    @abstractmethod
    def rank(self, jobs: Jobs) -> ArrayLike:
        """(A,) numbers of A jobs that wait or run; only those that wait, without preemption."""

    def decide(self, simulator: ClusterSimulator) -> None:
        """Start or preempt jobs in this order.

        Raises:
            InputError: a rank is anything but a finite number for every job.
        """
        simulator.settle()
        jobs = simulator.pending()
        if self.preemptive:
            jobs = np.concatenate([jobs, simulator.running()])
        jobs = np.sort(jobs)
        if not len(jobs):
            return
        values = np.asarray(self.rank(Jobs(simulator, jobs, self.knows, self.name)))
        if values.shape != jobs.shape or values.dtype.kind not in "biuf":
            problem = f"returns {values.dtype} of shape {values.shape}, not a number for each of "
            raise InputError(f"{problem}{len(jobs)} jobs", file=f"policy {self.name}")
        if not np.isfinite(values).all():
            raise InputError("returns a number that is not finite", file=f"policy {self.name}")
        order = jobs[np.argsort(values, kind="stable")].tolist()
        if self.preemptive:
            preempt_in_order(simulator, order, self.placement, self._rng)
        else:
            start_in_order(simulator, order, self.placement, self._rng, blocking=False)


class OwnOrder(PriorityPolicy):
    """The order of a function.

    Args:
        function: (A,) numbers of A jobs.
        placement: where a gang goes.
        seed: of the placement rule's generator.
        knows: what the function looks at: nothing, predictions or durations.
        preemptive: whether running jobs give way.
        name: as it stands in tables; None: that of the function.
    """

    def __init__(
        self,
        function: Callable[[Jobs], ArrayLike],
        placement: PlacementRule,
        seed: int,
        *,
        knows: Knowledge = "nothing",
        preemptive: bool = True,
        name: str | None = None,
    ) -> None:
        super().__init__(placement, seed)
        self.function, self.knows, self.preemptive = function, knows, preemptive
        self.name = name or str(getattr(function, "__name__", type(function).__name__))

    def rank(self, jobs: Jobs) -> ArrayLike:
        return self.function(jobs)
