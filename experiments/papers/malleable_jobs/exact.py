"""The best plan for few malleable jobs on few machines, with proof."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import highspy
import numpy as np

from agents.linear_program import LinearProgram
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
from experiments.papers.malleable_jobs.sizes import AllocationSolver, Placement, outcome

CLOSE = 1e-6  # of the value: bound and value that meet this closely are one
_TOLERANCE = 1e-9
_TANGENTS = np.linspace(0.0, 1.0, 7) ** 2
_STEP = 1e-6  # of a fraction, for the slope of a utility


class Configuration(NamedTuple):
    """Workers and servers on machines that no other is better than."""

    placement: Placement
    demand: FloatArray  # (M, R)
    progress: float  # in a slot


def configurations(
    problem: AllocationProblem, j: int, most: int = 20_000
) -> tuple[Configuration, ...]:
    """All ways to run job j in a slot but those that take no less, and are no faster, than another.

    Raises:
        InputError: there are more than `most` ways to look at.
    """
    job = problem.jobs[j]
    worker, server = np.asarray(job.worker), np.asarray(job.server)
    pairs = [
        [
            (w, p)
            for w, p in product(range(job.most_workers + 1), range(job.most_servers + 1))
            if np.all(w * worker + p * server <= held * (1.0 + 1e-9))
        ]
        for held in problem.capacity[:, :NIC]
    ]
    if np.prod([float(len(some)) for some in pairs]) > most:
        raise InputError(f"has more than {most} configurations: too many to prove", record=job.name)
    found = []
    for way in product(*pairs):
        workers, servers = np.array(way, np.int64).T
        w, p = int(workers.sum()), int(servers.sum())
        if not job.least_workers <= w <= job.most_workers or p > min(job.most_servers, w):
            continue
        demand = job.demand(workers, servers)
        progress = problem.progress(job, workers, servers)
        if progress > 0.0 and np.all(demand <= problem.capacity * (1.0 + 1e-9)):
            found.append(Configuration((workers, servers), demand, progress))
    found.sort(key=lambda one: (-one.progress, float(one.demand.sum())))
    kept: list[Configuration] = []
    for one in found:
        if not any(np.all(other.demand <= one.demand) for other in kept):
            kept.append(one)
    return tuple(kept)


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
        """The optimum, or the best plan that the time allows."""
        start, limit = time.perf_counter(), min(self.time_limit, budget.seconds)
        program = _Program(problem, self.most)
        best, value, bound, rounds = AllocationPlan.empty(problem), 0.0, np.inf, 0
        while (left := limit - (time.perf_counter() - start)) > 0.0:
            rounds += 1
            plan, proved = program.solve(left, budget.seed or 0)
            bound = min(bound, proved)
            if plan is None:
                break
            played = play(problem, plan)
            if played.utility > value or rounds == 1:
                best, value = plan, played.utility
            if bound - value <= CLOSE * max(value, 1.0) or not program.refine(played.done[:, -1]):
                break
        proved_best = bound - value <= CLOSE * max(value, 1.0)
        status: Status = "optimal" if proved_best else "limit"
        return outcome(problem, best, status, max(bound, value), rounds=float(rounds))


class _Program:
    def __init__(self, problem: AllocationProblem, most: int) -> None:
        self._problem = problem
        self._ways = [configurations(problem, j, most) for j in range(len(problem.jobs))]
        self._program = LinearProgram()
        self._runs: list[IntArray] = []  # (W, C) of each job
        self._worth: dict[int, tuple[int, IntArray, FloatArray]] = {}
        for j, job in enumerate(problem.jobs):
            window, ways = problem.windows[j], self._ways[j]
            runs = self._program.add_columns((len(window), len(ways)), upper=1.0, integer=True)
            self._runs.append(runs)
            if not len(ways):
                continue
            self._program.add_rows(len(window), [(runs, 1.0)], upper=1.0)
            progress = np.array([way.progress for way in ways])
            made = np.broadcast_to(progress, runs.shape).ravel()
            if job.utility.partial:
                top = job.utility.of(1.0)
                worth = int(self._program.add_columns(1, cost=-1.0, upper=top)[0])
                self._worth[j] = worth, runs.ravel(), made
                for fraction in _TANGENTS:
                    self._tangent(j, float(fraction))
            else:
                self._endings(j, runs, progress / DONE)
        self._share()

    def _endings(self, j: int, runs: IntArray, progress: FloatArray) -> None:
        worth = np.array([self._problem.jobs[j].utility.at(s + 1) for s in range(len(runs))])
        ends = self._program.add_columns(len(runs), cost=-worth, upper=1.0, integer=True)
        self._program.add_row([(ends, 1.0)], upper=1.0)
        for s in range(len(runs)):  # all of its progress is made before it ends
            made = np.broadcast_to(np.minimum(progress, 1.0), (s + 1, len(progress)))
            self._program.add_row(
                [(ends[: s + 1], -1.0), (runs[: s + 1].ravel(), made.ravel())], lower=0.0
            )

    def _share(self) -> None:
        """What all jobs take of a machine in a slot."""
        problem = self._problem
        for t in range(problem.slots):
            there = [
                (self._runs[j][window.index(t)], np.array([way.demand for way in self._ways[j]]))
                for j, window in enumerate(problem.windows)
                if t in window and len(self._ways[j])
            ]
            if not there:
                continue
            columns = np.concatenate([runs for runs, _ in there])
            demand = np.concatenate([taken for _, taken in there])  # (K, M, R)
            most = sum(taken.max(axis=0) for _, taken in there)
            for m, r in np.argwhere(most > problem.capacity):
                held = float(problem.capacity[m, r])
                scale = max(held, 1e-9)
                self._program.add_row([(columns, demand[:, m, r] / scale)], upper=held / scale)

    def _tangent(self, j: int, fraction: float) -> None:
        """Worth is at most the tangent at a fraction; the slope is by central differences."""
        utility = self._problem.jobs[j].utility
        at = min(max(fraction, _STEP), 1.0 - _STEP)
        slope = (utility.of(at + _STEP) - utility.of(at - _STEP)) / (2.0 * _STEP)
        worth, runs, made = self._worth[j]
        self._program.add_row(
            [([worth], 1.0), (runs, -slope * made)], upper=utility.of(at) - slope * at
        )

    def refine(self, done: FloatArray) -> bool:
        """Add tangents at the fractions done; False where no job has one."""
        for j in self._worth:
            self._tangent(j, float(done[j]))
        return bool(self._worth)

    def solve(self, time_limit: float, seed: int) -> tuple[AllocationPlan | None, float]:
        """A plan and the bound of the program as it is."""
        problem = self._problem
        plan = AllocationPlan.empty(problem)
        if not any(runs.size for runs in self._runs):
            return plan, 0.0
        solver = self._program.solver(time_limit=time_limit, seed=seed)
        for option in ("mip_rel_gap", "mip_abs_gap"):
            solver.setOptionValue(option, CLOSE / 10.0)
        for option in ("mip_feasibility_tolerance", "primal_feasibility_tolerance"):
            solver.setOptionValue(option, _TOLERANCE)
        solver.run()
        info = solver.getInfo()
        bound = -info.mip_dual_bound
        if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
            return None, bound
        chosen = np.array(solver.getSolution().col_value) > 0.5
        for j, window in enumerate(problem.windows):
            for s, c in np.argwhere(chosen[self._runs[j]]):
                plan.workers[window[s], j], plan.servers[window[s], j] = self._ways[j][c].placement
        return plan, bound
