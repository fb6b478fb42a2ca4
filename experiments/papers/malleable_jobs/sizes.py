"""The sizes that a malleable job can have, each as good as the machines allow when empty."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import ClassVar

import numpy as np

from agents.solver import Budget, DirectSolver, Result, Status
from envs.arrays import FloatArray, IntArray
from experiments.papers.malleable_jobs.placing import fitting, placed, servers_for
from experiments.papers.malleable_jobs.problem import (
    DONE,
    NIC,
    AllocationPlan,
    AllocationProblem,
    MalleableJob,
    play,
)

_SLACK = 1.0 + 1e-9


@dataclass(frozen=True, eq=False)
class Sizes:
    """C numbers of workers and servers of a job.

    No placement of a size makes more progress in a slot or takes less of all machines together, so
    a program over sizes relaxes every plan. On machines that are alike it is as good as one over
    placements: the mean of a fractional solution over all orders of the machines takes the same of
    each. Left out are sizes that fit nowhere, and those beaten by one that makes as much progress
    and takes no more of any resource.
    """

    workers: IntArray  # (C,)
    servers: IntArray  # (C,)
    progress: FloatArray  # (C,) fraction of the job
    demand: FloatArray  # (C, R) of all machines together

    def __len__(self) -> int:
        return len(self.progress)

    @staticmethod
    def of(problem: AllocationProblem, job: MalleableJob) -> Sizes:
        """Those of a job on empty machines."""
        spare = np.unique(problem.capacity, axis=0) * _SLACK
        needs = job.speed.needs_servers
        w, p = np.meshgrid(
            np.arange(job.least_workers, job.most_workers + 1),
            np.arange(1, job.most_servers + 1) if needs else np.zeros(1, np.int64),
        )
        w, p = w[p <= w], p[p <= w]  # more servers than workers help none
        inner = np.outer(w, job.worker) + np.outer(p, job.server)
        together = (spare[:, None, :NIC] >= inner).all(axis=2).any(axis=0)
        ends = np.floor(problem.capacity[:, NIC] / job.reserved + 1e-9)
        room = fitting(np.asarray(job.worker), problem.capacity[:, :NIC])
        most = np.cumsum(np.sort(np.minimum(room, ends) if needs else room * (ends >= 1))[::-1])
        apart = (w <= most[-1]) & (problem.machines > 1)
        if needs:  # servers may go where no worker is; a ring goes where most of it fits
            apart &= w + p <= ends.sum()
        span = np.where(together, 1, 2 if needs else np.searchsorted(most, w) + 1)
        found = []
        for i in np.flatnonzero(together | apart):
            on, serving = np.ones(span[i], np.int64), np.zeros(span[i], np.int64)
            on[0] = w[i] if needs else w[i] - span[i] + 1
            on[1:] = 0 if needs else 1
            serving[-1] = p[i]
            made = problem.progress(job, on, serving)
            if made > 0.0:
                taken = job.speed.ends(on, serving).sum() * job.reserved
                found.append((w[i], p[i], made, *inner[i], taken))
        table = np.array(found).reshape(-1, 4 + NIC)
        kept = table[_unbeaten(table[:, 2], table[:, 3:])]
        whole = kept[:, :2].astype(np.int64)
        return Sizes(whole[:, 0], whole[:, 1], kept[:, 2], kept[:, 3:])


def _unbeaten(progress: FloatArray, demand: FloatArray) -> IntArray:
    """Those of C for which none is no worse in anything; of equals, the first."""
    kept: list[int] = []
    for i in np.lexsort((*demand.T[::-1], -progress)):
        if not (demand[kept] <= demand[i]).all(axis=1).any():
            kept.append(int(i))
    return np.sort(np.array(kept, np.int64))


Placement = tuple[IntArray, IntArray]  # (M,) workers and servers


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
        found = placed(job, workers, servers, left)
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


class AllocationSolver(DirectSolver[AllocationProblem, AllocationPlan]):
    """Gives workers and parameter servers on machines to malleable jobs, slot by slot.

    Those that are not `online` know all jobs from the start.
    """

    solves = (AllocationProblem,)
    online: ClassVar[bool] = True  # decides a slot by the jobs that have arrived until then


class SlotBySlot(AllocationSolver):
    """A planner that fills one slot after another, and knows of no job before it arrives."""

    @abstractmethod
    def fill(self, slot: Slot) -> None:
        """Give workers to active jobs."""

    def begin(self, problem: AllocationProblem, seed: int) -> None:
        """Before the first slot, for planners with a memory; the jobs are not to be looked at."""

    def _solve(self, problem: AllocationProblem, budget: Budget) -> Result[AllocationPlan]:
        self.begin(problem, budget.seed or 0)
        plan = AllocationPlan.empty(problem)
        done = np.zeros(len(problem.jobs))
        for now in range(problem.slots):
            slot = Slot(problem, now, done)
            if slot.active:
                self.fill(slot)
                plan.workers[now], plan.servers[now] = slot.workers, slot.servers
                done = done + slot.made
        return outcome(problem, plan)


def outcome(
    problem: AllocationProblem,
    plan: AllocationPlan,
    status: Status = "feasible",
    bound: float = inf,
    **figures: float,
) -> Result[AllocationPlan]:
    """A plan with what it is worth when it is played."""
    return Result(plan, status, play(problem, plan).utility, bound=bound, figures=figures)
