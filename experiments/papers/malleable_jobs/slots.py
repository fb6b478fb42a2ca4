"""The sizes that a malleable job can have, slots to be filled, and the usual rules that do so."""

from __future__ import annotations

import heapq
from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Gt, Le

from agents.solver import Budget, DirectSolver, Result, Status
from envs.arrays import FloatArray, IntArray
from envs.bounds import bounded
from experiments.papers.malleable_jobs.problem import (
    NIC,
    AllocationPlan,
    AllocationProblem,
    MalleableJob,
    fitting,
    placed,
    play,
)


@dataclass(frozen=True, eq=False)
class Sizes:
    """C numbers of workers and servers of a job, each as good as the machines allow when empty.

    No placement of a size makes more progress in a slot or takes less of all machines together, so
    a program over sizes relaxes every plan. On machines that are alike it is as good as one over
    placements: the mean of a fractional solution over all orders of the machines takes the same of
    each. Left out are sizes that fit nowhere, and those beaten by one that makes as much progress
    and takes no more of any resource.
    """

    size: IntArray  # (C, 2) workers and servers
    progress: FloatArray  # (C,) fraction of the job
    demand: FloatArray  # (C, R) of all machines together

    def __len__(self) -> int:
        return len(self.progress)

    @staticmethod
    def of(problem: AllocationProblem, job: MalleableJob) -> Sizes:
        """Those of a job on empty machines."""
        spare = np.unique(problem.capacity, axis=0) * (1.0 + 1e-9)
        needs = job.speed.needs_servers
        w, p = np.meshgrid(
            np.arange(job.least_workers, job.most_workers + 1),
            np.arange(1, job.most_servers + 1) if needs else np.zeros(1, np.int64),
        )
        w, p = w[p <= w], p[p <= w]  # more servers than workers help none
        inner = job.inner(w, p)
        together = (spare[:, None, :NIC] >= inner).all(axis=2).any(axis=0)
        ends = np.floor(problem.capacity[:, NIC] / job.reserved + 1e-9)
        room = fitting(job.worker, problem.capacity[:, :NIC])
        most = np.cumsum(np.sort(np.minimum(room, ends) if needs else room * (ends >= 1))[::-1])
        apart = (w <= most[-1]) & (problem.machines > 1)
        if needs:  # servers may go where no worker is; a ring goes where most of it fits
            apart &= w + p <= ends.sum()
        span = np.where(together, 1, 2 if needs else np.searchsorted(most, w) + 1)
        found = []
        for i in np.flatnonzero(together | apart):
            place = np.zeros((2, span[i]), np.int64)
            place[0, 1:] = 0 if needs else 1
            place[0, 0], place[1, -1] = w[i] - place[0].sum(), p[i]
            made = problem.progress(job, *place)
            if made > 0.0:
                taken = job.speed.ends(*place).sum() * job.reserved
                found.append((w[i], p[i], made, *inner[i], taken))
        table = np.array(found).reshape(-1, 4 + NIC)
        order = np.lexsort((*table[:, :2:-1].T, -table[:, 2]))
        table = table[sorted(unbeaten(order, table[:, 3:]))]
        return Sizes(table[:, :2].astype(np.int64), table[:, 2], table[:, 3:])


def unbeaten(order: Iterable[int], demand: FloatArray) -> list[int]:
    """Those, the fastest first, of which none before takes as little of everything (N, ...)."""
    kept: list[int] = []
    for i in order:
        if not (demand[kept] <= demand[i]).all(axis=1).any():
            kept.append(int(i))
    return kept


class Slot:
    """One slot that is being filled: the jobs there, what is left, and what each job has."""

    def __init__(self, problem: AllocationProblem, now: int, done: FloatArray) -> None:
        self.problem, self.now = problem, now
        self.done = done  # (J,) fractions before the slot
        self.left = problem.capacity.copy()  # (M, R)
        self.given = np.zeros(problem.shape[1:], np.int64)  # (J, 2, M) workers and servers
        self.made = np.zeros(len(problem.jobs))  # fraction that each job makes in the slot
        self.active = problem.active(now, done)

    def workers(self, j: int) -> int:
        """That job j has."""
        return int(self.given[j, 0].sum())

    def _without(self, j: int) -> FloatArray:
        """What would be left without job j."""
        has = self.given[j]
        return self.left + self.problem.jobs[j].demand(*has) if has[0].any() else self.left

    def find(self, j: int, workers: int, servers: int | None = None) -> tuple[IntArray, float]:
        """A place (2, M) instead of what job j has, and the fraction it makes there.

        The fraction is 0 where there is no place. Servers are `servers_for` the workers unless
        given.
        """
        job = self.problem.jobs[j]
        servers = job.servers_for(workers) if servers is None else servers
        found = placed(job, workers, servers, self._without(j))
        if found is None:
            return self.given[j], 0.0
        return found, self.problem.progress(job, *found)

    def put(self, j: int, place: IntArray, made: float) -> None:
        """Give job j what `find` has found instead of what it has."""
        self.left = self._without(j) - self.problem.jobs[j].demand(*place)
        self.given[j], self.made[j] = place, made

    def give(self, j: int, workers: int, servers: int | None = None) -> bool:
        """`find` and `put`; False, and nothing changed, where there is no place."""
        found, made = self.find(j, workers, servers)
        if made > 0.0:
            self.put(j, found, made)
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

    def _solve(self, problem: AllocationProblem, budget: Budget) -> Result[AllocationPlan]:
        return outcome(problem, filled(problem, self.fill))


def filled(problem: AllocationProblem, fill: Callable[[Slot], None]) -> AllocationPlan:
    """A plan whose slots with active jobs `fill` has filled, the first first."""
    plan, done = AllocationPlan.empty(problem), np.zeros(len(problem.jobs))
    for now in range(problem.slots):
        slot = Slot(problem, now, done)
        if slot.active:
            fill(slot)
            plan.given[now] = slot.given
            done = done + slot.made
    return plan


def outcome(
    problem: AllocationProblem, plan: AllocationPlan, status: Status = "feasible",
    bound: float = inf, **figures: float,
) -> Result[AllocationPlan]:  # fmt: skip
    """A plan with what it is worth when it is played."""
    return Result(plan, status, play(problem, plan).utility, bound=bound, figures=figures)


@bounded
@dataclass(frozen=True)
class Fifo(SlotBySlot):
    """First come, first served: every job has one size, and none passes another.

    The size is a share of its most workers, or the largest below that empty machines hold.
    """

    share: Annotated[float, Gt(0.0), Le(1.0)] = 1.0

    def fill(self, slot: Slot) -> None:
        """In the order of arrival, until one does not fit."""
        problem = slot.problem
        for j in sorted(slot.active, key=lambda j: problem.jobs[j].arrival):
            job = problem.jobs[j]
            asked = max(job.least_workers, int(np.ceil(self.share * job.most_workers)))
            for size in range(asked, job.least_workers - 1, -1):
                if placed(job, size, job.servers_for(size), problem.capacity) is not None:
                    if slot.give(j, size):
                        break
                    return


class _Growing(SlotBySlot):
    """Worker after worker for the job that scores highest; no score rises in a slot."""

    @abstractmethod
    def score(self, slot: Slot, j: int) -> float:
        """Of one worker more for job j; 0 or less: none."""

    def fill(self, slot: Slot) -> None:
        """Until no worker scores or fits; a job that found no place gets no more."""
        queue = [(-self.score(slot, j), j) for j in slot.active]
        heapq.heapify(queue)
        while queue:
            before, j = heapq.heappop(queue)
            job, workers = slot.problem.jobs[j], _next(slot, j)
            left = slot.left[:, :NIC].sum(axis=0)
            if workers > job.most_workers or np.any(left < np.multiply(job.worker, 1.0 - 1e-9)):
                continue
            score = self.score(slot, j)
            if -score > before:
                heapq.heappush(queue, (-score, j))
            elif score > 0.0 and slot.give(j, workers):
                heapq.heappush(queue, (before, j))


def _next(slot: Slot, j: int) -> int:
    return max(slot.workers(j) + 1, slot.problem.jobs[j].least_workers)


def _shares(slot: Slot, j: int, workers: int) -> FloatArray:
    """(R,) of all machines that so many workers of job j and their servers take, on one machine."""
    job = slot.problem.jobs[j]
    demand = job.demand(np.array([workers]), np.array([job.servers_for(workers)]))
    found: FloatArray = demand[0] / slot.problem.total
    return found


class EqualShare(_Growing):
    """The next worker goes to the job that has the fewest."""

    def score(self, slot: Slot, j: int) -> float:
        return 1.0 / (1.0 + float(slot.workers(j)))


class DominantResourceFairness(_Growing):
    """The next worker goes to the job whose dominant share is the least.

    Source:
        Ghodsi, Zaharia, Hindman, Konwinski, Shenker, Stoica, "Dominant resource fairness", NSDI
        2011: progressive filling.
    """

    def score(self, slot: Slot, j: int) -> float:
        return 1.0 / (1.0 + float(_shares(slot, j, slot.workers(j)).max()))


class Tetris(_Growing):
    """The next worker goes to the job that it fits best, and that is nearest to its end.

    Alignment is the product of a worker's demand, as a direction, with what is left; it weighs as
    much as the inverse of the slots that the job would still need at its full size. The weights are
    ours.

    Source:
        Grandl, Ananthanarayanan, Kandula, Rao, Akella, "Multi-resource packing for cluster
        schedulers", SIGCOMM 2014.
    """

    def score(self, slot: Slot, j: int) -> float:
        problem, job, task = slot.problem, slot.problem.jobs[j], _shares(slot, j, 1)
        most = np.array([job.most_workers]), np.array([job.servers_for(job.most_workers)])
        needed = (1.0 - float(slot.done[j])) / problem.progress(job, *most)
        left = slot.left.sum(axis=0) / problem.total
        return float(task @ left / np.linalg.norm(task)) + 1.0 / (1.0 + needed)


class Optimus(_Growing):
    """The next worker goes where it takes the most time off for its dominant share.

    Every job gets its first worker before any gets a second.

    Source:
        Peng, Bao, Chen, Wu, Guo, "Optimus: an efficient dynamic resource scheduler for deep
        learning clusters", EuroSys 2018, for its marginal gain; servers come with workers here.
    """

    def score(self, slot: Slot, j: int) -> float:
        if not slot.workers(j):
            return 1e12 / (1.0 + slot.problem.jobs[j].arrival)
        _, made = slot.find(j, _next(slot, j))
        if made <= 0.0:
            return 0.0
        saved = (1.0 - float(slot.done[j])) * (1.0 / float(slot.made[j]) - 1.0 / made)
        return saved / float(_shares(slot, j, 1).max())
