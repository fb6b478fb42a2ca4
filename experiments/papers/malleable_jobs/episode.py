"""An episode of allocation: a slot is filled decision by decision, and then passes."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from envs.arrays import FloatArray, IntArray
from experiments.papers.malleable_jobs.placing import placed, servers_for
from experiments.papers.malleable_jobs.problem import (
    DONE,
    NIC,
    RESOURCES,
    AllocationPlan,
    AllocationProblem,
    MalleableJob,
)

CHOSEN, END = 0, 1  # columns of a candidate: the rule takes it; it ends the slot
CANDIDATE_WIDTH, CLUSTER_WIDTH = 23, 9


class Level(NamedTuple):
    """A size of a job, as it is on an empty cluster."""

    workers: int
    servers: int
    pace: float  # progress in a slot
    demand: FloatArray  # (R,) of all machines together
    share: float  # dominant, of the cluster


_NONE = Level(0, 0, 0.0, np.zeros(len(RESOURCES)), 0.0)


class AllocationEpisode:
    """Jobs grow by *units*, from one of their levels to the next, and are placed anew as they do.

    Levels are `least_workers`, twice, four times as many, ... and `most_workers`, of these only
    what an empty cluster holds, each with a server for every worker, every other, ..., or one:
    with which it is fastest for its dominant share there.

    Args:
        problem: the jobs; only those that have arrived are looked at.
        queue: (J,) whose they are.
    """

    def __init__(self, problem: AllocationProblem, queue: IntArray) -> None:
        jobs = len(problem.jobs)
        self.problem, self.queue = problem, queue
        self.plan = AllocationPlan.empty(problem)
        self.whole = np.maximum(problem.capacity.sum(axis=0), 1e-12)
        self.levels = levels_of(problem)
        self.unit = sum(job.utility.at(1) for job in problem.jobs) / max(jobs, 1)
        self.done = np.zeros(jobs)
        self.hopeless = np.array([not levels for levels in self.levels], np.bool_)
        # of the next units: the rule's score, whether a job can take it, features, what it takes
        self.score, self.open = np.zeros(jobs), np.zeros(jobs, np.bool_)
        self.rows = np.zeros((jobs, CANDIDATE_WIDTH), np.float32)
        self.takes = np.zeros((jobs, len(RESOURCES)))
        self._windows = np.array([(w.start, w.stop) for w in problem.windows]).reshape(-1, 2).T
        self.free: FloatArray  # (M, R)
        self.spare: FloatArray  # (R,)
        self.slot = -1
        self._next()

    @property
    def over(self) -> bool:
        """Whether all slots have passed."""
        return self.slot >= self.problem.slots

    @property
    def finished(self) -> int:
        """Jobs that are done."""
        return int((self.done >= DONE).sum())

    def candidates(self, queue: int, most: int) -> IntArray:
        """Jobs of a queue that can take a unit, the best first by the rule; at most so many."""
        jobs = np.flatnonzero(self.open & (self.queue == queue))
        best: IntArray = jobs[np.argsort(-self.score[jobs], kind="stable")][:most]
        return best

    def grow(self, j: int) -> bool:
        """Give a job its next unit; False: there is no room, and none in this slot."""
        job, level = self.problem.jobs[j], self.level.get(j, -1) + 1
        workers, servers, *_ = self.levels[j][level]
        free = self.free + job.demand(*self.at[j]) if j in self.at else self.free
        found = placed(job, workers, servers, free)
        self.open[j] = False
        if found is None:
            return False
        self.at[j], self.level[j], self.free = found, level, free - job.demand(*found)
        self.spare = self.free.sum(axis=0)
        self._offer(j)
        self.open &= (self.takes[:, :NIC] <= self.spare[:NIC] + 1e-9).all(axis=1)
        return True

    def end(self) -> float:
        """Let the slot pass, and those after it in which there is nothing to decide; the worth."""
        problem, worth = self.problem, 0.0
        for j, (workers, servers) in self.at.items():
            job, before = problem.jobs[j], float(self.done[j])
            self.plan.workers[self.slot, j], self.plan.servers[self.slot, j] = workers, servers
            after = self.done[j] = min(before + problem.progress(job, workers, servers), 1.0)
            if job.utility.partial:
                worth += job.utility.of(after) - job.utility.of(before)
            elif after >= DONE:
                worth += job.utility.at(self.slot - job.arrival + 1)
        self._next()
        return worth

    def _next(self) -> None:
        """The next slot in which there is a job to grow, or the end."""
        self.at: dict[int, tuple[IntArray, IntArray]] = {}
        self.level: dict[int, int] = {}
        self.free, self.spare = self.problem.capacity.copy(), self.whole
        self.open[:] = False
        while not self.open.any() and not self.over:
            self.slot += 1
            first, stop = self._windows
            there = (first <= self.slot) & (self.slot < stop) & (self.done < DONE) & ~self.hopeless
            for j in np.flatnonzero(there):
                self._offer(int(j))
        live = [(self.levels[j][0], 1.0 - self.done[j]) for j in np.flatnonzero(self.open)]
        asked = sum(level.share for level, _ in live)
        work = sum(level.share * left / max(level.pace, 1e-9) for level, left in live)
        self._crowd = [math.log1p(len(live)), math.log1p(asked), math.log1p(work)]

    def _offer(self, j: int) -> None:
        """Open a job for its next unit, if it has one and can still come to be worth something."""
        job, levels, at = self.problem.jobs[j], self.levels[j], self.level.get(j, -1)
        if at + 1 >= len(levels):
            return
        workers, _, pace, held, share = levels[at] if at >= 0 else _NONE
        count, _, faster, demand, larger = levels[at + 1]
        left, rest = float(1.0 - self.done[j]), self.problem.windows[j].stop - self.slot
        most, soonest = self._reached(job, left, levels[-1].pace, rest)
        if most <= 0.0:
            self.hopeless[j] = True
            return
        worth, slots = self._reached(job, left, pace, rest)
        more, sooner = self._reached(job, left, faster, rest)
        lost = most - self._reached(job, left, levels[-1].pace, rest, 1)[0]
        adds = larger - share + 1e-9
        if job.utility.partial:
            low, high = (job.utility.of(min(1.0 - left + p, 1.0)) for p in (pace, faster))
            score = (high - low) / adds
        else:
            score = most * (min(faster, left) - min(pace, left)) / left / adds
        unit, log = self.unit, math.log1p
        self.rows[j] = (
            0.0, 0.0, _log(score / unit), left, log(workers), log(count), share, larger,
            log(slots), log(sooner), log(soonest), log(rest), sooner / rest,
            worth / unit, more / unit, most / unit,
            _log(more / (larger * sooner) / unit), _log((more - worth) / adds / unit),
            faster * levels[0].workers / (count * levels[0].pace), log(self.slot - job.arrival),
            log(adds * sooner), float(job.utility.partial), lost / unit,
        )  # fmt: skip
        self.score[j], self.takes[j], self.open[j] = score, demand - held, True

    def _reached(
        self, job: MalleableJob, left: float, pace: float, rest: int, waits: int = 0
    ) -> tuple[float, float]:
        """What a job adds to its worth at a pace, after waiting; and for how many slots it runs."""
        if pace <= 0.0:
            return 0.0, float(rest)
        slots, rest = min(left / pace, float(rest)), rest - waits
        if job.utility.partial:
            done = 1.0 - left
            return job.utility.of(min(done + pace * rest, 1.0)) - job.utility.of(done), slots
        ends = math.ceil((left - (1.0 - DONE)) / pace)
        worth = job.utility.at(self.slot + waits - job.arrival + ends) if ends <= rest else 0.0
        return worth, max(slots, 1.0)

    def cluster(self) -> list[float]:
        """What is free, how far the time is, and how much the jobs that are here would take."""
        gone = min(self.slot / self.problem.slots, 1.0)
        return [1.0, *(self.spare / self.whole).tolist(), gone, *self._crowd]


def _log(value: float) -> float:
    return math.log10(max(value, 1e-6))


@lru_cache(maxsize=4)
def levels_of(problem: AllocationProblem) -> list[list[Level]]:
    """Those of each job, for alike episodes once."""
    whole = np.maximum(problem.capacity.sum(axis=0), 1e-12)
    return [_levels(problem, job, whole) for job in problem.jobs]


def _levels(problem: AllocationProblem, job: MalleableJob, whole: FloatArray) -> list[Level]:
    counts, found = [job.least_workers], list[Level]()
    while counts[-1] < job.most_workers:
        counts.append(min(2 * counts[-1], job.most_workers))
    for count in counts:
        servers, best = servers_for(job, count), None
        while True:
            at = placed(job, count, servers, problem.capacity)
            if at is not None:
                demand = job.demand(*at).sum(axis=0)
                share = max(float((demand / whole).max()), 1e-9)
                pace = problem.progress(job, *at)
                if best is None or pace / share > best.pace / best.share:
                    best = Level(count, servers, pace, demand, share)
            if servers <= 1:
                break
            servers //= 2
        if best is None:
            break
        found.append(best)
    return found
