"""The exact optimum of bandwidth for a placed and ordered step, by cutting planes."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from agents.bandwidth.convex_program.piped_step import Path, PipedStep
from agents.bandwidth.convex_program.rate_dual import PipeRange, dual_bound
from agents.bandwidth.convex_program.rate_master import RateMaster
from agents.bandwidth.incumbent import AllocationIncumbent
from agents.bandwidth.proportional import proportional_allocation
from agents.bandwidth.square_root import square_root_allocation
from agents.bandwidth.traffic import PipeTraffic, channel_capacity
from agents.base import PlannerResult
from envs.errors import InputError
from envs.step.allocated import uniform_allocation, weighted_allocation
from envs.step.plans import LINK_SLACK, BandwidthAllocation, Plan
from envs.step.problem import StepProblem

FloatArray = NDArray[np.float64]

_LEAST_WEIGHT = 1e-9  # of the fastest channel: what one of a pipe in use weighs at least
_TANGENT_ERROR = 0.3  # of the gap: what tangents may leave between the program and the step
_TOWARDS = 0.5  # how far the second point of a round lies from the best allocation to the first


class ConvexRates:
    """Minimises the step of a fixed plan over all feasible rates of all channels.

    The step is the longest of many paths, each a constant and a sum of bytes times slowness
    (`PipedStep`): a convex function of the rates, over the polytope of the links. A linear program
    over rates, slowness and step time knows some paths and some tangents of 1 / B (Kelley's cutting
    planes, *Journal of SIAM* 8, 1960). Every round asks the simulator's longest path at the
    program's solution and half-way to it from the best allocation (in-out separation, Ben-Ameur and
    Neto, *Networks* 49, 2007), which are at once new cuts and new allocations. The program's
    multipliers prove a bound through `dual_bound`, which does without tangents and tolerances.

    Solutions become feasible allocations by the weighted max-min allocation with the rates as
    weights, which also gives away what they leave; pipes without traffic get nothing. The three
    rules (uniform, proportional, square root) are the first points, so that the result is never
    worse than theirs.

    Args:
        gap: relative distance from the bound at which the search ends; counts as optimal.
        rounds: of the linear program, at most.

    Raises:
        InputError: the gap is not within 0..1, or there is not one round.
    """

    def __init__(self, *, gap: float, rounds: int) -> None:
        if not 0.0 <= gap <= 1.0:
            raise InputError(f"{gap} is not within 0..1", field="gap")
        if rounds < 1:
            raise InputError(f"{rounds} is below 1", field="rounds")
        self.gap = gap
        self.rounds = rounds

    def allocate(
        self,
        problem: StepProblem,
        plan: Plan,
        budget_s: float,
        deterministic_limit: int | None = None,
    ) -> PlannerResult:
        """As `BandwidthPlanner.allocate`; the limit is on longest paths computed."""
        deadline = time.perf_counter() + budget_s
        incumbent = AllocationIncumbent(problem, plan, self.gap)
        if incumbent.step is None:
            return incumbent.result()
        search = _Search(incumbent, incumbent.step, PipeTraffic.of(problem, plan))
        for start in (
            square_root_allocation(problem, plan),
            proportional_allocation(problem, plan),
            uniform_allocation(incumbent.network),
        ):
            search.visit(start)
        limit = np.inf if deterministic_limit is None else deterministic_limit
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
        return incumbent.result(evaluations=search.evaluations, reason=reason)


class _Search:
    """The state of one search: paths, tangents, and the best point without regard to memory."""

    def __init__(
        self, incumbent: AllocationIncumbent, step: PipedStep, traffic: PipeTraffic
    ) -> None:
        self.incumbent = incumbent
        self.step = step
        self.network = step.network
        self.evaluations = 0
        self.best_rate = np.zeros(self.network.num_channels)
        self.best_seconds = np.inf
        self.proved = incumbent.lower_bound
        self.paths: list[Path] = []
        self.volume = traffic.volume.ravel()
        used = np.flatnonzero(traffic.transfers.ravel() > 0)
        number = self.network.channel_pipe
        self.in_use = np.isin(number, used)
        most = np.zeros(step.num_servers**2)
        np.add.at(most, number, channel_capacity(self.network) * (1.0 + LINK_SLACK))
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
            low = self.volume[self.within.pipe] / (path.seconds or np.inf) * (1.0 - LINK_SLACK)
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
