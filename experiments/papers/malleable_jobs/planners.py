"""Malleable jobs by the linear relaxation: at its prices, and by locality-aware rounding.

And the names of all planners.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from agents.solver import Budget, Result
from envs.arrays import BoolArray, FloatArray, IntArray
from envs.bounds import Count, Positive, bounded
from experiments.papers.malleable_jobs.exact import ExactAllocation
from experiments.papers.malleable_jobs.gadget import Choices, Gadget, Smd, drawn, fitted
from experiments.papers.malleable_jobs.problem import (
    AllocationPlan,
    AllocationProblem,
    placed,
    play,
)
from experiments.papers.malleable_jobs.relaxation import Pricing, Relaxed, relaxed
from experiments.papers.malleable_jobs.slots import (
    AllocationSolver,
    DominantResourceFairness,
    EqualShare,
    Fifo,
    Optimus,
    Sizes,
    Slot,
    Tetris,
    filled,
    outcome,
)

_COVER = 1.001  # to which the relaxation may round progress up
CHANCE = 0.5  # that a draw at the safe scale breaks a packing row, at most
SLACK = 0.5  # of a job's mean progress: what a draw may leave it short by


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
        pricing = Pricing(problem)
        low, high = _prices(pricing)
        left = np.tile(problem.capacity, (problem.slots, 1, 1))
        plan = AllocationPlan.empty(problem)
        for j in sorted(range(len(problem.jobs)), key=lambda j: problem.jobs[j].arrival):
            job, sizes = problem.jobs[j], pricing.levels[j]
            prices = low * (high / low) ** (1.0 - left.sum(axis=1) / problem.total)
            made, paid, put = np.zeros(problem.slots), 0.0, []
            share, *_ = pricing.plans(prices, range(j, j + 1))
            for row in np.flatnonzero(share.max(axis=1) > 1e-9):
                t = pricing.slot[pricing.start[j] + row]
                level = np.flatnonzero(share[row] > 1e-9)[-1] - 1
                workers, servers = sizes.size[level]
                place = placed(job, workers, servers, left[t])
                if place is not None:
                    made[t] = problem.progress(job, *place)
                    demand = job.demand(*place)
                    paid += prices[t] @ demand.sum(axis=0)
                    put.append((t, place, demand))
            if job.worth(np.minimum(np.cumsum(made), 1.0)) > paid:
                for t, place, demand in put:
                    plan.given[t, j] = place
                    left[t] -= demand
        return outcome(problem, plan)


def _prices(pricing: Pricing) -> tuple[FloatArray, FloatArray]:
    """(R,) the least and the most that a job is worth for a unit of each resource it takes."""
    problem = pricing.problem
    low, high = np.full(len(problem.total), np.inf), np.zeros(len(problem.total))
    for job, sizes in zip(problem.jobs, pricing.levels, strict=True):
        best = job.utility.of(1.0) if job.utility.partial else job.utility.at(1)
        taken = sizes.demand > 0.0
        unit = best * sizes.progress[:, None] / np.where(taken, sizes.demand, 1.0)
        low = np.minimum(low, np.where(taken, unit, np.inf).min(axis=0, initial=np.inf))
        high = np.maximum(high, np.where(taken, unit, 0.0).max(axis=0, initial=0.0))
    spent = (low < np.inf) & (high > 0.0)
    low = np.where(spent, low, 1.0) / (4.0 * len(low))
    return low, np.where(spent, np.maximum(high, low * np.e), low * np.e)


class Tails(NamedTuple):
    """How probable it is that a draw breaks a packing row or leaves a covering row short."""

    packing: FloatArray  # (T, R) takes more of a resource than all machines together have
    covering: FloatArray  # (J,) a job, once accepted, makes less than 1 - SLACK of its mean


class Draws:
    """Draws of the jobs' levels from a relaxed plan with shares times `scale`; jobs independent.

    A job whose utility comes with its end is accepted with probability `scale q`. If it is, it has
    in every slot, independently, one of its levels with probability share / q, where q is the
    largest of its fraction trained and of its shares in a slot. Other jobs are always accepted and
    have each level with probability `scale share`. So either has it with that probability.
    """

    def __init__(self, problem: AllocationProblem, plan: Relaxed) -> None:
        self.problem, self.job, self.slot, self.share = problem, plan.job, plan.slot, plan.share
        self.progress, self.demand = plan.progress, plan.demand / problem.total
        self.group = self.job * problem.slots + self.slot
        self.partial = np.array([job.utility.partial for job in problem.jobs], bool)
        shape = (len(problem.jobs), problem.slots)
        within = np.bincount(self.group, self.share, np.prod(shape)).reshape(shape).max(axis=1)
        self.trained: FloatArray = np.zeros(shape[0])
        np.add.at(self.trained, self.job, self.share * self.progress)
        accepted = np.clip(np.maximum(self.trained, within), 1e-12, 1.0)
        self.accepted = np.where(self.partial, 1.0, accepted)  # q

    def factor(self, scale: float) -> FloatArray:
        """(J,) the chance of a level over its share, once the job is accepted."""
        return np.where(self.partial, scale, 1.0 / self.accepted)

    def draw(self, scale: float, rng: np.random.Generator) -> tuple[IntArray, BoolArray]:
        """The entries drawn, and which jobs (J,) are accepted."""
        taken = rng.random(len(self.accepted)) < np.where(self.partial, 1.0, scale * self.accepted)
        share = self.share * self.factor(scale)[self.job]
        chosen = drawn(self.group, share, rng.random(len(np.unique(self.group))))
        return chosen[taken[self.job[chosen]]], taken

    def means(self, scale: float) -> FloatArray:
        """(J,) what each job makes on average once it is accepted."""
        return self.trained * self.factor(scale)

    def bounds(self, scale: float) -> Tails:
        """Chernoff's. A row that has W times the largest demand and mean load m is broken with
        probability at most exp(-W (ln(1 / m) - 1 + m)); progress of mean m and at most g in a slot
        is short by `SLACK` with probability at most exp(-SLACK^2 m / 2 g).
        """
        shape = (self.problem.slots, self.demand.shape[1])
        load, most = np.zeros((2, *shape))
        np.add.at(load, self.slot, scale * self.share[:, None] * self.demand)
        np.maximum.at(most, self.slot, self.demand)
        load = np.maximum(load, 1e-300)
        with np.errstate(divide="ignore"):
            exponent = (np.log(load) + 1.0 - load) / most
        steps = np.zeros(len(self.partial))
        np.maximum.at(steps, self.job, self.progress)
        short = np.exp(-(SLACK**2) * self.means(scale) / np.maximum(2.0 * steps, 1e-300))
        packing = np.where((most > 0.0) & (load < 1.0), np.exp(np.minimum(exponent, 0.0)), most > 0)
        return Tails(packing, np.where(steps > 0.0, short, 0.0))

    def measured(self, scale: float, draws: int, seed: int) -> Tails:
        """The same, as frequencies among so many draws; of covering, among those accepted."""
        rng = np.random.default_rng(seed)
        bounds = self.bounds(scale)
        broken, short = np.zeros_like(bounds.packing), np.zeros_like(bounds.covering)
        accepted = np.zeros_like(short)
        least = (1.0 - SLACK) * self.means(scale) * (1.0 - 1e-12)
        for _ in range(draws):
            chosen, taken = self.draw(scale, rng)
            load = np.zeros_like(broken)
            np.add.at(load, self.slot[chosen], self.demand[chosen])
            broken += load > 1.0 + 1e-9
            made = np.bincount(self.job[chosen], self.progress[chosen], len(short))
            accepted += taken
            short += taken & (made < least)
        return Tails(broken / draws, short / np.maximum(accepted, 1.0))

    def safe_scale(self) -> float:
        """The largest scale at which the packing bounds sum to at most `CHANCE`."""
        low, high = 0.0, 2.0
        for _ in range(40):
            middle = (low + high) / 2.0
            fits = middle <= 1.0 and self.bounds(middle).packing.sum() <= CHANCE
            low, high = (middle, high) if fits else (low, middle)
        return low


@bounded
@dataclass(frozen=True)
class RandomisedRounding(AllocationSolver):
    """The best of `draws` repaired draws from the relaxed plan, half of them at the safe scale.

    Repair goes slot by slot: drawn levels are placed, the largest first, and what does not fit or
    is not drawn gets what is left, by gain per demand. The best is repaired again
    without the jobs that came to no end.

    Guarantees:
        At the safe scale s a draw takes more than all machines together have with probability at
        most `CHANCE`; and a job makes less than 1 - `SLACK` of its mean with at most
        exp(-SLACK^2 m / 2 g). For utilities of unfinished work, a draw that does neither is worth
        (1 - SLACK) s of the relaxed plan (page.md). None of single machines, nor for
        other utilities; the bound is the relaxation's.

    Source:
        Yu, Liu, Wu, Ji, Bentley: *Toward Efficient Online Scheduling for Distributed Machine
        Learning Systems*, IEEE TNSE 2021 (arXiv 2108.02917), reconstructed from its abstract.
    """

    draws: Count = 4
    time_limit: Positive = 20.0  # seconds, of the relaxation

    online = False

    def _solve(self, problem: AllocationProblem, budget: Budget) -> Result[AllocationPlan]:
        rng = np.random.default_rng(budget.seed or 0)
        found = relaxed(problem, min(self.time_limit, budget.seconds))
        draws = Draws(problem, found)
        safe = draws.safe_scale()
        sizes = {
            j: replace(levels, progress=levels.progress / _COVER)
            for j, levels in enumerate(found.levels)
            if len(levels)
        }
        trials = []
        for draw in range(self.draws):
            chosen, _ = draws.draw(1.0 if draw % 2 == 0 else safe, rng)
            plan = repaired(draws, chosen, sizes)
            trials.append((chosen, plan, play(problem, plan).worth))
        chosen, best, worth = max(trials, key=lambda trial: trial[2].sum())
        out = np.flatnonzero((worth <= 0.0) & ~draws.partial).tolist()
        if out:
            plan = repaired(draws, chosen, sizes, out)
            best = plan if play(problem, plan).utility > worth.sum() else best
        return outcome(problem, best, bound=found.bound, scale=safe)


def repaired(
    draws: Draws, chosen: IntArray, sizes: Mapping[int, Sizes], out: Collection[int] = ()
) -> AllocationPlan:
    """A plan of the `chosen` entries and whatever fits beside them, without the jobs in `out`."""

    def fill(slot: Slot) -> None:
        slot.active = [j for j in slot.active if j in sizes and j not in out]
        if not slot.active:
            return
        wanted = []
        for i in chosen[draws.slot[chosen] == slot.now]:
            j, size = int(draws.job[i]), sizes[int(draws.job[i])]
            if j in slot.active:  # no more than what it has left
                least = min(draws.progress[i] / _COVER, 1.0 - slot.done[j]) * (1.0 - 1e-9)
                enough = np.flatnonzero(size.progress >= least)
                wanted.append((j, size.size[enough[np.argmin(size.size[enough, 0])]]))
        choices = Choices.of(slot, sizes)
        fitted(slot, choices, wanted, choices.gain / choices.demand.max(axis=1))

    return filled(draws.problem, fill)


BASELINES: Mapping[str, Callable[[], AllocationSolver]] = {
    "fifo": Fifo,
    "equal_share": EqualShare,
    "drf": DominantResourceFairness,
    "tetris": Tetris,
    "optimus": Optimus,
    "primal_dual": PrimalDual,
}
PLANNERS: Mapping[str, Callable[[], AllocationSolver]] = {
    **BASELINES,
    "gadget": Gadget,
    "rounding": RandomisedRounding,
    "smd": Smd,
    "exact": ExactAllocation,
}
