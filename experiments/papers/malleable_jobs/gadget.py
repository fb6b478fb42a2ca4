"""GADGET and SMD: greedy over slots, each slot by a linear program over sizes, and rounding."""

from __future__ import annotations

import math
import typing
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated

import numpy as np
from annotated_types import Ge, Le

from agents.cluster.rule_numbers import read_numbers
from agents.linear_program import LinearProgram
from agents.solver import Budget, Result
from envs.arrays import FloatArray, IntArray
from envs.bounds import Count, NonNegative, bounded
from experiments.papers.malleable_jobs.problem import AllocationPlan, AllocationProblem
from experiments.papers.malleable_jobs.slots import Sizes, Slot, SlotBySlot

Number = Annotated[float, Ge(-10.0), Le(10.0)]
_LIMIT_S = 60.0  # of one slot's program
_NEXT = 0.9  # of the workers for which there was no room: what is tried next
_FIXED = 1e-9  # of the parameters of a sum of ratios: what counts as a fixed point


@bounded
@dataclass(frozen=True)
class GainWeights:
    """How a slot's gains are weighed against each other; as they stand here, GADGET's own.

    Other weights are learned by `meshwright train task=gains`.
    """

    part: NonNegative = 1.0  # exponent of the part made of what is left
    done: Number = 0.0  # log weight of what is done
    slack: Number = 0.0  # of the part of the window left over, if every slot is like this one
    wait: Number = 0.0  # exponent of the slots left, where work counts unfinished
    partial: Number = 0.0  # log weight of such work


OWN = GainWeights()


def gains(slot: Slot, j: int, made: FloatArray, weights: GainWeights = OWN) -> FloatArray:
    """What progress `made` (C,) in a slot is worth to job j.

    To a job whose work counts unfinished: what its utility grows by. To others, which have it only
    when they end, the part of what is left that is made of the utility they will have if every
    slot from now on is like this one; 0 if they will not end in their window.
    """
    job, done = slot.problem.jobs[j], float(slot.done[j])
    left = slot.problem.windows[j].stop - slot.now
    if job.utility.partial:
        before = job.utility.of(min(done, 1.0))
        weight = left**weights.wait * math.exp(weights.partial)
        return np.array(
            [weight * (job.utility.of(min(done + more, 1.0)) - before) for more in made]
        )
    rest = 1.0 - done
    slots = np.ceil(rest / np.maximum(made, 1e-9) - 1e-9)
    ending = slots <= left
    worth = [
        job.utility.at(int(slot.now + more - job.arrival)) if ends else 0.0
        for ends, more in zip(ending, slots, strict=True)
    ]
    part = np.minimum(made / rest, 1.0) ** weights.part
    slack = np.where(ending, 1.0 - slots / left, 0.0)
    return np.array(worth) * part * np.exp(weights.done * done + weights.slack * slack)


@dataclass(frozen=True, eq=False)
class Choices:
    """K sizes of the jobs of a slot, those of one job in a row, and what they are worth there."""

    job: IntArray  # (K,)
    size: IntArray  # (K, 2) workers and servers
    gain: FloatArray  # (K,) positive
    pace: FloatArray  # (K,) time of an iteration, of the job's shortest
    demand: FloatArray  # (K, R) part of the capacity of all machines together
    weights: GainWeights  # by which the gain is

    @staticmethod
    def of(slot: Slot, sizes: Mapping[int, Sizes], weights: GainWeights = OWN) -> Choices:
        """Those that gain something."""
        parts = []
        for j in slot.active:
            own = sizes[j]
            gain, pace = gains(slot, j, own.progress, weights), own.size[:, 0] / own.progress
            pace /= pace.min(initial=np.inf)
            columns = (np.full(len(gain), j), own.size, gain, pace, own.demand)
            parts.append(np.column_stack(columns)[gain > 0.0])
        table = np.concatenate(parts)
        whole, demand = table[:, :3].astype(np.int64), table[:, 5:] / slot.problem.total
        return Choices(whole[:, 0], whole[:, 1:], table[:, 3], table[:, 4], demand, weights)

    def starts(self) -> IntArray:
        """The first choice of each job."""
        return np.flatnonzero(np.diff(self.job, prepend=-1))

    def knapsack(
        self, worth: FloatArray, exact: bool = False
    ) -> tuple[FloatArray, FloatArray, float]:
        """Shares (K,) of most worth, at most one a job, with prices (R,) and a proved bound.

        The bound is the prices' dual value, so it holds however exact the solver was. Whole shares
        come without prices.
        """
        first = self.starts()
        count = np.diff(first, append=len(self.job))
        program = LinearProgram()
        share = program.add_columns(len(self.job), cost=-worth, upper=1.0, integer=exact)
        at = np.arange(int(count.max()))
        there = at < count[:, None]
        program.add_rows(len(first), [(np.where(there, first[:, None] + at, 0), there)], upper=1.0)
        rows = self.demand.T
        program.add_rows(len(rows), [(np.broadcast_to(share, rows.shape), rows)], upper=1.0)
        solver = program.solver(time_limit=_LIMIT_S)
        solver.run()
        solution = solver.getSolution()
        found = np.clip(np.asarray(solution.col_value), 0.0, 1.0)
        if exact:
            return np.round(found), np.zeros(len(rows)), np.inf
        prices = np.maximum(-np.asarray(solution.row_dual)[len(first) :], 0.0)
        reduced = np.maximum.reduceat(worth - self.demand @ prices, first)
        return found, prices, float(prices.sum() + np.maximum(reduced, 0.0).sum())


def drawn(group: IntArray, share: FloatArray, chance: FloatArray) -> IntArray:
    """At most one entry of each group: that whose part of the shares holds the group's chance.

    `group` (N,) has equal numbers in a row, `chance` is in [0, 1) for each of them in that order.
    """
    first = np.flatnonzero(np.diff(group, prepend=-1))
    count = np.diff(first, append=len(group))
    until = np.cumsum(share)
    until -= np.repeat(until[first] - share[first], count)
    reached = np.flatnonzero(until > np.repeat(chance, count))
    found: IntArray = reached[np.diff(group[reached], prepend=-1) != 0]
    return found


@bounded
@dataclass
class Gadget(SlotBySlot):
    """GADGET: in every slot the sizes that add most utility, by an LP, `draws` roundings, repair.

    A ring's embedding enters by the least that its size takes of machines and NICs. Chosen sizes
    are placed, the largest first; what does not fit, and what is left, goes to the sizes with the
    largest gain less price that do fit.

    Guarantees:
        Where the work of all jobs counts unfinished (`LogUtility`): no plan, be the future known,
        is worth more than the utility plus the bounds of all slots' LPs. So
        `guarantee` = alpha / (1 + alpha) of the optimum, if the slots gain alpha of their bounds
        (page.md). None for other utilities, nor for learned weights.

    Source:
        Yu et al., *GADGET: Online Resource Optimization for Scheduling Ring-All-Reduce Learning
        Jobs*, INFOCOM 2022 (arXiv 2202.01158), reconstructed from its abstract.
    """

    draws: Count = 4
    weights: str | Mapping[str, float] = field(default_factory=dict)  # or a file of them

    def __post_init__(self) -> None:
        given = self.weights
        if isinstance(given, str):
            hints = typing.get_type_hints(GainWeights, include_extras=True)
            given = read_numbers(given, asdict(OWN), hints)
        self._weights = GainWeights(**given)

    def _solve(self, problem: AllocationProblem, budget: Budget) -> Result[AllocationPlan]:
        self._rng, self._bounds = np.random.default_rng(budget.seed or 0), 0.0
        self._sizes = dict[int, Sizes]()
        result = super()._solve(problem, budget)
        if self._weights != OWN or not all(job.utility.partial for job in problem.jobs):
            return result
        most = result.value + self._bounds
        return replace(result, bound=most, figures={"guarantee": result.value / most})

    def fill(self, slot: Slot) -> None:
        for j in slot.active:
            if j not in self._sizes:
                self._sizes[j] = Sizes.of(slot.problem, slot.problem.jobs[j])
        choices = Choices.of(slot, self._sizes, self._weights)
        if not len(choices.job):
            return
        share, prices, bound = choices.knapsack(choices.gain)
        share = self.shares(choices, share)
        best, kept, jobs = -1.0, slot, len(choices.starts())
        draws = [np.full(jobs, 0.5), *self._rng.random((self.draws - 1, jobs))]
        for chosen in {tuple(drawn(choices.job, share, chance)): None for chance in draws}:
            trial = Slot(slot.problem, slot.now, slot.done)
            sizes = [(choices.job[k], choices.size[k]) for k in chosen]
            worth = fitted(trial, choices, sizes, choices.gain - choices.demand @ prices)
            if worth > best:
                best, kept = worth, trial
        vars(slot).update(vars(kept))
        self._bounds += bound

    def shares(self, choices: Choices, relaxed: FloatArray) -> FloatArray:
        """Shares (K,) of the choices; those of the relaxation are given."""
        return relaxed


def fitted(
    slot: Slot, choices: Choices, chosen: Sequence[tuple[int, IntArray]], score: FloatArray
) -> float:
    """Fills an empty slot: the `chosen` jobs and sizes (2,) that fit, the largest first.

    Then the choices of the highest `score` (K,) that still fit. Returns what the slot gains.
    """
    worth = dict.fromkeys(slot.active, 0.0)

    def attempt(j: int, size: IntArray, least: float) -> bool:
        place, made = slot.find(j, *size)
        more = float(gains(slot, j, np.array([made]), choices.weights)[0]) if made > 0.0 else least
        if more > least:
            slot.put(j, place, made)
            worth[j] = more
        return more > least

    for j, size in sorted(chosen, key=lambda one: -one[1][0]):
        attempt(j, size, -1.0)
    limit = dict.fromkeys(worth, np.inf)
    left = slot.left.sum(axis=0) / slot.problem.total
    for k in np.argsort(-score, kind="stable"):
        j, size = choices.job[k], choices.size[k]
        if choices.gain[k] <= worth[j] or size[0] > limit[j]:
            continue
        if not slot.made[j] and (choices.demand[k] > left + 1e-9).any():
            continue
        if attempt(j, size, worth[j]):
            left = slot.left.sum(axis=0) / slot.problem.total
        else:
            limit[j] = _NEXT * size[0]
    return sum(worth.values())


def sum_of_ratios(
    choices: Choices, exact: bool = False, rounds: int = 20
) -> tuple[FloatArray, float, bool]:
    """Shares (K,) that make `sum of N / D` large, that sum, and whether they are a fixed point.

    N = sum of share x gain x pace and D = sum of share x pace, per job, where a job that waits has
    pace 1 and no gain: so a job with one size has its gain. With u = 1 / D and beta = N / D of the
    last shares, the next are those of the knapsack with worth `u (N - beta D)`. Newton's step of
    (beta, u) is halved when it does not bring the two sides of these equations closer. Of all
    shares met, the best are returned.

    At a fixed point of exact knapsacks, no choice of sizes has more than rho times its sum, where
    rho is the largest ratio of a pace to that of the fixed point over the smallest one.
    """
    first = choices.starts()
    owner = np.repeat(np.arange(len(first)), np.diff(first, append=len(choices.job)))
    beta, u = np.zeros(len(first)), np.ones(len(first))
    kept, most, step, apart = np.zeros(len(owner)), 0.0, 1.0, np.inf
    gain, slower = choices.gain * choices.pace, choices.pace - 1.0
    for _ in range(rounds):
        share, _, _ = choices.knapsack(u[owner] * (gain - beta[owner] * slower), exact)
        above = np.add.reduceat(share * choices.gain * choices.pace, first)
        below = 1.0 + np.add.reduceat(share * slower, first)
        ratios = float((above / below).sum())
        if ratios > most:
            kept, most = share, ratios
        error = np.concatenate([(above - beta * below) / choices.gain.max(), 1.0 - u * below])
        left = float(np.abs(error).max())
        if left < _FIXED:
            return kept, most, True
        step = 1.0 if left < apart else step / 2.0
        apart = left
        beta, u = beta + step * (above / below - beta), u + step * (1.0 / below - u)
    return kept, most, False


@bounded
@dataclass
class Smd(Gadget):
    """SMD: in every slot the sizes with the largest sum of ratios of gain, as far as they fit.

    The knapsack over sizes and resources is relaxed and its shares are rounded, or, if `exact`, it
    is solved in whole numbers.

    Guarantees:
        As `Gadget`, with the alpha of its own choices. A fixed point of exact knapsacks has at
        least 1 / rho of the largest sum (`sum_of_ratios`); Newton's method may end at another.

    Source:
        Yu, Wu, Ji, Liu: *A Sum-of-Ratios Multi-Dimensional-Knapsack Decomposition for DNN Resource
        Scheduling*, INFOCOM 2021 (arXiv 2105.13855), reconstructed from its abstract; parameters
        after Jong, *An Efficient Global Optimization Algorithm for Nonlinear Sum-of-Ratios
        Problem*, Optimization Online 2012, whose convexity does not hold for whole numbers.
    """

    exact: bool = False
    rounds: Count = 8

    def shares(self, choices: Choices, relaxed: FloatArray) -> FloatArray:
        return sum_of_ratios(choices, self.exact, self.rounds)[0]
