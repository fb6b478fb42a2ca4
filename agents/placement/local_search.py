"""Local search over placements and orders together: the anytime planner."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Annotated, TypeAlias

import numpy as np
from annotated_types import Ge, Gt, Le, Lt

from agents.partition.dp import ContiguousDP
from agents.partition.search import PartitionSearch
from agents.placement.neighbourhood.levels import (
    Level,
    level_around,
    levels_of,
    list_schedule,
    splits,
)
from agents.placement.neighbourhood.walk import RuledWalker, Walker
from agents.solver import Budget, Result
from agents.step.grouping import GroupedProblem
from agents.step.incumbent import StepAndPartitionSolver, StepIncumbent, StepSolver
from agents.step.problems import Partition, PartitionPlanner, Planner, StepPlanning
from envs.arrays import IntArray
from envs.bounds import Count, Positive, bounded
from envs.errors import InputError
from envs.partition.problem import PartitionProblem
from envs.placement.generator import toy_pipeline
from envs.step.plans import Plan
from envs.step.price import Pricer
from envs.step.problem import StepProblem

_Plan: TypeAlias = tuple[IntArray, IntArray]  # device and order, both by piece or by operator

_LOOKS = 400  # times that a search looks at the clock
_SHORTEST, _LONGEST = 5e-4, 0.2  # seconds between two looks at the clock
_PATIENCE = 30.0  # seconds of search for a second of checking plans in full
_MOVES = 64  # moves proposed between two looks: to begin with, and under a deterministic limit
_SPLIT_GROUPS = 64  # groups of the graph that is split, where it is not fused for a level
_PRICINGS = 16  # times, on every level, that the best placement is tried in all orders
_REST = 10.0  # seconds of search, at least, for a second of that
_RULED = 0.7  # of the budget: placements alone are moved, where micro-batches make pipelines
_WORTH = 5.0  # seconds for a second of beginning it: a coarse level with less is left out
_MOVED = 0.1  # of the budget, for the memory moves of the best plan, if there may be any
_COLDEST = 1e-15  # seconds: a temperature, where the step takes no time


@bounded
@dataclass(frozen=True, eq=False, kw_only=True)
class LocalSearch(StepAndPartitionSolver):
    """Anneals the device of every operator and the order of all operators at the same time.

    A plan is changed by one *move* at a time: a unit (operators that are co-located) goes to
    another device, alone or with a cluster of its neighbours; two units change places; an operator
    moves up or down in the order and takes along those of its ancestors (descendants) that stand
    between. Operators on a critical path are proposed more often. A move is judged by
    `envs.step.incremental`, by simulating only the part of the step between its first and its
    last trace; the random number of the acceptance rule is drawn first, so that most moves are
    refused before that part is through. A worse plan is accepted with probability
    exp(-increase / temperature); the temperature falls geometrically over a cycle, and every
    cycle after the first starts, less hot, from the best plan so far. The budget is divided evenly
    into cycles of about `cycle_moves` moves for every operator, or is one shorter cycle.

    Memory that does not fit at the peak, activations included, is charged
    (`envs.step.live_memory`); the charge rises with every move while memory overflows and falls
    while it fits, so that the walk can cross placements that do not fit where those that do are far
    apart. The best plan is the one that overflows least, then the fastest. While none fits, the
    search goes on from one start after the other. On groups the peaks are those of the pieces, each
    with what it needs inside; where a plan then exceeds a peak on all operators, the room on that
    device is lowered by the excess.

    The search starts from the best of the fastest single device, a list schedule, contiguous splits
    (of work and of bytes; straight, as a loop, as a V) and the plans of `starts`, each in all
    orders that the problem allows. Where micro-batches make pipelines and memory does not bind, the
    larger part of the budget goes to placements alone, each priced in the order that the best rule
    gives it; the order is free from there on, and its best placement is tried in all orders again
    from time to time. Where only named orders are allowed, nothing but placements is searched, and
    the plan is in one of those orders. Large graphs are searched coarse to fine (`levels_of`):
    groups of a fused graph first, each level starting from the best plan of the one before, with an
    equal part of the budget.

    Several workers walk independently, each in a thread of its own, and share the best plan from
    cycle to cycle. Where plans may move activations, what becomes of those of each group is changed
    at the end, one group after another. Uses the budget to the end. With a deterministic limit (of
    proposed moves) progress is counted in moves, and the budget is only a ceiling.

    Guarantees:
        Never slower than the best single device that holds the step.

    Source:
        Kirkpatrick, Gelatt, Vecchi, "Optimization by simulated annealing", Science 220, 1983; the
        charge for memory as in Gendreau, Hertz, Laporte, "A tabu search heuristic for the vehicle
        routing problem", Management Science 40(10), 1994.

    Args:
        groups: groups of the fused graphs that large graphs are searched in first.
        operators: the largest graph that is searched operator by operator.
        cycle_moves: moves proposed for every operator of a level in one cycle.
        reheat: first temperature of the cycles after the first, as a fraction of `hot`.
        hot: first temperature of a cycle, as a fraction of the starting step time.
        cold: last temperature of a cycle, likewise.
        workers: walks at the same time.
        starts: planners whose plans are starts as well, where memory does not bind and while their
            share of the budget lasts.
        start_share: of the budget, for them.
        partitions: who searches partition problems.
        seed: of the random numbers.
    """

    groups: Sequence[Count] = (32, 64)
    operators: Annotated[int, Ge(0)] = 3000
    cycle_moves: Count = 7000
    reheat: Annotated[float, Gt(0.0), Le(1.0)] = 0.5
    hot: Positive = 0.01
    cold: Positive = 0.001
    workers: Annotated[int, Ge(1), Le(256)] = 1
    starts: Sequence[Planner] = (ContiguousDP(),)
    start_share: Annotated[float, Ge(0.0), Lt(1.0)] = 0.1
    partitions: PartitionPlanner = PartitionSearch()
    seed: int = 0

    def __post_init__(self) -> None:
        if self.cold > self.hot:
            raise InputError(f"{self.cold} is above hot = {self.hot}", field="cold")

    def compile(self, problem: StepProblem) -> None:
        _compile()
        for planner in self.starts:
            if isinstance(planner, StepSolver):
                planner.compile(problem)

    def improve(
        self, incumbent: StepIncumbent, budget: Budget, plans: Sequence[IntArray] = ()
    ) -> int:
        """Search from the best plan of `incumbent` until it is `budget.seconds` old.

        Placements `plans` (N,), the best first, are starts, too. A graph that is too large to be
        searched operator by operator is in the end searched in groups that its placement does not
        divide. Returns the moves judged; `Budget.evaluations` counts proposed moves.
        """
        _compile()
        return self._search(incumbent, budget, plans, None)

    def _partition(self, problem: PartitionProblem, budget: Budget) -> Result[Plan]:
        """By `partitions`."""
        return self.partitions.solve(Partition(problem), budget)

    def _plan(self, incumbent: StepIncumbent, budget: Budget) -> str:
        """`Budget.evaluations` counts proposed moves."""
        judged = self._search(incumbent, budget, (), self.starts)
        incumbent.evaluations += judged  # after those that the search counted itself
        return ""

    def _search(
        self,
        incumbent: StepIncumbent,
        budget: Budget,
        plans: Sequence[IntArray],
        starts: Sequence[Planner] | None,  # None: from the best plan of `incumbent`
    ) -> int:
        """The moves judged."""
        search = _Search(self, incumbent, budget)
        problem = incumbent.problem
        search.offer_first(plans)
        levels = levels_of(problem, self.groups, self.operators)
        search.split(levels, plans)
        if starts is None:
            if incumbent.plan is not None and levels[-1].problem is not problem:
                levels.append(level_around(problem, incumbent.plan, self.operators))
        elif not search.binds(levels[0]):
            for planner in starts:
                search.ask(planner, self.start_share)
        search.run_all(levels)
        return search.judged


class _Search:
    """One search: what is spent, and the room for state as far as it is known."""

    def __init__(self, settings: LocalSearch, incumbent: StepIncumbent, budget: Budget) -> None:
        self.settings = settings
        self.incumbent = incumbent
        self.budget_s = budget.seconds
        self.limit = budget.evaluations
        self.room = incumbent.problem.capacity.copy()
        self.proposed = 0
        self.judged = 0
        self.searched = 0  # levels
        self.started_s = 0.0  # that the last of them took to begin
        self.seeds: list[
            tuple[tuple[float, float], _Plan]
        ] = []  # overflow, seconds; the best first
        self.seeded: Level | None = None  # where `seeds` are of, until a walk begins from them
        self.splits: tuple[IntArray, ...] = ()  # (N,) devices each
        self.offered = np.inf  # seconds, on the present level, of the last plan checked in full
        self.next_offer = 0.0  # seconds since the start

    @property
    def progress(self) -> float:
        """The part of the budget, or of the limit, that is spent; from 1 on the search is over."""
        spent = self.incumbent.seconds / self.budget_s if self.budget_s > 0.0 else 1.0
        if self.limit is None or spent >= 1.0:
            return spent
        return self.proposed / self.limit if self.limit else 1.0

    def offer_first(self, plans: Sequence[IntArray]) -> None:
        """Offer `plans` (N,) until one fits, else the fastest device that holds everything."""
        problem = self.incumbent.problem
        for device in plans:
            if self.incumbent.plan is None:
                self.incumbent.offer(device)
        seconds = problem.op_seconds.sum(axis=0)
        seconds[problem.graph.state_bytes.sum() > problem.capacity] = np.inf
        for device in np.argsort(seconds, kind="stable").tolist():
            if np.isfinite(seconds[device]) and self.incumbent.plan is None:
                self.incumbent.offer(np.full(len(problem.op_seconds), device, dtype=np.int64))

    def ask(self, planner: Planner, share: float) -> None:
        """Offer the plan of another planner, made in what is left of a share of the budget.

        A planner gets no turn where less time is left than it took to begin.
        """
        left = share * self.budget_s - self.incumbent.seconds
        if left > self.incumbent.seconds and not self.incumbent.optimal:
            asked = StepPlanning(self.incumbent.problem)
            found = planner.solve(asked, Budget(left, self.limit)).solution
            if found is not None:
                self.incumbent.offer_plan(found)

    def split(self, levels: list[Level], plans: Sequence[IntArray]) -> None:
        """Start from `plans` and from splits of the finest groups of `levels`, too."""
        problem = self.incumbent.problem
        fused = [level.grouped for level in levels if level.problem is not problem]
        finest = fused[-1] if fused else GroupedProblem.of(problem, _SPLIT_GROUPS)
        self.splits = (*plans, *splits(finest))

    def run_all(self, levels: list[Level]) -> None:
        """Search all levels in what is left of the budget, less a share for memory moves.

        Where micro-batches make pipelines and memory does not bind, a rule's order for every
        placement is worth more, to begin with, than an order that one placement hands on to the
        next; where memory binds, the order must be free to make room.
        """
        problem, begun = self.incumbent.problem, self.progress
        ruled = 0.0 if problem.any_order else 1.0
        if problem.any_order and problem.graph.num_micro_batches > 1 and not self.binds(levels[0]):
            ruled = _RULED
        stages: list[tuple[Level, type[Walker], float]] = []
        if ruled > 0.0:
            stages += [(level, RuledWalker, ruled / len(levels)) for level in levels]
        if ruled < 1.0:
            free = levels if ruled == 0.0 else levels[-1:]
            stages += [(level, Walker, (1.0 - ruled) / len(free)) for level in free]
        until, left = begun, 1.0 - begun
        left *= 1.0 - _MOVED if self.incumbent.may_move else 1.0
        for level, kind, part in stages:
            until += left * part
            left_s = (until - self.progress) * self.budget_s
            short = self.limit is None and left_s < _WORTH * self.started_s
            if short and level is not levels[-1] and self.searched > 0:
                continue
            if self.searched == 0 or self.incumbent.plan is None or self.progress < until:
                self.run(level, kind, min(until, 1.0))
                self.searched += 1
        self.incumbent.improve_moves(self.budget_s)

    def binds(self, level: Level) -> bool:
        """Whether memory rules out the fastest of the plans to start from; the best is offered."""
        if not self.seeds:
            self.kind = Walker
            self._start(level, Pricer(level.problem))
            self.seeded = level
            (over, _), best = self.seeds[0]
            if over == 0.0:
                self.incumbent.offer(*level.down(*best))
        overflow, _ = min(self.seeds, key=lambda seed: seed[0][::-1])[0]
        return overflow > 0.0

    def run(self, level: Level, kind: type[Walker], until: float) -> None:
        """Search `level` with walkers of a `kind` until so much of the budget is spent."""
        self.kind = kind
        settings, begin = self.settings, self.progress
        self.room = self.incumbent.problem.capacity.copy()
        pricer = Pricer(level.problem)
        began = self.incumbent.seconds
        start = self._start(level, pricer)
        self.started_s = self.incumbent.seconds - began
        scale = max(start.best_seconds, _COLDEST)
        if not np.isfinite(scale):
            scale = max(start.seconds, _COLDEST)
        walkers = [start]
        while len(walkers) < settings.workers:
            walkers.append(self._walker(level, *start.plan, scale, len(walkers)))
        start.set_scale(scale)
        self.offered, self.next_offer = np.inf, 0.0
        self._offer(level, walkers)
        moves, before = _MOVES, self.proposed
        hot, heated, cooled = settings.hot, begin, until
        priced, next_pricing = begin, 0.0
        with ThreadPoolExecutor(settings.workers) as pool:
            while (progress := self.progress) < until:
                done = (self.proposed - before) / len(walkers)
                cycle = settings.cycle_moves * level.problem.graph.num_operators
                if done > 0.0 and (heated == begin or progress >= cooled):
                    if progress >= cooled:
                        best = min(walkers, key=lambda walker: walker.best_seconds)
                        for walker in walkers:
                            walker.start_from(*best.best)
                        hot, heated = max(settings.hot * settings.reheat, settings.cold), progress
                    left = done * (until - heated) / max(progress - begin, 1e-9)
                    cooled = heated + (until - heated) / max(1.0, round(left / cycle))
                place = min((progress - heated) / (cooled - heated), 1.0)
                if self.limit is not None:
                    moves = max(1, min(_MOVES, (self.limit - self.proposed) // len(walkers)))
                began = self.incumbent.seconds
                self._walk(pool, walkers, scale * hot * (settings.cold / hot) ** place, moves)
                if self.limit is None:
                    spent = max(self.incumbent.seconds - began, 1e-6)
                    wanted = min(max(self.budget_s / _LOOKS, _SHORTEST), _LONGEST)
                    moves = max(1, int(moves * min(4.0, wanted / spent)))
                self._offer(level, walkers)
                began = self.incumbent.seconds
                wait = self.limit is None and began < next_pricing
                if progress - priced > (until - begin) / _PRICINGS and not wait:
                    priced = progress
                    self._price(level, pricer, walkers)
                    ended = self.incumbent.seconds
                    next_pricing = ended + _REST * (ended - began)
        self._offer(level, walkers, last=True)
        self.judged += sum(walker.judged for walker in walkers)

    def _walk(
        self, pool: ThreadPoolExecutor, walkers: list[Walker], temperature: float, moves: int
    ) -> None:
        others = [pool.submit(walker.run, temperature, moves) for walker in walkers[1:]]
        walkers[0].run(temperature, moves)
        for other in others:
            other.result()
        self.proposed += moves * len(walkers)

    def _walker(
        self, level: Level, device: IntArray, order: IntArray, scale: float, number: int
    ) -> Walker:
        seed = np.random.SeedSequence([self.settings.seed, number]).generate_state(1, np.uint64)
        return self.kind(level, device, order, self.room, scale, int(seed[0]))

    def _start(self, level: Level, pricer: Pricer) -> Walker:
        """A walker at the best of the plans to start `level` from, in the best of their orders."""
        walker: Walker | None = None
        seeds: list[tuple[tuple[float, float], _Plan]] = []
        starts = self._starts(level)
        if level is self.seeded:
            seeds, self.seeded = self.seeds, None
            walker = self._walker(level, *seeds[0][1], 1.0, 0)
            starts = self._known(level)
        for device, own in starts:
            for order in (own, *self._orders(pricer, device)):
                if walker is None:
                    walker = self._walker(level, device, order, 1.0, 0)
                else:
                    walker.start_from(device, order)
                seeds.append(((walker.overflow, walker.seconds), (device, order)))
        assert walker is not None
        self.seeds = sorted(seeds, key=lambda seed: seed[0])
        walker.start_from(*walker.best)
        return walker

    def _starts(self, level: Level) -> Iterator[_Plan]:
        """Plans of the pieces of `level`, whether they fit or not."""
        units = level.units
        first = np.asarray(units.allowed.argmax(axis=1), dtype=np.int64)[units.of]
        own = np.arange(len(first))
        yield first, own
        yield from self._known(level)
        if self.searched > 0:
            return
        listed = list_schedule(level, self.room)
        if listed is not None:
            yield listed
        for split in self.splits:
            device = level.placed(split)
            if device is not None:
                yield device, own

    def _known(self, level: Level) -> Iterator[_Plan]:
        """The best plan so far."""
        known, units = self.incumbent.plan, level.units
        if known is not None:
            placed = level.up(known.placement.device, known.order)
            if units.allowed[units.of, placed[0]].all():
                yield placed

    def _orders(self, pricer: Pricer, device: IntArray) -> Iterator[IntArray]:
        """The orders that are allowed for a placement (K,), where the walk does not choose one."""
        for rule in pricer.rules if self.kind is Walker else ():
            yield pricer.price(device, (rule,)).order

    def _price(self, level: Level, pricer: Pricer, walkers: list[Walker]) -> None:
        """Go on from another start while no plan fits, else from the best in a better order."""
        best = min(walkers, key=lambda walker: (walker.best_overflow, walker.best_seconds))
        if best.best_overflow > 0.0:
            for walker in walkers:
                self.seeds.append(self.seeds.pop(0))
                walker.start_from(*self.seeds[0][1])
            return
        before = best.best_seconds
        device, stands = best.best[0], best.plan
        for order in self._orders(pricer, device):
            best.start_from(device, order)
        best.start_from(*(best.best if best.best_seconds < before else stands))

    def _offer(self, level: Level, walkers: list[Walker], *, last: bool = False) -> None:
        """Check the best plan of the walkers in full, unless that took too much time of late."""
        best = min(walkers, key=lambda walker: walker.best_seconds)
        began = self.incumbent.seconds
        wait = self.limit is None and began < self.next_offer
        if best.best_seconds >= self.offered or (wait and not last):
            return
        self.offered = best.best_seconds
        device, order = level.down(*best.best)
        excess = self.incumbent.offer(device, order if self.kind is Walker else None)
        if excess.any():
            self.incumbent.offer(device)
            self.room = best.less_room(excess)
            self.offered = np.inf
            for walker in walkers:
                walker.restrict(self.room)
        ended = self.incumbent.seconds
        self.next_offer = ended + _PATIENCE * (ended - began)


@cache
def _compile() -> None:
    """Have the kernels compiled, once on a machine, before the clock starts."""
    problem = toy_pipeline()
    idle = _Search(LocalSearch(), StepIncumbent(problem), Budget(evaluations=1))
    idle.offer_first(())
    for number, kind in enumerate((Walker, RuledWalker)):
        idle.run(levels_of(problem, (), problem.graph.num_operators)[0], kind, number + 1.0)
