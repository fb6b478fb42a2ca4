"""The exact optimum of bandwidth for a placed and ordered step, by cutting planes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import highspy
import numpy as np

from agents.bandwidth.piped_step import PATH_ROUNDING, Path, PipedStep
from agents.bandwidth.rules import (
    AllocationIncumbent,
    ProportionalShares,
    SquareRootShares,
    UniformShares,
)
from agents.linear_program import LinearProgram
from agents.solver import Budget, Result
from agents.step.problems import BandwidthPlanning
from envs.arrays import FloatArray, IntArray
from envs.bounds import Count, Share, bounded
from envs.step.allocated import weighted_allocation
from envs.step.plans import LINK_SLACK, BandwidthAllocation, Plan


@dataclass(frozen=True, eq=False)
class PipeRange:
    """Between which rates the pipes in use are looked for, P of them in ascending number."""

    pipe: IntArray  # (P,) source server * S + destination server
    low: FloatArray  # (P,) bytes/s, >= 0
    high: FloatArray  # (P,) bytes/s


def dual_bound(
    step: PipedStep,
    paths: list[Path],
    path_weight: FloatArray,  # (K,) >= 0, not all 0
    link_price: FloatArray,  # (links,) >= 0
    within: PipeRange,
) -> float:
    """Seconds that no allocation with pipes in the range of `within` beats.

    A step is no shorter than any weighted mean of its paths. With weights l[k] that add up to 1 and
    prices m[e] >= 0 of links of capacity C[e], every feasible allocation b therefore satisfies

        T >= sum_k l[k] (c[k] + sum_j V[k, j] max(1 / B[p(j)], 1 / inner[j]))
             + sum_e m[e] (load[e](b) - C[e])

    The load is linear in the channels' rates, so that a byte/s through pipe p costs at least the
    price q[p] of the cheapest of its channels, the sum of m over its links, and

        T >= sum_k l[k] c[k] - sum_e m[e] C[e]
             + sum_p min { sum_j W[j] max(1 / B, 1 / inner[j]) + q[p] B : low <= B <= high }

    with W = l V over the crossings j of pipe p. Each minimum is that of one convex function, which
    is W / B + q B between two values of `inner`: it lies at an end of the range, at one of those
    values or at sqrt(W / q). The right side is a bound for *any* weights and prices, and whatever
    error they carry, it is only the worse for it; the rounding of the sums is taken off at the end.
    """
    weight = np.maximum(path_weight, 0.0)
    weight = weight / weight.sum()
    price = np.maximum(link_price, 0.0)
    network = step.network
    constant = float(weight @ np.array([path.constant for path in paths]))
    mixed = weight @ np.stack([path.volume for path in paths])  # (J,) bytes
    rent = float(price @ network.link_capacity) * (1.0 + LINK_SLACK)
    of_channel = price @ network.incidence  # (C,) per byte/s
    number = network.channel_pipe
    cheapest = np.full(step.num_servers**2, np.inf)
    np.minimum.at(cheapest, number, of_channel)
    total = 0.0
    for pipe, low, high in zip(within.pipe, within.low, within.high, strict=True):
        inside = step.pipe == pipe
        total += _cheapest_rate(
            mixed[inside], step.inner[inside], float(cheapest[pipe]), float(low), float(high)
        )
    return constant + total - rent - PATH_ROUNDING * (constant + total + rent)


def _cheapest_rate(
    volume: FloatArray,  # (j,) bytes
    inner: FloatArray,  # (j,) bytes/s
    price: float,  # seconds per byte/s
    low: float,
    high: float,
) -> float:
    """The least of sum volume * max(1 / B, 1 / inner) + price * B for B in [low, high]."""
    if not volume.any():
        return price * low
    edges = np.concatenate([[low], np.sort(inner[(inner > low) & (inner < high)]), [high]])
    rates = [edges]
    if price > 0.0:
        for left, right in pairwise(edges.tolist()):
            flowing = float(volume[inner > left].sum())
            rates.append(np.clip([np.sqrt(flowing / price)], left, right))
    rate = np.concatenate(rates)
    rate = rate[rate > 0.0]
    slowness = np.maximum(1.0 / rate[:, None], 1.0 / inner)  # (candidates, j)
    return float((slowness @ volume + price * rate).min())


_TOLERANCE = 1e-10  # of the scaled program, primal and dual
_LEAST_SECONDS = 0.1  # for one solution, however near the deadline
_NEAREST_TO_ZERO = 1e-6  # in units of the pipe: tangents nearer to rate 0 are too steep


@dataclass(frozen=True, eq=False)
class MasterSolution:
    """What the linear program found, and its multipliers."""

    rate: FloatArray  # (C,) bytes/s
    slowness: FloatArray  # (J,) seconds per byte
    path_weight: FloatArray  # (K,) of the paths, in the order in which they were added
    link_price: FloatArray  # (links,) seconds per byte/s


class RateMaster:
    """Minimise the longest of some paths over rates within the links.

    Every pipe has a `unit` (P,) in bytes/s of its own, near the rate that it is going to have:
    small flows beside large ones would lose their digits otherwise. Rates are in units of their
    pipe, slowness in 1 / unit, times in `seconds`.
    """

    def __init__(self, step: PipedStep, pipes: IntArray, unit: FloatArray, seconds: float) -> None:
        network = step.network
        number = network.channel_pipe
        self._step = step
        self._seconds = seconds
        self._unit = unit  # (P,)
        of_pipe = np.ones(step.num_servers**2)
        of_pipe[pipes] = unit
        self._channel_unit = of_pipe[number]  # (C,)
        self._crossing_unit = of_pipe[step.pipe]  # (J,)
        self._crossings = [np.flatnonzero(step.pipe == pipe) for pipe in pipes]
        used = np.isin(number, pipes)
        program = LinearProgram()
        self._finish = int(program.add_columns(1, cost=1.0)[0])
        self._rate = program.add_columns(
            network.num_channels, upper=np.where(used, highspy.kHighsInf, 0.0)
        )
        self._pipe = program.add_columns(len(pipes))
        self._slow = program.add_columns(step.num_crossings, lower=self._crossing_unit / step.inner)
        self._room = np.where(network.link_capacity > 0.0, network.link_capacity, 1.0)
        share = network.incidence * self._channel_unit / self._room[:, None]
        self._links = np.array(
            [
                program.add_row([(self._rate, row)], upper=float(full))
                for row, full in zip(share, network.link_capacity > 0.0, strict=True)
            ],
            dtype=np.int64,
        )
        for column, pipe in zip(self._pipe, pipes, strict=True):
            together = [(self._rate[number == pipe], 1.0), (column, -1.0)]
            program.add_row(together, lower=0.0, upper=0.0)
        self._paths: list[int] = []
        self._most = np.zeros(step.num_crossings)  # what slowness 1 adds to a path, at most
        self._touched: list[list[float]] = [[] for _ in pipes]  # where tangents are, in units
        self._rows = program.num_rows
        self._solver = program.solver(time_limit=highspy.kHighsInf)
        for side in ("primal", "dual"):
            self._solver.setOptionValue(f"{side}_feasibility_tolerance", _TOLERANCE)

    def add_path(self, path: Path) -> None:
        """The step takes no less than `path`."""
        used = np.flatnonzero(path.volume)
        slow = -path.volume[used] / (self._crossing_unit[used] * self._seconds)
        columns, values = np.append(self._slow[used], self._finish), np.append(slow, 1.0)
        self._paths.append(self._row(path.constant / self._seconds, columns, values))
        self._most[used] = np.maximum(self._most[used], -slow)

    def add_tangents(self, pipes: FloatArray, error: float) -> None:
        """The slowness of each pipe lies above the tangent of 1 / B at `pipes` (P,) bytes/s.

        Left out where the tangents so far are so near to 1 / B that no path can be wrong by more
        than `error` seconds for all of them together.
        """
        near = np.maximum(pipes / self._unit, _NEAREST_TO_ZERO)
        allowed = error / self._seconds / max(len(self._pipe), 1)
        for row, (column, at, crossings) in enumerate(
            zip(self._pipe, near.tolist(), self._crossings, strict=True)
        ):
            known = self._touched[row]
            below = 1.0 / at - max((2.0 / x - at / x**2 for x in known), default=0.0)
            if known and below * self._most[crossings].sum() <= allowed:
                continue
            known.append(at)
            for crossing in crossings:
                columns = np.array([self._slow[crossing], column])
                self._row(2.0, columns, np.array([at, 1.0 / at]))

    def bound_pipes(self, within: PipeRange) -> None:
        """Look only at rates within these."""
        low, high = within.low / self._unit, within.high / self._unit
        for column, least, most in zip(self._pipe, low, high, strict=True):
            self._solver.changeColBounds(int(column), least, most)

    def solve(self, deadline: float) -> MasterSolution | None:
        """The solution for the paths and tangents so far; None when there was no time for one."""
        left = max(deadline - time.perf_counter(), _LEAST_SECONDS)
        self._solver.setOptionValue("time_limit", self._solver.getRunTime() + left)
        self._solver.run()
        if self._solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        solution = self._solver.getSolution()
        value, dual = np.array(solution.col_value), np.array(solution.row_dual)
        return MasterSolution(
            rate=np.maximum(value[self._rate], 0.0) * self._channel_unit,
            slowness=np.maximum(value[self._slow], 0.0) / self._crossing_unit,
            path_weight=np.maximum(dual[self._paths], 0.0),
            link_price=np.maximum(-dual[self._links], 0.0) * self._seconds / self._room,
        )

    def _row(self, lower: float, columns: IntArray, values: FloatArray) -> int:
        added = columns.astype(np.int32)
        self._solver.addRow(lower, highspy.kHighsInf, len(added), added, values)
        self._rows += 1
        return self._rows - 1


_LEAST_WEIGHT = 1e-9  # of the fastest channel: what one of a pipe in use weighs at least
_TANGENT_ERROR = 0.3  # of the gap: what tangents may leave between the program and the step
_TOWARDS = 0.5  # how far the second point of a round lies from the best allocation to the first


@bounded
@dataclass(frozen=True, eq=False, kw_only=True)
class ConvexRates:
    """Minimises the step of a fixed plan over all feasible rates of all channels.

    The step is the longest of many paths, each a constant and a sum of bytes times slowness
    (`PipedStep`): a convex function of the rates, over the polytope of the links. A linear program
    over rates, slowness and step time knows some paths and some tangents of 1 / B (Kelley's cutting
    planes). Every round asks the simulator's longest path at the program's solution and half-way to
    it from the best allocation (in-out separation), which are at once new cuts and new allocations.
    The program's multipliers prove a bound through `dual_bound`, which does without tangents and
    tolerances.

    Solutions become feasible allocations by the weighted max-min allocation with the rates as
    weights, which also gives away what they leave; pipes without traffic get nothing. The three
    rules (uniform, proportional, square root) are the first points, so that the result is never
    worse than theirs.

    Guarantees:
        The proved optimum of static rates for this plan, within `gap`.

    Source:
        Kelley, "The cutting-plane method for solving convex programs", Journal of SIAM 8, 1960;
        separation as in Ben-Ameur, Neto, "Acceleration of cutting-plane and column generation
        algorithms", Networks 49, 2007.

    Args:
        gap: relative distance from the bound at which the search ends; counts as optimal.
        rounds: of the linear program, at most.
    """

    solves: ClassVar = (BandwidthPlanning,)

    gap: Share = 1e-07
    rounds: Count = 400

    def solve(
        self, problem: BandwidthPlanning, budget: Budget, start: Sequence[Plan] = ()
    ) -> Result[Plan]:
        """As `agents.solver.Solver.solve`; `Budget.evaluations` counts longest paths."""
        deadline = time.perf_counter() + budget.seconds
        incumbent = AllocationIncumbent(problem.step, problem.plan, self.gap)
        if incumbent.step is None:
            return incumbent.result()
        search = _Search(incumbent, incumbent.step)
        for rule in (SquareRootShares(), ProportionalShares(), UniformShares()):
            search.visit(rule.shares(incumbent.step))
        limit = np.inf if budget.evaluations is None else budget.evaluations
        rounds, reason = 0, ""
        while not search.closed(self.gap) and not reason:
            if search.evaluations >= limit or time.perf_counter() >= deadline:
                reason = "the search was stopped before the proof was complete"
            elif rounds == self.rounds:
                reason = f"{rounds} rounds left a gap"
            elif not search.round(deadline):
                reason = "the linear program was not solved"
            rounds += 1
        incumbent.prove(search.lower_bound)
        incumbent.evaluations += search.evaluations
        return incumbent.result(reason)


class _Search:
    """The state of one search: paths, tangents, and the best point without regard to memory."""

    def __init__(self, incumbent: AllocationIncumbent, step: PipedStep) -> None:
        self.incumbent = incumbent
        self.step = step
        self.network = step.network
        self.evaluations = 0
        self.best_rate = np.zeros(self.network.num_channels)
        self.best_seconds = np.inf
        self.proved = incumbent.lower_bound
        self.paths: list[Path] = []
        used = np.flatnonzero(step.transfers)
        number = self.network.channel_pipe
        self.in_use = np.isin(number, used)
        most = np.zeros(step.num_servers**2)
        np.add.at(most, number, self.network.channel_capacity * (1.0 + LINK_SLACK))
        self.within = PipeRange(used, np.zeros(len(used)), most[used])
        self.unit = float(most.max(initial=0.0)) or 1.0  # bytes/s
        self.master: RateMaster | None = None

    @property
    def lower_bound(self) -> float:
        """Seconds no allocation beats; the ranges of the pipes hold for what beats the best."""
        return min(self.proved, self.best_seconds)

    def closed(self, gap: float) -> bool:
        """Whether the best point is proved to be optimal."""
        return self.best_seconds <= self.proved * (1.0 + gap)

    def visit(self, allocation: BandwidthAllocation) -> None:
        """Cut off `allocation` by its longest path and the tangents there; offer it."""
        slowness = self.step.slowness(allocation.pipes(self.network))
        path = self.step.longest_path(slowness)
        self.evaluations += 1
        if np.isfinite(path.seconds):
            self.add(path, allocation.pipes(self.network).ravel())
        if path.seconds < self.best_seconds:
            self.best_seconds, self.best_rate = path.seconds, allocation.rate
            # A pipe sends its bytes one after the other, all of them within the step.
            low = self.step.volume[self.within.pipe] / (path.seconds or np.inf) * (1.0 - LINK_SLACK)
            self.within = PipeRange(self.within.pipe, low, self.within.high)
        if path.seconds < self.incumbent.step_time:
            self.incumbent.offer(allocation)

    def add(self, path: Path, pipes: FloatArray) -> None:
        """A path for the program, and tangents at the rates `pipes` (S * S,)."""
        if self.master is None:
            unit = np.maximum(pipes[self.within.pipe], _LEAST_WEIGHT * self.unit)
            self.master = RateMaster(self.step, self.within.pipe, unit, path.seconds or 1.0)
        self.paths.append(path)
        self.master.add_path(path)
        gap = max(min(self.best_seconds, path.seconds) - self.proved, 0.0)
        self.master.add_tangents(pipes[self.within.pipe], _TANGENT_ERROR * gap)

    def round(self, deadline: float) -> bool:
        """Solve the program, prove its bound, look at its solution and half-way to it.

        Returns whether the program was solved.
        """
        assert self.master is not None
        self.master.bound_pipes(self.within)
        found = self.master.solve(deadline)
        if found is None:
            return False
        bound = dual_bound(self.step, self.paths, found.path_weight, found.link_price, self.within)
        self.proved = max(self.proved, min(bound, self.best_seconds))
        # The path that the program's own slowness makes longest cuts its solution off even where
        # the tangents are still loose.
        path = self.step.longest_path(found.slowness)
        self.evaluations += 1
        self.paths.append(path)
        self.master.add_path(path)
        for rate in (found.rate, self.best_rate + _TOWARDS * (found.rate - self.best_rate)):
            floor = _LEAST_WEIGHT * self.unit
            weight = np.where(self.in_use, np.maximum(rate, floor), 0.0)
            self.visit(weighted_allocation(self.network, weight))
        return True
