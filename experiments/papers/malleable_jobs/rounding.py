"""Locality-aware randomised rounding: a relaxed plan, drawn with scaled shares and repaired."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from agents.solver import Budget, Result
from envs.arrays import BoolArray, FloatArray, IntArray
from envs.bounds import Count, Positive, Share, bounded
from experiments.papers.malleable_jobs.gadget import Choices, drawn, fitted
from experiments.papers.malleable_jobs.problem import RESOURCES, AllocationPlan, AllocationProblem
from experiments.papers.malleable_jobs.relaxation import Relaxed, relaxed
from experiments.papers.malleable_jobs.sizes import AllocationSolver, Sizes, Slot, outcome

_COVER = 1.001  # to which the relaxation may round progress up


@dataclass(frozen=True, eq=False)
class Tails:
    """How probable it is that a draw breaks a packing row or leaves a covering row short."""

    packing: FloatArray  # (T, R) takes more of a resource than all machines together have
    covering: FloatArray  # (J,) a job, once accepted, makes less than 1 - slack of its mean


class Draws:
    """Draws of the jobs' levels from a relaxed plan with shares times `scale`; jobs independent.

    A job whose utility comes with its end is accepted with probability `scale q`. If it is, it has
    in every slot, independently, one of its levels with probability share / q, where q is the
    largest of its fraction trained and of its shares in a slot. Other jobs are always accepted and
    have each level with probability `scale share`. So either has it with that probability.
    """

    def __init__(self, problem: AllocationProblem, plan: Relaxed) -> None:
        order = np.lexsort((plan.level, plan.slot, plan.job))
        self.problem = problem
        self.job, self.slot, self.share = plan.job[order], plan.slot[order], plan.share[order]
        levels = list(zip(self.job, plan.level[order], strict=True))
        self.progress = np.array([plan.levels[j].progress[level] for j, level in levels])
        demand = np.array([plan.levels[j].demand[level] for j, level in levels])
        demand = demand.reshape(-1, len(RESOURCES))
        self.demand = demand / np.maximum(problem.capacity.sum(axis=0), 1e-9)
        self.group = self.job * problem.slots + self.slot
        self.partial = np.array([job.utility.partial for job in problem.jobs], bool)
        shape = (len(problem.jobs), problem.slots)
        within = np.bincount(self.group, self.share, np.prod(shape)).reshape(shape).max(axis=1)
        self.trained: FloatArray = np.zeros(len(problem.jobs))
        np.add.at(self.trained, self.job, self.share * self.progress)
        accepted = np.clip(np.maximum(self.trained, within), 1e-12, 1.0)
        self.accepted = np.where(self.partial, 1.0, accepted)  # q

    def draw(self, scale: float, rng: np.random.Generator) -> tuple[IntArray, BoolArray]:
        """The entries drawn, and which jobs (J,) are accepted."""
        taken = rng.random(len(self.accepted)) < np.where(self.partial, 1.0, scale * self.accepted)
        share = self.share * np.where(self.partial, scale, 1.0 / self.accepted)[self.job]
        chosen = drawn(self.group, share, rng.random(len(np.unique(self.group))))
        return chosen[taken[self.job[chosen]]], taken

    def means(self, scale: float) -> FloatArray:
        """(J,) what each job makes on average once it is accepted."""
        found: FloatArray = self.trained * np.where(self.partial, scale, 1.0 / self.accepted)
        return found

    def bounds(self, scale: float, slack: float) -> Tails:
        """Chernoff's. A row that has W times the largest demand and mean load m is broken with
        probability at most exp(-W (ln(1 / m) - 1 + m)); progress of mean m and at most g in a slot
        is short with probability at most exp(-slack^2 m / 2 g).
        """
        shape = (self.problem.slots, self.demand.shape[1])
        load, most = np.zeros(shape), np.zeros(shape)
        np.add.at(load, self.slot, scale * self.share[:, None] * self.demand)
        np.maximum.at(most, self.slot, self.demand)
        load = np.maximum(load, 1e-300)
        with np.errstate(divide="ignore"):
            exponent = (np.log(load) + 1.0 - load) / most
        steps = np.zeros(len(self.partial))
        np.maximum.at(steps, self.job, self.progress)
        short = np.exp(-(slack**2) * self.means(scale) / np.maximum(2.0 * steps, 1e-300))
        packing = np.where((most > 0.0) & (load < 1.0), np.exp(np.minimum(exponent, 0.0)), most > 0)
        return Tails(packing, np.where(steps > 0.0, short, 0.0))

    def measured(self, scale: float, slack: float, draws: int, seed: int) -> Tails:
        """The same, as frequencies among so many draws; of covering, among those accepted."""
        rng = np.random.default_rng(seed)
        bounds = self.bounds(scale, slack)
        broken, short = np.zeros_like(bounds.packing), np.zeros_like(bounds.covering)
        accepted = np.zeros_like(short)
        least = (1.0 - slack) * self.means(scale) * (1.0 - 1e-12)
        for _ in range(draws):
            chosen, taken = self.draw(scale, rng)
            load = np.zeros_like(broken)
            np.add.at(load, self.slot[chosen], self.demand[chosen])
            broken += load > 1.0 + 1e-9
            made = np.bincount(self.job[chosen], self.progress[chosen], len(short))
            accepted += taken
            short += taken & (made < least)
        return Tails(broken / draws, short / np.maximum(accepted, 1.0))

    def safe_scale(self, chance: float) -> float:
        """The largest scale at which the packing bounds sum to at most `chance`."""
        low, high = 0.0, 2.0
        for _ in range(40):
            middle = (low + high) / 2.0
            fits = middle <= 1.0 and self.bounds(middle, 0.5).packing.sum() <= chance
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
        most `chance`; and a job makes less than 1 - slack of its mean with at most
        exp(-slack^2 m / 2 g). For utilities of unfinished work, a draw that does neither is worth
        (1 - slack) s of the relaxed plan (docs/allocation.md). None of single machines, nor for
        other utilities; the bound is the relaxation's.

    Source:
        Yu, Liu, Wu, Ji, Bentley: *Toward Efficient Online Scheduling for Distributed Machine
        Learning Systems*, IEEE TNSE 2021 (arXiv 2108.02917), reconstructed from its abstract.
    """

    draws: Count = 4
    chance: Share = 0.5
    time_limit: Positive = 20.0  # seconds, of the relaxation

    online = False

    def _solve(self, problem: AllocationProblem, budget: Budget) -> Result[AllocationPlan]:
        rng = np.random.default_rng(budget.seed or 0)
        found = relaxed(problem, min(self.time_limit, budget.seconds))
        draws = Draws(problem, found)
        safe = draws.safe_scale(self.chance)
        sizes = {
            j: replace(levels, progress=levels.progress / _COVER)
            for j, levels in enumerate(found.levels)
            if len(levels)
        }
        trials = []
        for draw in range(self.draws):
            chosen, _ = draws.draw(1.0 if draw % 2 == 0 else safe, rng)
            trials.append((chosen, *repaired(draws, chosen, sizes, set())))
        chosen, best, worth = max(trials, key=lambda trial: trial[2].sum())
        out = {int(j) for j in np.flatnonzero((worth <= 0.0) & ~draws.partial)}
        if out:
            plan, again = repaired(draws, chosen, sizes, out)
            best = plan if again.sum() > worth.sum() else best
        return outcome(problem, best, bound=found.bound, scale=safe)


def repaired(
    draws: Draws, chosen: IntArray, sizes: dict[int, Sizes], out: set[int]
) -> tuple[AllocationPlan, FloatArray]:
    """A plan of the `chosen` entries and whatever fits beside them, without the jobs in `out`.

    With what it is worth to each job.
    """
    problem = draws.problem
    plan = AllocationPlan.empty(problem)
    history = np.zeros((len(problem.jobs), problem.slots + 1))
    for now in range(problem.slots):
        done = history[:, now]
        history[:, now + 1] = done
        slot = Slot(problem, now, done)
        slot.active = [j for j in slot.active if j in sizes and j not in out]
        if not slot.active:
            continue
        wanted = []
        for i in chosen[draws.slot[chosen] == now]:
            j, size = int(draws.job[i]), sizes[int(draws.job[i])]
            if j in slot.active:  # no more than what it has left
                least = min(draws.progress[i] / _COVER, 1.0 - done[j]) * (1.0 - 1e-9)
                enough = np.flatnonzero(size.progress >= least)
                k = enough[np.argmin(size.workers[enough])]
                wanted.append((j, int(size.workers[k]), int(size.servers[k])))
        choices = Choices.of(slot, sizes)
        fitted(slot, choices, wanted, choices.gain / choices.demand.max(axis=1))
        plan.workers[now], plan.servers[now] = slot.workers, slot.servers
        history[:, now + 1] += slot.made
    rows = np.minimum(history[:, 1:], 1.0)
    return plan, np.array([job.worth(row) for job, row in zip(problem.jobs, rows, strict=True)])
