"""The best plan for few malleable jobs on few machines, with proof."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np

from agents.linear_program import LinearProgram, best_values
from agents.solver import Budget, Result, Status
from envs.arrays import FloatArray, IntArray
from envs.bounds import Count, Positive, bounded
from envs.errors import InputError
from experiments.papers.malleable_jobs.problem import (
    DONE,
    NIC,
    AllocationPlan,
    AllocationProblem,
    play,
)
from experiments.papers.malleable_jobs.slots import AllocationSolver, outcome, unbeaten

CLOSE = 1e-6  # of the value: bound and value that meet this closely are one
_TOLERANCE = 1e-9
_TANGENTS = np.linspace(0.0, 1.0, 7) ** 2
_STEP = 1e-6  # of a fraction, for the slope of a utility


class Configuration(NamedTuple):
    """Workers and servers (2, M) on machines that no other is better than."""

    place: IntArray
    demand: FloatArray  # (M, R)
    progress: float  # in a slot


def configurations(problem: AllocationProblem, j: int, most: int = 20_000) -> list[Configuration]:
    """All ways to run job j in a slot but those that take no less, and are no faster, than another.

    Raises:
        InputError: there are more than `most` ways to look at.
    """
    job = problem.jobs[j]
    pairs = np.array([*product(range(job.most_workers + 1), range(job.most_servers + 1))])
    inner = job.inner(*pairs.T)
    fits = [pairs[(inner <= held * (1.0 + 1e-9)).all(axis=1)] for held in problem.capacity[:, :NIC]]
    if np.prod([float(len(some)) for some in fits]) > most:
        raise InputError(f"has more than {most} configurations: too many to prove", record=job.name)
    found = []
    for way in product(*fits):
        place = np.array(way).T
        w, p = place.sum(axis=1)
        if not job.least_workers <= w <= job.most_workers or p > min(job.most_servers, w):
            continue
        demand, progress = job.demand(*place), problem.progress(job, *place)
        if progress > 0.0 and np.all(demand <= problem.capacity * (1.0 + 1e-9)):
            found.append(Configuration(place, demand, progress))
    order = sorted(range(len(found)), key=lambda i: (-found[i].progress, found[i].demand.sum()))
    demands = np.array([one.demand.ravel() for one in found])
    return [found[i] for i in unbeaten(order, demands)]


@bounded
@dataclass(frozen=True)
class ExactAllocation(AllocationSolver):
    """The optimum by a time-expanded integer program over configurations, for small problems.

    A binary for each job, slot and configuration, and one for each slot in which a job can end. The
    worth of partial work is bounded from above by tangents, to which those at the fractions that
    are found are added until the bound meets the plan.

    Guarantees:
        The plan is worth the optimum where the status is "optimal": within a millionth of a bound
        that HiGHS proves. Elsewhere the bound is right still.

    Source:
        The tangents are outer approximation (Duran, Grossmann, Mathematical Programming 36, 1986).
    """

    time_limit: Positive = 60.0  # seconds
    most: Count = 20_000  # configurations of a job

    online = False

    def _solve(self, problem: AllocationProblem, budget: Budget) -> Result[AllocationPlan]:
        start, limit = time.perf_counter(), min(self.time_limit, budget.seconds)
        program = _Program(problem, self.most)
        best, value, bound, rounds = AllocationPlan.empty(problem), 0.0, np.inf, 0
        while (left := limit - (time.perf_counter() - start)) > 0.0:
            rounds += 1
            plan, proved = program.solved(left, budget.seed or 0)
            bound = min(bound, proved)
            if plan is None:
                break
            played = play(problem, plan)
            if played.utility > value or rounds == 1:
                best, value = plan, played.utility
            if bound - value <= CLOSE * max(value, 1.0) or not program.worth:
                break
            for j in program.worth:  # bounded by tangents
                program.tangent(j, float(played.done[j, -1]))
        status: Status = "optimal" if bound - value <= CLOSE * max(value, 1.0) else "limit"
        return outcome(problem, best, status, max(bound, value), rounds=float(rounds))


class _Program(LinearProgram):
    """Which job runs as which of its configurations, slot by slot."""

    def __init__(self, problem: AllocationProblem, most: int) -> None:
        super().__init__()
        self.problem = problem
        self.ways = [configurations(problem, j, most) for j in range(len(problem.jobs))]
        self.runs: list[IntArray] = []  # (W, C) of each job
        self.worth: dict[int, tuple[IntArray, FloatArray]] = {}  # its column, progress of its runs
        for j, job in enumerate(problem.jobs):
            window, ways = problem.windows[j], self.ways[j]
            runs = self.add_columns((len(window), len(ways)), upper=1.0, integer=True)
            self.runs.append(runs)
            if not ways:
                continue
            self.add_rows(len(window), [(runs, 1.0)], upper=1.0)
            made = np.tile([way.progress for way in ways], (len(window), 1))
            if job.utility.partial:
                self.worth[j] = self.add_columns(1, cost=-1.0, upper=job.utility.of(1.0)), made
                for fraction in _TANGENTS.tolist():
                    self.tangent(j, fraction)
                continue
            worth = np.array([job.utility.at(s + 1) for s in range(len(window))])
            ends = self.add_columns(len(window), cost=-worth, upper=1.0, integer=True)
            self.add_row([(ends, 1.0)], upper=1.0)
            made = np.minimum(made / DONE, 1.0)
            for s in range(1, len(window) + 1):  # all of its progress is made before it ends
                self.add_row([(ends[:s], -1.0), (runs[:s], made[:s])], lower=0.0)
        demands = [np.array([way.demand for way in ways]) for ways in self.ways]  # (C, M, R)
        for t in range(problem.slots):
            there = [j for j, window in enumerate(problem.windows) if t in window and self.ways[j]]
            if not there:
                continue
            columns = np.concatenate([self.runs[j][problem.windows[j].index(t)] for j in there])
            demand = np.concatenate([demands[j] for j in there])
            together = sum(demands[j].max(axis=0) for j in there)
            for m, r in np.argwhere(together > problem.capacity):
                held = float(problem.capacity[m, r])
                scale = max(held, 1e-9)
                self.add_row([(columns, demand[:, m, r] / scale)], upper=held / scale)

    def tangent(self, j: int, fraction: float) -> None:
        """Worth is at most the tangent at a fraction; the slope is by central differences."""
        utility, (worth, made) = self.problem.jobs[j].utility, self.worth[j]
        at = min(max(fraction, _STEP), 1.0 - _STEP)
        slope = (utility.of(at + _STEP) - utility.of(at - _STEP)) / (2.0 * _STEP)
        self.add_row(
            [(worth, 1.0), (self.runs[j], -slope * made)], upper=utility.of(at) - slope * at
        )

    def solved(self, time_limit: float, seed: int) -> tuple[AllocationPlan | None, float]:
        """A plan and the bound of the program as it is."""
        plan = AllocationPlan.empty(self.problem)
        if not any(self.ways):
            return plan, 0.0
        solver = self.solver(time_limit=time_limit, seed=seed)
        for option in ("mip_rel_gap", "mip_abs_gap"):
            solver.setOptionValue(option, CLOSE / 10.0)
        for option in ("mip_feasibility_tolerance", "primal_feasibility_tolerance"):
            solver.setOptionValue(option, _TOLERANCE)
        values, bound = best_values(solver), -solver.getInfo().mip_dual_bound
        if values is None:
            return None, bound
        for j, window in enumerate(self.problem.windows):
            for s, c in np.argwhere(values[self.runs[j]] > 0.5):
                plan.given[window[s], j] = self.ways[j][c].place
        return plan, bound
