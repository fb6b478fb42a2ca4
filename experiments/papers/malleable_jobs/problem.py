"""Malleable jobs on machines in slotted time: the problem, a plan, its check and its worth.

A job's bandwidth between machines is reserved: a plan may not reserve more of a NIC than there is,
so every job's speed is its own. `play(shared=True)` gives what is left of each NIC to those that
cross it in proportion to their reservations, which makes no job slower.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar, Literal

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from envs.arrays import FloatArray, IntArray
from envs.bounds import Count, NonNegative, Positive, bounded
from envs.errors import InputError
from experiments.papers.malleable_jobs.speeds import SpeedModel, Utility

RESOURCES = ("gpu", "cpu", "memory", "nic")  # devices, cores, bytes, bytes/s
NIC = RESOURCES.index("nic")
DONE = 1.0 - 1e-9  # this fraction of a job's samples is all of them
Jobs = Annotated[int, Ge(1), Le(100_000)]
Slots = Annotated[int, Ge(1), Le(10_000)]
MOST_PAIRS = 1 << 20  # of a job and a slot, about 1 kB each for the bound
MOST_ENTRIES = 1 << 26  # of a plan, 4 bytes each; planners that are compared have one each


def check_size(slots: int, jobs: int, machines: int) -> None:
    """Whether plans of this size have room.

    Raises:
        InputError: they do not.
    """
    for size, most, of in (
        (slots * jobs, MOST_PAIRS, f"{jobs} jobs"),
        (slots * jobs * machines, MOST_ENTRIES, f"{jobs} jobs times {machines} machines"),
    ):
        if size > most:
            raise InputError(f"{slots} times {of} is above {most}", field="slots")


@bounded
@dataclass(frozen=True)
class MalleableJob:
    """A job that takes any number of workers, slot by slot.

    Raises:
        InputError: a field is out of its range.
    """

    name: str
    arrival: Annotated[int, Ge(0)]  # the first slot in which it may run
    deadline: int  # the first slot in which it may not; at most the problem's slots count
    samples: Positive  # to train
    least_workers: Count  # in a slot in which it has any
    most_workers: int
    most_servers: int  # parameter servers; 0 where the speed model needs none
    worker: tuple[NonNegative, NonNegative, NonNegative]  # GPUs, cores and bytes of one worker
    server: tuple[NonNegative, NonNegative, NonNegative]  # of one parameter server
    reserved: Positive  # bytes/s for each end at a NIC
    speed: SpeedModel
    utility: Utility

    def __post_init__(self) -> None:
        for field, fault in (
            ("arrival", self.arrival >= self.deadline),
            ("least_workers", self.least_workers > self.most_workers),
            ("most_servers", (self.most_servers > 0) != self.speed.needs_servers),
        ):
            if fault:
                told = "goes with neither the deadline, the most workers nor the speed model"
                raise InputError(told, record=self.name, field=field)

    def demand(self, workers: IntArray, servers: IntArray) -> FloatArray:
        """(M, R) what it takes of each machine."""
        taken = np.empty((len(workers), len(RESOURCES)))
        taken[:, :NIC] = np.outer(workers, self.worker) + np.outer(servers, self.server)
        taken[:, NIC] = self.speed.ends(workers, servers) * self.reserved
        return taken

    def worth(self, done: FloatArray) -> float:
        """Its utility, of the fraction that is done at the end of each slot."""
        if self.utility.partial:
            return self.utility.of(float(done[-1]))
        finished = int(np.searchsorted(done, DONE))
        return self.utility.at(finished - self.arrival + 1) if finished < len(done) else 0.0


@dataclass(frozen=True, eq=False)
class AllocationProblem:
    """J jobs on M machines over T slots.

    Raises:
        InputError: it is too large, two jobs have one name, or one arrives too late.
    """

    objective: ClassVar[str] = "utility"
    sense: ClassVar[Literal["max"]] = "max"

    jobs: tuple[MalleableJob, ...]
    capacity: FloatArray  # (M, R) of `RESOURCES`
    inside: float  # bytes/s between the workers of one machine
    slots: int  # T
    slot_s: float  # seconds

    def __post_init__(self) -> None:
        check_size(self.slots, len(self.jobs), self.machines)
        if len({job.name for job in self.jobs}) < len(self.jobs):
            raise InputError("two jobs have one name", field="name")
        for job in self.jobs:
            if job.arrival >= self.slots:
                raise InputError("is after the last slot", record=job.name, field="arrival")

    @property
    def machines(self) -> int:
        """M."""
        return len(self.capacity)

    @cached_property
    def windows(self) -> tuple[range, ...]:
        """The slots in which each job may run."""
        return tuple(range(job.arrival, min(job.deadline, self.slots)) for job in self.jobs)

    def progress(
        self,
        job: MalleableJob,
        workers: IntArray,
        servers: IntArray,
        bandwidth: float | None = None,
    ) -> float:
        """The fraction of a job that one slot with these workers and servers (M,) makes.

        `bandwidth` between machines, in bytes/s, is what the job reserved unless given.
        """
        bandwidth = job.reserved if bandwidth is None else bandwidth
        rate = job.speed.samples_per_s(workers, servers, bandwidth, self.inside)
        return rate * self.slot_s / job.samples

    def price(self, plan: AllocationPlan) -> dict[str, float]:
        """What a plan is worth when it is played."""
        return {self.objective: play(self, plan).utility}

    def violations(self, plan: AllocationPlan) -> list[str]:
        """What is wrong with a plan, in words; nothing where it is feasible."""
        shape = (self.slots, len(self.jobs), self.machines)
        if plan.workers.shape != shape or plan.servers.shape != shape:
            return [f"the plan is not of shape {shape}"]
        wrong = []
        for slot in range(self.slots):
            workers, servers = (
                plan.workers[slot].astype(np.int64),
                plan.servers[slot].astype(np.int64),
            )
            taken = np.zeros_like(self.capacity)
            for j in np.flatnonzero(workers.any(axis=1) | servers.any(axis=1)):
                job, w, p = self.jobs[j], int(workers[j].sum()), int(servers[j].sum())
                here = f"slot {slot}, job {job.name}"
                if min(workers[j].min(), servers[j].min()) < 0:
                    wrong.append(f"{here}: a number is negative")
                    continue
                if slot not in self.windows[j]:
                    wrong.append(f"{here}: runs outside its window")
                if not job.least_workers <= w <= job.most_workers:
                    wrong.append(
                        f"{here}: {w} workers of {job.least_workers} to {job.most_workers}"
                    )
                if not (1 if job.speed.needs_servers else 0) <= p <= job.most_servers:
                    wrong.append(f"{here}: {p} parameter servers of at most {job.most_servers}")
                taken += job.demand(workers[j], servers[j])
            for m, r in np.argwhere(taken > self.capacity * (1.0 + 1e-9) + 1e-12):
                wrong.append(
                    f"slot {slot}, machine {m}: {taken[m, r]:g} {RESOURCES[r]} taken of "
                    f"{self.capacity[m, r]:g}"
                )
        return wrong

    def bound(self) -> None:
        """Solvers bring their own."""


@dataclass(frozen=True, eq=False)
class AllocationPlan:
    """How many workers and parameter servers each job has on each machine in each slot."""

    workers: NDArray[np.int16]  # (T, J, M)
    servers: NDArray[np.int16]  # (T, J, M)

    @staticmethod
    def empty(problem: AllocationProblem) -> AllocationPlan:
        """A plan in which nothing runs, to be filled."""
        shape = (problem.slots, len(problem.jobs), problem.machines)
        return AllocationPlan(np.zeros(shape, np.int16), np.zeros(shape, np.int16))

    def running(self, slot: int) -> IntArray:
        """The jobs with a worker in a slot, ascending."""
        return np.flatnonzero(self.workers[slot].any(axis=1))


@dataclass(frozen=True, eq=False)
class Played:
    """What a plan does: `done` (J, T) fractions at the end of slots, `worth` (J,)."""

    done: FloatArray
    worth: FloatArray

    @property
    def utility(self) -> float:
        """Of all jobs."""
        return float(self.worth.sum())

    @property
    def finished(self) -> IntArray:
        """(J,) the slot in which each job ends, T where it does not."""
        late = self.done[:, -1] < DONE
        first: IntArray = np.argmax(self.done >= DONE, axis=1)
        return np.where(late, self.done.shape[1], first)


def play(problem: AllocationProblem, plan: AllocationPlan, shared: bool = False) -> Played:
    """What a plan, as it stands, makes of every job."""
    made = np.zeros((len(problem.jobs), problem.slots))
    for slot in range(problem.slots):
        jobs = plan.running(slot)
        workers = plan.workers[slot, jobs].astype(np.int64)
        servers = plan.servers[slot, jobs].astype(np.int64)
        given = _bandwidths(problem, jobs, workers, servers) if shared else [None] * len(jobs)
        for j, w, p, bandwidth in zip(jobs, workers, servers, given, strict=True):
            made[j, slot] = problem.progress(problem.jobs[j], w, p, bandwidth)
    done = np.minimum(np.cumsum(made, axis=1), 1.0)
    worth = [job.worth(row) for job, row in zip(problem.jobs, done, strict=True)]
    return Played(done, np.array(worth))


def _bandwidths(
    problem: AllocationProblem, jobs: IntArray, workers: IntArray, servers: IntArray
) -> Sequence[float | None]:
    """Bytes/s for each end of each job: NICs divided in proportion to what is reserved there."""
    reserved = np.array([problem.jobs[j].reserved for j in jobs])
    ends = np.array(
        [problem.jobs[j].speed.ends(w, p) for j, w, p in zip(jobs, workers, servers, strict=True)]
    ).reshape(len(jobs), problem.machines)
    asked = reserved @ ends
    with np.errstate(divide="ignore"):
        spare = np.where(asked > 0.0, problem.capacity[:, NIC] / asked, np.inf)
    slowest = np.where(ends > 0, spare, np.inf).min(axis=1, initial=np.inf)
    return [float(b) if np.isfinite(b) else None for b in reserved * slowest]
