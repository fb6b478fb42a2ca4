"""The linear relaxation of malleable jobs: what no plan can be worth more than.

Machines are taken together: in a slot a job has shares of its levels, which sum to at most 1, and
all jobs take at most what all machines have. A level is the best that a number of workers and
servers can be: on one machine where one holds them, which takes no NIC, or else on the fewest
machines that can hold them. Every plan is such a solution, and as fast in it or faster, because no
speed model is faster on more machines, or takes less of their NICs. Where machines are alike, a
fractional plan of every machine by itself could do no more. Shares of a job that end in a slot have
all of their progress by then, each a whole plan of the job; a job whose partial work counts is
worth its utility's value, which is concave.

Resources are priced (Lagrange), which leaves each job by itself: at prices, the cheapest progress
is by the lower hull of its levels' costs in each slot, cheapest pieces first. For any prices, the
worth of the machines plus what every job gains at best is a bound. Columns, plans of one job each,
go to a master program, whose duals are the next prices (Dantzig, Wolfe 1960), smoothed towards the
best prices so far (Wentges 1997). What is returned as the bound is that of the best prices, so it
is right however far the master has come.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.sparse import csc_array

from agents.linear_program import LinearProgram
from envs.arrays import FloatArray, IntArray, sums_before
from experiments.papers.malleable_jobs.problem import DONE, NIC, RESOURCES, AllocationProblem
from experiments.papers.malleable_jobs.slots import Sizes

_COVER = 2e-3  # of progress, for which levels between others are left out
_AT_ONCE = 1 << 22  # numbers, of ends of a job times its pieces
_SMOOTH = 0.6  # weight of the best prices so far


@dataclass(frozen=True, eq=False)
class Relaxed:
    """A fractional plan: entry i has job `job[i]` at a level, in `slot[i]`.

    In every slot the shares of a job sum to at most 1, and demand times shares is within what the
    machines have together. It is worth `value`; no plan is worth more than `bound`.
    """

    levels: tuple[Sizes, ...]  # of each job
    job: IntArray  # (N,) ascending; for each, slots do
    slot: IntArray  # (N,)
    progress: FloatArray  # (N,) of the level
    demand: FloatArray  # (N, R)
    share: FloatArray  # (N,) in (0, 1]
    value: float
    bound: float


def relaxed(problem: AllocationProblem, time_limit: float = 30.0, gap: float = 2e-3) -> Relaxed:
    """Until value and bound are within `gap` of each other, or for so many seconds."""
    start = time.perf_counter()
    pricing = Pricing(problem)
    master = _Master(pricing)
    prices = best = np.zeros((problem.slots, len(RESOURCES)))
    bound = np.inf
    while True:
        share, worth, gain = pricing.plans(prices, range(len(problem.jobs)))
        found = float(gain.sum() + (prices * problem.total).sum())
        if found < bound:
            bound, best = found, prices
        value, duals = master.solve(share, worth)
        if bound - value <= gap * bound or time.perf_counter() - start > time_limit:
            return master.relaxed(value, bound)
        smooth = _SMOOTH * best + (1.0 - _SMOOTH) * duals
        prices = duals if np.allclose(smooth, prices) else smooth


def levels_of(problem: AllocationProblem, j: int) -> Sizes:
    """Those of a job's `Sizes` that some prices could make the best, by ascending progress.

    Left out are those of which a larger one has a share that is as good but for `_COVER` of the
    progress, then those that two others cover as well; so much is added to what stays.
    """
    sizes = Sizes.of(problem, problem.jobs[j])
    progress, demand, workers = sizes.progress, sizes.demand, sizes.size[:, 0]
    kept: list[int] = []
    for i in np.argsort(-progress, kind="stable").tolist():
        share = progress[i] / (progress[kept] * (1.0 + _COVER))
        if not (share[:, None] * demand[kept] <= demand[i] * (1.0 + 1e-12)).all(axis=1).any():
            kept.append(i)
    apart, widest = demand[:, NIC] > 0.0, workers == workers.max(initial=0)
    raised = progress * (1.0 + _COVER) ** 2
    chosen: list[int] = []
    for group in (apart & widest, apart & ~widest, ~apart):
        own = sorted((i for i in kept if group[i]), key=lambda i: float(raised[i]))
        chosen += [own[k] for k in _covering(raised[own], demand[own])]
    order = sorted(chosen, key=lambda i: float(raised[i]))
    return Sizes(sizes.size[order], raised[order], demand[order])


def _covering(progress: FloatArray, demand: FloatArray) -> list[int]:
    """Levels of which two, or one and idling, are as good in shares as any that is left out.

    Progress ascends.
    """
    progress, demand = np.insert(progress, 0, 0.0), np.insert(demand, 0, 0.0, axis=0)
    kept, i = [], 0
    while i < len(progress) - 1:
        k = i + 1
        while k + 1 < len(progress):
            between = slice(i + 1, k + 1)
            needed = progress[between] / (1.0 + _COVER) - progress[i]
            share = np.maximum(0.0, needed) / max(progress[k + 1] - progress[i], 1e-300)
            mixed = demand[i] + share[:, None] * (demand[k + 1] - demand[i])
            if (share > 1.0).any() or (mixed > demand[between] * (1.0 + 1e-12)).any():
                break
            k += 1
        kept.append(k - 1)
        i = k
    return kept


class Pricing:
    """What each job would do at given prices of resources.

    A row is a job in a slot of its window. Number 0 of its levels here is to idle.
    """

    def __init__(self, problem: AllocationProblem) -> None:
        self.problem = problem
        self.levels = tuple(levels_of(problem, j) for j in range(len(problem.jobs)))
        most = max(map(len, self.levels), default=0) + 1
        self.demand = np.zeros((len(self.levels), most, len(RESOURCES)))
        self.progress = np.full((len(self.levels), most), -1.0)
        rows = list[tuple[int, int]]()
        for j, sizes in enumerate(self.levels):
            self.progress[j, : len(sizes) + 1] = [0.0, *sizes.progress]
            self.demand[j, 1 : len(sizes) + 1] = sizes.demand
            rows += [(j, t) for t in problem.windows[j] if sizes]
        self.job, self.slot = np.array(rows, np.int64).reshape(-1, 2).T
        self.start = np.searchsorted(self.job, np.arange(len(self.levels) + 1))

    def plans(self, prices: FloatArray, jobs: range) -> tuple[FloatArray, FloatArray, FloatArray]:
        """The best at prices (T, R): shares (N, C) of the jobs' rows, (J,) values and gains."""
        rows = slice(self.start[jobs.start], self.start[jobs.stop])
        corner, more, cost = self._pieces(prices, rows)
        taken, (value, gain) = np.zeros_like(more), np.zeros((2, len(self.levels)))
        for j in jobs:
            own = slice(self.start[j] - rows.start, self.start[j + 1] - rows.start)
            if own.start < own.stop:
                taken[own], value[j], gain[j] = self._best(j, more[own], cost[own])
        share, every = np.zeros((len(corner), self.progress.shape[1])), np.arange(len(corner))
        for piece, part in enumerate(taken.T):  # less of its corner and more of the next
            share[every, corner[:, piece]] -= part
            share[every, corner[:, piece + 1]] += part
        share[:, 0] = 0.0
        return share, value, gain

    def _pieces(self, prices: FloatArray, own: slice) -> tuple[IntArray, FloatArray, FloatArray]:
        """The lower hulls of rows: (N, S + 1) corners, and (N, S) progress and cost a progress."""
        progress = self.progress[self.job[own]]  # (N, C)
        cost = np.einsum("nr,ncr->nc", prices[self.slot[own]], self.demand[self.job[own]])
        corner = np.zeros(progress.shape, np.int64)
        more, slopes = np.zeros(progress.shape), np.full(progress.shape, np.inf)
        rows, piece = np.arange(len(progress)), 0  # of which the hull goes on
        while True:
            at = corner[rows, piece, None]
            ahead = progress[rows] - np.take_along_axis(progress[rows], at, 1)
            rise = cost[rows] - np.take_along_axis(cost[rows], at, 1)
            slope = np.divide(rise, ahead, out=np.full_like(rise, np.inf), where=ahead > 0.0)
            low = slope.min(axis=1)
            on = (slope <= low[:, None] * (1.0 + 1e-12)) & (ahead > 0.0)
            to = np.argmax(np.where(on, progress[rows], -1.0), axis=1)
            going = on.any(axis=1)
            if not going.any():
                return corner[:, : piece + 1], more[:, :piece], slopes[:, :piece]
            rows, to = rows[going], to[going]
            more[rows, piece], slopes[rows, piece] = ahead[going, to], low[going]
            corner[:, piece + 1] = corner[:, piece]
            piece += 1
            corner[rows, piece] = to

    def _best(self, j: int, more: FloatArray, slope: FloatArray) -> tuple[FloatArray, float, float]:
        """What a job takes of the pieces (W, S) of its window, its value and its gain."""
        job, window = self.problem.jobs[j], self.problem.windows[j]
        order = np.argsort(slope, axis=None, kind="stable")
        order = order[more.ravel()[order] > 0.0]
        amount, price = more.ravel()[order], slope.ravel()[order]
        taken, value, gain = np.zeros(more.size), 0.0, 0.0
        if job.utility.partial:
            until, paid = sums_before(amount), sums_before(amount * price)

            def gained(done: float) -> float:  # concave
                return job.utility.of(done) - float(np.interp(done, until, paid))

            end = min(1.0, float(until[-1]))
            found = minimize_scalar(
                lambda x: -gained(x), bounds=(0.0, end), method="bounded", options={"xatol": 1e-12}
            )
            done = max((0.0, float(found.x), end), key=gained)
            value, gain = job.utility.of(done), gained(done)
            taken[order] = np.clip((done - until[:-1]) / amount, 0.0, 1.0)
        else:
            rows = max(1, _AT_ONCE // max(len(order), 1))
            for first in range(0, len(window), rows):  # slots in which it ends
                ends = np.arange(first, min(first + rows, len(window)))
                worth = np.array([job.utility.at(s + 1) for s in ends.tolist()])
                there = amount * (order // more.shape[1] <= ends[:, None])
                until = np.cumsum(there, axis=1)
                part = np.clip(DONE - (until - there), 0.0, there)
                gains = np.where(until[:, -1] >= DONE, worth - part @ price, -1.0)
                end = int(np.argmax(gains))
                if gains[end] > gain:
                    value, gain = float(worth[end]), float(gains[end])
                    taken[order] = part[end] / amount
        return taken.reshape(more.shape), value, max(gain, 0.0)


class _Master:
    """Shares of columns, worth the most within what the machines have together."""

    def __init__(self, pricing: Pricing) -> None:
        self._pricing, problem = pricing, pricing.problem
        self._rows = problem.slots * len(RESOURCES)  # of resources; those of jobs follow
        program = LinearProgram()
        program.add_columns(1, upper=0.0)
        program.add_rows(self._rows + len(problem.jobs), [], upper=1.0)
        self._solver = program.solver(time_limit=1e9)
        self._entries: list[tuple[IntArray, IntArray, IntArray, FloatArray]] = []

    def solve(self, share: FloatArray, worth: FloatArray) -> tuple[float, FloatArray]:
        """The value with jobs' plans of shares (N, C), worth (J,), besides, and (T, R) duals."""
        pricing, total = self._pricing, self._pricing.problem.total
        row, level = np.nonzero(share > 1e-12)
        job, column = np.unique(pricing.job[row], return_inverse=True)
        resources, count, part = len(total), len(job), share[row, level]
        self._entries.append((self._solver.getNumCol() + column, row, level, part))
        taken = (pricing.slot[row][:, None] * resources + np.arange(resources)).ravel()
        used = part[:, None] * pricing.demand[pricing.job[row], level] / total
        entry = np.concatenate([used.ravel(), np.ones(count)])
        place = (
            np.concatenate([taken, self._rows + job]),
            np.concatenate([np.repeat(column, resources), np.arange(count)]),
        )
        matrix = csc_array((entry, place), (self._rows + len(worth), count))
        matrix.sum_duplicates()
        matrix.eliminate_zeros()
        self._solver.addCols(
            count, -worth[job], np.zeros(count), np.ones(count), matrix.nnz,
            matrix.indptr[:-1], matrix.indices, matrix.data,
        )  # fmt: skip
        self._solver.run()
        duals = np.array(self._solver.getSolution().row_dual)[: self._rows].reshape(-1, resources)
        value = -self._solver.getInfo().objective_function_value
        return value, np.maximum(-duals, 0.0) / total

    def relaxed(self, value: float, bound: float) -> Relaxed:
        """What the master has found."""
        pricing = self._pricing
        total = np.zeros((len(pricing.job), pricing.demand.shape[1]))
        chosen = np.array(self._solver.getSolution().col_value)
        column, row, level, part = map(np.concatenate, zip(*self._entries, strict=True))
        np.add.at(total, (row, level), np.where(chosen > 1e-9, chosen, 0.0)[column] * part)
        row, level = np.nonzero(total)
        job, share = pricing.job[row], np.minimum(total[row, level], 1.0)
        found = pricing.progress[job, level], pricing.demand[job, level], share
        return Relaxed(pricing.levels, job, pricing.slot[row], *found, value, bound)
