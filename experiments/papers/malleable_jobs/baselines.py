"""The usual ways to give workers to malleable jobs, all of them online."""

from __future__ import annotations

import heapq
from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Gt, Le

from agents.solver import Budget, Result
from envs.arrays import FloatArray
from envs.bounds import bounded
from experiments.papers.malleable_jobs.placing import placed, servers_for
from experiments.papers.malleable_jobs.problem import NIC, AllocationPlan, AllocationProblem
from experiments.papers.malleable_jobs.relaxation import Pricing, levels_of
from experiments.papers.malleable_jobs.sizes import (
    AllocationSolver,
    Sizes,
    Slot,
    SlotBySlot,
    outcome,
)


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
            sizes = range(asked, job.least_workers - 1, -1)
            held = (w for w in sizes if placed(job, w, servers_for(job, w), problem.capacity))
            size = next(held, 0)
            if size and not slot.give(j, size):
                break


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
    return max(int(slot.workers[j].sum()) + 1, slot.problem.jobs[j].least_workers)


def _dominant(slot: Slot, j: int, workers: int) -> float:
    """The largest share of a resource that so many workers and their servers take."""
    job, total = slot.problem.jobs[j], slot.problem.capacity.sum(axis=0)
    demand = job.demand(np.array([workers]), np.array([servers_for(job, workers)]))[0]
    return float((demand / np.maximum(total, 1e-12)).max())


class EqualShare(_Growing):
    """The next worker goes to the job that has the fewest."""

    def score(self, slot: Slot, j: int) -> float:
        return 1.0 / (1.0 + float(slot.workers[j].sum()))


class DominantResourceFairness(_Growing):
    """The next worker goes to the job whose dominant share is the least.

    Source:
        Ghodsi, Zaharia, Hindman, Konwinski, Shenker, Stoica, "Dominant resource fairness", NSDI
        2011: progressive filling.
    """

    def score(self, slot: Slot, j: int) -> float:
        return 1.0 / (1.0 + _dominant(slot, j, int(slot.workers[j].sum())))


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
        job, total = slot.problem.jobs[j], np.maximum(slot.problem.capacity.sum(axis=0), 1e-12)
        most = np.array([job.most_workers]), np.array([servers_for(job, job.most_workers)])
        needed = (1.0 - float(slot.done[j])) / slot.problem.progress(job, *most)
        task = job.demand(np.array([1]), np.array([servers_for(job, 1)]))[0] / total
        left = slot.left.sum(axis=0) / total
        return float(task @ left / np.linalg.norm(task)) + 1.0 / (1.0 + needed)


class Optimus(_Growing):
    """The next worker goes where it takes the most time off for its dominant share.

    Every job gets its first worker before any gets a second.

    Source:
        Peng, Bao, Chen, Wu, Guo, "Optimus: an efficient dynamic resource scheduler for deep
        learning clusters", EuroSys 2018, for its marginal gain; servers come with workers here.
    """

    def score(self, slot: Slot, j: int) -> float:
        if not slot.workers[j].any():
            return 1e12 / (1.0 + slot.problem.jobs[j].arrival)
        _, made = slot.find(j, _next(slot, j))
        if made <= 0.0:
            return 0.0
        saved = (1.0 - float(slot.done[j])) * (1.0 / float(slot.made[j]) - 1.0 / made)
        return saved / _dominant(slot, j, 1)


class PrimalDual(AllocationSolver):
    """Every job, as it arrives, gets its best plan at the prices of that moment, or none.

    A resource of a slot costs `lowest (highest / lowest)^used`, of the share of it that is used: up
    to the most that any job pays for it, from the least. The planner knows these two, and of a job
    nothing before it arrives. Levels are those of the relaxation, rounded up; what finds no place
    on machines is left out.

    Guarantees:
        None here. OASiS proves twice the logarithm of highest to lowest for jobs that are small
        beside the machines and divide; these are not small.

    Source:
        Bao, Peng, Wu, Li, "Online job scheduling in distributed machine learning clusters", INFOCOM
        2018; reconstructed, with prices of all machines together.
    """

    def _solve(self, problem: AllocationProblem, budget: Budget) -> Result[AllocationPlan]:
        levels = tuple(levels_of(problem, j) for j in range(len(problem.jobs)))
        pricing = Pricing(problem, levels)
        total = np.maximum(problem.capacity.sum(axis=0), 1e-12)
        low, high = _prices(problem, levels, total)
        left = np.tile(problem.capacity, (problem.slots, 1, 1))
        plan = AllocationPlan.empty(problem)
        for j in sorted(range(len(problem.jobs)), key=lambda j: problem.jobs[j].arrival):
            job = problem.jobs[j]
            prices = low * (high / low) ** (1.0 - left.sum(axis=1) / total)
            made, paid, put, some = np.zeros(problem.slots), 0.0, [], levels[j]
            for t, number in pricing.alone(j, prices):
                size = int(some.workers[number]), int(some.servers[number])
                placement = placed(job, *size, left[t])
                if placement is not None:
                    made[t] = problem.progress(job, *placement)
                    demand = job.demand(*placement)
                    paid += float(prices[t] @ demand.sum(axis=0))
                    put.append((t, placement, demand))
            if job.worth(np.minimum(np.cumsum(made), 1.0)) > paid:
                for t, (workers, servers), demand in put:
                    plan.workers[t, j], plan.servers[t, j] = workers, servers
                    left[t] -= demand
        return outcome(problem, plan)


def _prices(
    problem: AllocationProblem, levels: tuple[Sizes, ...], total: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """(R,) the least and the most that a job is worth for a unit of each resource it takes."""
    low, high = np.full(len(total), np.inf), np.full(len(total), 0.0)
    for job, some in zip(problem.jobs, levels, strict=True):
        best = job.utility.of(1.0) if job.utility.partial else job.utility.at(1)
        taken = some.demand > 0.0
        unit = best * some.progress[:, None] / np.where(taken, some.demand, 1.0)
        low = np.minimum(low, np.where(taken, unit, np.inf).min(axis=0, initial=np.inf))
        high = np.maximum(high, np.where(taken, unit, 0.0).max(axis=0, initial=0.0))
    spent = (low < np.inf) & (high > 0.0)
    low = np.where(spent, low, 1.0) / (4.0 * len(total))
    return low, np.where(spent, np.maximum(high, low * np.e), low * np.e)


BASELINES = {
    "fifo": Fifo,
    "equal_share": EqualShare,
    "drf": DominantResourceFairness,
    "tetris": Tetris,
    "optimus": Optimus,
    "primal_dual": PrimalDual,
}
