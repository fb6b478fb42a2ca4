"""What planners of malleable jobs share: filling a slot, and going slot by slot."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from math import inf
from typing import ClassVar

import numpy as np

from agents.solver import Budget, DirectSolver, Result, Status
from envs.arrays import FloatArray, IntArray
from envs.cluster.allocation.placing import placed, servers_for
from envs.cluster.allocation.problem import (
    DONE,
    AllocationPlan,
    AllocationProblem,
    play,
)

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
