"""What planners of malleable jobs share: putting workers on machines, and going slot by slot."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from math import inf

import numpy as np
from numpy.typing import NDArray

from agents.base import AllocationResult, Status
from envs.cluster.allocation.problem import (
    DONE,
    NIC,
    AllocationPlan,
    AllocationProblem,
    MalleableJob,
    play,
)
from envs.cluster.allocation.speeds import FloatArray, IntArray

Placement = tuple[IntArray, IntArray]  # (M,) workers and servers
_SLACK = 1e-9  # of a task's demand, for what subtractions leave


def servers_for(job: MalleableJob, workers: int) -> int:
    """One parameter server for each worker, as far as the job may have them."""
    return min(job.most_servers, workers)


def place(job: MalleableJob, workers: int, servers: int, left: FloatArray) -> Placement | None:
    """Where so many workers and servers go, with what is `left` (M, R) of the machines; or nowhere.

    On one machine where they fit: the one with the fewest GPUs left. Else on few machines: those
    with room for the most workers first, the rest where it just fits, servers beside workers
    first. None says that this found no place, and for workers alone that there is none.
    """
    worker, server = np.asarray(job.worker), np.asarray(job.server)
    machines = len(left)
    here, there = np.zeros(machines, np.int64), np.zeros(machines, np.int64)
    whole = workers * worker + servers * server
    fits = (left[:, :NIC] >= whole * (1.0 - _SLACK)).all(axis=1)
    if fits.any():
        chosen = int(np.argmin(np.where(fits, left[:, 0], np.inf)))
        here[chosen], there[chosen] = workers, servers
        return here, there
    if machines == 1 or workers + servers == 1:
        return None
    ends = left[:, NIC] / job.reserved + _SLACK
    each = bool(job.speed.ends(np.array([2, 1]), np.array([0, 0]))[0] == 2)  # task has its end
    if not _spread(here, _room(left[:, :NIC], worker, ends, each), workers):
        return None
    if servers:
        rest = left[:, :NIC] - np.outer(here, worker)
        room = _room(rest, server, ends - here if each else ends, each)
        if not _spread(there, room, servers, first=here > 0):
            return None
    return here, there


def _room(left: FloatArray, demand: FloatArray, ends: FloatArray, each: bool) -> IntArray:
    """(M,) how many tasks fit, each with an end of the NIC or all with one."""
    asked = demand > 0.0
    room = (left[:, asked] / demand[asked] + _SLACK).min(axis=1, initial=1e6)
    most: IntArray = np.floor(np.minimum(room, ends) if each else room).astype(np.int64)
    return np.where(ends >= 1.0, np.maximum(most, 0), 0)


def _spread(
    taken: IntArray, room: IntArray, tasks: int, first: NDArray[np.bool_] | None = None
) -> bool:
    """Put tasks on machines, by room; False where there is too little."""
    if room.sum() < tasks:
        return False
    order = np.argsort(-room, kind="stable")
    if first is not None:
        order = order[np.argsort(~first[order], kind="stable")]
    for machine in order:
        if room[machine] >= tasks:  # the last: where it just fits
            last = np.where((room >= tasks) & (taken == 0), room, np.iinfo(np.int64).max)
            taken[machine if first is not None else int(np.argmin(last))] += tasks
            return True
        taken[machine] = room[machine]
        tasks -= int(room[machine])
    return tasks == 0


class Slot:
    """One slot that is being filled: who is there, what is left, and what each job has."""

    def __init__(self, problem: AllocationProblem, now: int, done: FloatArray) -> None:
        self.problem = problem
        self.now = now
        self.done = done  # (J,) fractions before the slot
        self.left = problem.capacity.copy()  # (M, R)
        shape = (len(problem.jobs), problem.machines)
        self.workers = np.zeros(shape, np.int64)
        self.servers = np.zeros(shape, np.int64)
        self.made = np.zeros(len(problem.jobs))  # fraction that each job makes in the slot
        self.active: Sequence[int] = [
            j for j, window in enumerate(problem.windows) if now in window and done[j] < DONE
        ]

    def find(self, j: int, workers: int, servers: int | None = None) -> tuple[Placement, float]:
        """A place instead of what job j has, and the fraction it makes there.

        The fraction is 0 where there is no place. Servers are `servers_for` the workers unless
        given.
        """
        job = self.problem.jobs[j]
        servers = servers_for(job, workers) if servers is None else servers
        left = self.left
        if self.workers[j].any():
            left = left + job.demand(self.workers[j], self.servers[j])
        found = place(job, workers, servers, left)
        if found is None:
            return (self.workers[j], self.servers[j]), 0.0
        return found, self.problem.progress(job, *found)

    def put(self, j: int, placement: Placement) -> None:
        """Give job j this instead of what it has."""
        job = self.problem.jobs[j]
        if self.workers[j].any():
            self.left += job.demand(self.workers[j], self.servers[j])
        self.workers[j], self.servers[j] = placement
        self.left -= job.demand(*placement)
        self.made[j] = self.problem.progress(job, *placement)

    def give(self, j: int, workers: int, servers: int | None = None) -> bool:
        """`find` and `put`; False, and nothing changed, where there is no place."""
        found, made = self.find(j, workers, servers)
        if made > 0.0:
            self.put(j, found)
        return made > 0.0


class SlotBySlot(ABC):
    """A planner that fills one slot after another, and knows of no job before it arrives."""

    online = True

    @abstractmethod
    def fill(self, slot: Slot) -> None:
        """Give workers to active jobs."""

    def begin(self, problem: AllocationProblem, seed: int) -> None:
        """Before the first slot, for planners with a memory; the jobs are not to be looked at."""

    def give(self, problem: AllocationProblem, seed: int = 0) -> AllocationResult:
        """Slot by slot."""
        start = time.perf_counter()
        self.begin(problem, seed)
        plan = AllocationPlan.empty(problem)
        done = np.zeros(len(problem.jobs))
        for now in range(problem.slots):
            slot = Slot(problem, now, done)
            if slot.active:
                self.fill(slot)
                plan.workers[now], plan.servers[now] = slot.workers, slot.servers
                done = done + slot.made
        return outcome(problem, plan, start)


def outcome(
    problem: AllocationProblem,
    plan: AllocationPlan,
    start: float,
    status: Status = "feasible",
    upper_bound: float = inf,
    figures: Mapping[str, float] | None = None,
) -> AllocationResult:
    """A plan with what it is worth when it is played; `start` by `time.perf_counter`."""
    utility = play(problem, plan).utility
    seconds = time.perf_counter() - start
    return AllocationResult(plan, status, utility, seconds, upper_bound, figures=figures or {})
