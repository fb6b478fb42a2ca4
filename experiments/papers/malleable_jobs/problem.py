"""Malleable jobs on machines in slotted time: how fast they are, plans, their check and worth.

A job's bandwidth between machines is reserved: a plan may not reserve more of a NIC than there is,
so every job's speed is its own. Workers and parameter servers on machines are arrays (2, M).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Ge, Le, MinLen
from numpy.typing import NDArray

from envs.arrays import BoolArray, FloatArray, IntArray
from envs.bounds import Count, NonNegative, Positive, bounded
from envs.errors import InputError

RESOURCES = ("gpu", "cpu", "memory", "nic")  # devices, cores, bytes, bytes/s
NIC = RESOURCES.index("nic")
DONE = 1.0 - 1e-9  # this fraction of a job's samples is all of them
Jobs = Annotated[int, Ge(1), Le(100_000)]
Slots = Annotated[int, Ge(1), Le(10_000)]
MOST_PAIRS = 1 << 20  # of a job and a slot, about 1 kB each for the bound
MOST_ENTRIES = 1 << 26  # of a plan, 4 bytes each; planners that are compared have one each


class SpeedModel(ABC):
    """How fast a job trains with its workers where they are.

    Scaling is weak: every worker takes `batch` samples an iteration. Workers and servers are (M,).
    """

    batch: int
    needs_servers: ClassVar[bool] = True  # whether it trains only with a parameter server

    @abstractmethod
    def seconds(self, workers: int, servers: int, machines: int, rate: float) -> float:
        """Of an iteration on so many machines, at `rate` bytes/s between workers and servers."""

    def samples_per_s(
        self, workers: IntArray, servers: IntArray, bandwidth: float, inside: float
    ) -> float:
        """0 without a worker, or without a server where one is needed.

        `bandwidth` is what the job has between machines, `inside` where it is all on one.
        """
        w, p = int(workers.sum()), int(servers.sum())
        if w == 0 or (self.needs_servers and p == 0):
            return 0.0
        machines = int(np.count_nonzero(workers + servers))
        rate = inside if machines == 1 else min(bandwidth, inside)
        return w * self.batch / self.seconds(w, p, machines, rate)

    def ends(self, workers: IntArray, servers: IntArray) -> IntArray:
        """(M,) how many times the job's reserved bandwidth is taken of each machine's NIC."""
        there = workers + servers
        return there if np.count_nonzero(there) > 1 else np.zeros_like(there)


@bounded
@dataclass(frozen=True)
class RingSpeed(SpeedModel):
    """Ring all-reduce: `w batch / (compute + 2 (w - 1) / w m / b + overhead machines)`.

    A ring enters and leaves each of its machines once, so it takes one end of each NIC. b is
    that of its slowest edge.

    Source:
        Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms", JPDC 2009; with the overhead of
        GADGET (Yu et al., INFOCOM 2022), as far as its abstract tells.
    """

    batch: Count  # samples of one worker in one iteration
    compute: Positive  # seconds of one worker's forward and backward pass
    gradient: NonNegative  # bytes m
    overhead: NonNegative = 0.0  # seconds an iteration for each machine spanned

    needs_servers = False

    def seconds(self, workers: int, servers: int, machines: int, rate: float) -> float:
        passing = 2.0 * (workers - 1) / workers * self.gradient / rate
        return self.compute + passing + self.overhead * machines

    def ends(self, workers: IntArray, servers: IntArray) -> IntArray:
        return np.minimum(super().ends(workers, servers), 1)


@bounded
@dataclass(frozen=True)
class ParameterServerSpeed(SpeedModel):
    """Parameter servers with locality: `w batch / (compute + 2 m max(1, w / p) / b)`.

    Each of p servers holds m / p and serves all w workers. b is the inner bandwidth where all
    workers and servers are on one machine (together), else the reserved one (apart): locality is
    all or nothing. Apart, each worker and each server has an end of its machine's NIC.

    Source:
        Reconstructed from the abstract of Yu et al., IEEE TNSE 2021 (arXiv 2108.02917).
    """

    batch: Count
    compute: Positive  # seconds
    gradient: NonNegative  # bytes m

    def seconds(self, workers: int, servers: int, machines: int, rate: float) -> float:
        return self.compute + 2.0 * self.gradient * max(1.0, workers / servers) / rate


@bounded
@dataclass(frozen=True)
class LayeredSpeed(SpeedModel):
    """Parameter servers whose layers are sent as soon as the backward pass has left them.

    Layers are sent one after another, the last first, while earlier ones are still computed; the
    next forward pass begins when the first layer is back. So an iteration takes
    `sum F + max over l of (B_L + ... + B_l + C_l + ... + C_1)`, with
    `C_l = 2 m_l max(1, w / p) / b`.

    Source:
        The wait-free backward pass of Poseidon (Zhang et al., USENIX ATC 2017), for the layered
        model that SMD's abstract names (Yu et al., INFOCOM 2021).
    """

    batch: Count
    forward: Annotated[tuple[NonNegative, ...], MinLen(1)]  # seconds of each layer, the first first
    backward: tuple[NonNegative, ...]
    gradient: tuple[NonNegative, ...]  # bytes of each layer

    def __post_init__(self) -> None:
        if not len(self.forward) == len(self.backward) == len(self.gradient):
            raise InputError("has not as many layers as 'gradient'", field="forward")
        if not sum(self.forward) + sum(self.backward) > 0.0:
            raise InputError("takes no time", field="forward")

    def seconds(self, workers: int, servers: int, machines: int, rate: float) -> float:
        passed = np.cumsum(self.backward[::-1])[::-1]  # until layer l has its gradient
        most = max(1.0, workers / servers)
        sent = np.cumsum(self.gradient) * 2.0 * most / rate  # from layer l to the first
        return sum(self.forward) + float((passed + sent).max())


class Utility(ABC):
    """Worth of a job. Neither argument makes it worth less by more work or by an earlier end."""

    partial: ClassVar[bool] = (
        False  # whether work counts that ends unfinished: `of` then, else `at`
    )

    @abstractmethod
    def at(self, slots: int) -> float:
        """Of a job that ends in the `slots`-th slot after its arrival, counted from 1."""

    def of(self, fraction: float) -> float:
        """Of a job of which a fraction in [0, 1] is done when its time is over; concave."""
        raise NotImplementedError("this utility is of completion: use `at`")


@bounded
@dataclass(frozen=True)
class LinearUtility(Utility):
    """`weight max(0, 1 - (slots - 1) / patience)`."""

    weight: Positive
    patience: Positive  # slots

    def at(self, slots: int) -> float:
        return self.weight * max(0.0, 1.0 - (slots - 1) / self.patience)


@bounded
@dataclass(frozen=True)
class SigmoidUtility(Utility):
    """`weight / (1 + exp(steepness (slots - critical)))`.

    Source:
        Bao, Peng, Wu, Li, "Online job scheduling in distributed machine learning clusters",
        INFOCOM 2018: steepness 0 is a job that can wait, 4 to 6 one with a soft deadline.
    """

    weight: Positive
    steepness: NonNegative  # per slot
    critical: Positive  # slots

    def at(self, slots: int) -> float:
        return self.weight / (1.0 + math.exp(min(self.steepness * (slots - self.critical), 700.0)))


@bounded
@dataclass(frozen=True)
class LogUtility(Utility):
    """`weight log(1 + fraction / knee) / log(1 + 1 / knee)`: the first samples are worth most."""

    weight: Positive
    knee: Positive = 0.1

    partial = True

    def at(self, slots: int) -> float:
        return self.weight

    def of(self, fraction: float) -> float:
        return self.weight * math.log1p(fraction / self.knee) / math.log1p(1.0 / self.knee)


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
                message = "goes with neither the deadline, the most workers nor the speed model"
                raise InputError(message, record=self.name, field=field)

    def servers_for(self, workers: int) -> int:
        """One parameter server for each worker, as far as the job may have them."""
        return min(self.most_servers, workers)

    def inner(self, workers: IntArray, servers: IntArray) -> FloatArray:
        """(N, R - 1) what N pairs of workers and servers take, but for the NIC."""
        return np.outer(workers, self.worker) + np.outer(servers, self.server)

    def demand(self, workers: IntArray, servers: IntArray) -> FloatArray:
        """(M, R) what it takes of each machine."""
        nic = self.speed.ends(workers, servers) * self.reserved
        return np.column_stack([self.inner(workers, servers), nic])

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

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(T, J, 2, M) of plans."""
        return self.slots, len(self.jobs), 2, self.machines

    @cached_property
    def total(self) -> FloatArray:
        """(R,) what all machines have together, a little of what they do not have."""
        found: FloatArray = np.maximum(self.capacity.sum(axis=0), 1e-9)
        return found

    @cached_property
    def windows(self) -> tuple[range, ...]:
        """The slots in which each job may run."""
        return tuple(range(job.arrival, min(job.deadline, self.slots)) for job in self.jobs)

    def active(self, slot: int, done: FloatArray) -> list[int]:
        """The jobs that may run in a slot, before which fractions (J,) of them are done."""
        return [j for j, window in enumerate(self.windows) if slot in window and done[j] < DONE]

    def progress(self, job: MalleableJob, workers: IntArray, servers: IntArray) -> float:
        """The fraction of a job that one slot with these workers and servers (M,) makes."""
        rate = job.speed.samples_per_s(workers, servers, job.reserved, self.inside)
        return rate * self.slot_s / job.samples

    def violations(self, plan: AllocationPlan) -> list[str]:
        """What is wrong with a plan, in words; nothing where it is feasible."""
        wrong = []
        for slot, given in enumerate(plan.given):
            taken = np.zeros_like(self.capacity)
            for j in np.flatnonzero(given.any(axis=(1, 2))):
                job, (workers, servers) = self.jobs[j], given[j].astype(np.int64)
                w, p, here = int(workers.sum()), int(servers.sum()), f"slot {slot}, job {job.name}"
                if given[j].min() < 0:
                    wrong.append(f"{here}: a number is negative")
                    continue
                if slot not in self.windows[j]:
                    wrong.append(f"{here}: runs outside its window")
                if not job.least_workers <= w <= job.most_workers:
                    wrong.append(
                        f"{here}: {w} workers of {job.least_workers} to {job.most_workers}"
                    )
                if not int(job.speed.needs_servers) <= p <= job.most_servers:
                    wrong.append(f"{here}: {p} parameter servers of at most {job.most_servers}")
                taken += job.demand(workers, servers)
            for m, r in np.argwhere(taken > self.capacity * (1.0 + 1e-9) + 1e-12):
                wrong.append(
                    f"slot {slot}, machine {m}: {taken[m, r]:g} {RESOURCES[r]} taken of "
                    f"{self.capacity[m, r]:g}"
                )
        return wrong


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


@dataclass(frozen=True, eq=False)
class AllocationPlan:
    """How many workers and parameter servers each job has on each machine in each slot."""

    given: NDArray[np.int16]  # (T, J, 2, M)

    @staticmethod
    def empty(problem: AllocationProblem) -> AllocationPlan:
        """A plan in which nothing runs, to be filled."""
        return AllocationPlan(np.zeros(problem.shape, np.int16))

    @property
    def workers(self) -> NDArray[np.int16]:
        """(T, J, M), to be written to."""
        return self.given[:, :, 0]


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
    def finished(self) -> BoolArray:
        """(J,) which jobs come to their end."""
        return self.done[:, -1] >= DONE


def play(problem: AllocationProblem, plan: AllocationPlan) -> Played:
    """What a plan, as it stands, makes of every job."""
    made = np.zeros((len(problem.jobs), problem.slots))
    for slot, j in np.argwhere(plan.workers.any(axis=2)):
        given = plan.given[slot, j].astype(np.int64)
        made[j, slot] = problem.progress(problem.jobs[j], *given)
    done = np.minimum(np.cumsum(made, axis=1), 1.0)
    worth = [job.worth(row) for job, row in zip(problem.jobs, done, strict=True)]
    return Played(done, np.array(worth))


_NONE = -(1 << 40)  # workers, where the servers beside them do not fit


def placed(job: MalleableJob, workers: int, servers: int, free: FloatArray) -> IntArray | None:
    """(2, M) where a job goes within what is `free` (M, R); None: there is no room.

    One machine takes all where one can, the fullest of them, which costs no NIC. Otherwise machines
    are filled in the order of what they hold, the most first; the last one is the fullest that
    holds what remains. Where that does not fit, any split that does is taken.
    """
    inner = free[:, :NIC] * (1.0 + 1e-12) + 1e-12
    put = np.zeros((2, len(free)), np.int64)
    whole = (inner >= workers * np.array(job.worker) + servers * np.array(job.server)).all(axis=1)
    if whole.any():
        put[:, _fullest(whole, free)] = workers, servers
        return put
    ends = np.floor(free[:, NIC] / job.reserved + 1e-9).astype(np.int64)
    serves = np.minimum(fitting(job.server, inner), ends) if servers else np.zeros_like(ends)
    beside = np.arange(min(servers, serves.max()) + 1)
    left = (inner[:, None] - np.outer(beside, job.server)).reshape(-1, NIC)
    room = fitting(job.worker, left).reshape(len(free), -1)  # (M, P) workers beside servers
    if job.speed.needs_servers:
        room = np.where(beside <= serves[:, None], np.minimum(room, ends[:, None] - beside), _NONE)
    else:  # a ring has one end on a machine, whatever runs there
        room = np.where(ends[:, None] > 0, room, 0)
    if room[:, 0].sum() < workers or serves.sum() < servers:
        return None
    order = np.argsort(-room[:, 0], kind="stable")
    w, p = workers, servers  # that are not placed yet
    for m in order:
        last = (room[:, 0] >= w) & ~put.any(axis=0)
        if not p and last.any():  # the fullest machine that holds all that remains
            put[0, _fullest(last, free)] = w
            return put
        beside_here = min(p, int(serves[m]))
        put[:, m] = min(w, int(room[m, beside_here])), beside_here
        w, p = w - int(put[0, m]), p - beside_here
        if not w and not p:
            return put
    return _split(workers, servers, room, order)


def _split(workers: int, servers: int, room: IntArray, order: IntArray) -> IntArray | None:
    """Any split within `room` (M, P) for workers beside servers, machine by machine in `order`.

    By the most workers for every number of servers on the machines so far.
    """
    before = np.arange(servers + 1)[:, None] - np.arange(room.shape[1])
    most, chosen = np.where(np.arange(servers + 1) == 0, 0, _NONE), []
    for m in order:
        sums = np.where(before >= 0, most[before], _NONE) + room[m]
        chosen.append(sums.argmax(axis=1))
        most = np.maximum(sums.max(axis=1), _NONE)
        if most[servers] >= workers:
            break
    else:
        return None
    put = np.zeros((2, len(room)), np.int64)
    for m, beside in zip(order[len(chosen) - 1 :: -1], reversed(chosen), strict=True):
        p = int(beside[servers])
        put[:, m] = min(workers, int(room[m, p])), p
        workers, servers = workers - put[0, m], servers - p
    return put


def fitting(demand: tuple[float, ...], free: FloatArray) -> IntArray:
    """How many of one kind each machine holds, by what is free of it but its NIC."""
    one = np.array(demand)
    asked = one > 0.0
    held = np.floor(np.maximum(free[:, asked], 0.0) / one[asked] + 1e-9)
    found: IntArray = held.min(axis=1, initial=np.iinfo(np.int32).max).astype(np.int64)
    return found


def _fullest(among: BoolArray, free: FloatArray) -> int:
    """The machine with the fewest free GPUs, then cores."""
    chosen = np.flatnonzero(among)
    return int(chosen[np.lexsort((free[chosen, 1], free[chosen, 0]))[0]])
