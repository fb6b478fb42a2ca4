"""Drift plus penalty: least time under budgets that hold on average, slot by slot.

A virtual queue per budget grows by what a slot spends beyond it and shrinks by what is left. In a
slot the action is taken with least V * time + sum of queue * cost. Whatever happens, the average
cost is at most budget + queue(T) / T; where states are independent and alike, the average time is
at most B / V above the optimum, B = sum of max (cost - budget)^2 / 2 (Neely, Stochastic Network
Optimization with Application to Communication and Queueing Systems, 2010, chapter 4).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from agents.linear_program import LinearProgram
from envs.arrays import FloatArray
from envs.errors import InputError
from experiments.papers.dynamic_parallelism.batch_time import (
    COSTS,
    Batch,
    BatchTime,
    GroupPlan,
    Groups,
)

FREE = np.zeros(len(COSTS))
UNLIMITED = np.full(len(COSTS), np.inf)
_CLOSE = 1e-9  # relative: not better, not above a limit


def search(
    batch: BatchTime,
    starts: Iterable[Groups] = (),
    *,
    price: FloatArray = FREE,
    limit: FloatArray = UNLIMITED,
) -> Batch:
    """The groups with least seconds + price @ cost, of those met whose costs keep to `limit`.

    It goes downhill from each of `starts` and from the best worker alone. Where nothing keeps to
    the limit, the least excess counts.
    """

    def value(groups: Groups) -> tuple[float, float]:
        found = batch.best(groups)
        excess = max(0.0, float((found.cost / limit).max()) - 1.0 - _CLOSE)
        return excess, found.seconds + float(price @ found.cost)

    alone: Groups
    best = alone = min((((worker,),) for worker in range(batch.num_workers)), key=value)
    for groups in dict.fromkeys((alone, *starts)):
        now, least, better = groups, value(groups), True
        while better:
            better = False
            for other in neighbours(now, batch.num_workers, len(batch.layers.seconds)):
                found = value(other)
                if found < (least[0], least[1] * (1.0 - _CLOSE)):
                    now, least, better = other, found, True
                    break
        best = min(best, now, key=value)
    return batch.best(best)


def neighbours(groups: Groups, workers: int, longest: int) -> Iterator[Groups]:
    """Groups that differ by the place of one worker or two, a merger or a split.

    None has more than `longest` workers. A worker that is in no group has nothing to do.
    """
    for worker in range(workers):
        rest = tuple(left for group in groups if (left := tuple(w for w in group if w != worker)))
        if rest:
            yield from {_sorted(rest)} - {groups}
        for k, group in enumerate(rest):
            for place in range(len(group) + 1 if len(group) < longest else 0):
                yield _sorted((*rest[:k], (*group[:place], worker, *group[place:]), *rest[k + 1 :]))
        yield _sorted((*rest, (worker,)))
    for one in groups:
        others = tuple(group for group in groups if group != one)
        for k, two in enumerate(others):
            if len(one) + len(two) <= longest:
                yield _sorted((*others[:k], one + two, *others[k + 1 :]))
        for place in range(1, len(one)):
            yield _sorted((*others, one[:place], one[place:]))
    for pair in itertools.combinations(range(workers), 2):
        swapped = dict(zip(pair, pair[::-1], strict=True))
        yield _sorted(tuple(tuple(swapped.get(w, w) for w in group) for group in groups))


def _sorted(groups: Groups) -> Groups:
    return tuple(sorted(groups))


# What a policy does with a slot, given the queues (K,) and the groups of the slot before, if any.
Policy = Callable[[BatchTime, FloatArray, Sequence[Groups]], Batch]


def static(plan: GroupPlan) -> Policy:
    """The same plan in every slot."""
    return lambda batch, queue, before: batch.of(plan)


def greedy(limit: FloatArray) -> Policy:
    """The fastest plan of every slot by itself, within `limit` (K,) in each."""
    return lambda batch, queue, before: search(batch, before, limit=limit)


def lyapunov(weight: float, scale: float, budget: FloatArray) -> Policy:
    """Drift plus penalty with groups that are searched for.

    `weight` is V where time counts in `scale` seconds, and queues and costs in budgets of a slot,
    `budget` (K,).
    """
    return lambda batch, queue, before: search(
        batch, before, price=queue / budget * (scale / weight)
    )


@dataclass(frozen=True, eq=False)
class Played:
    """What a policy did in T slots."""

    batches: tuple[Batch, ...]
    spent: FloatArray  # (T, K) budgets of a slot
    queue: FloatArray  # (T, K) budgets of a slot, after each
    moving: (
        FloatArray  # (T,) seconds to bring parameters to where they were not; in no batch's time
    )

    @property
    def seconds(self) -> FloatArray:
        """(T,) of the batches."""
        return np.array([batch.seconds for batch in self.batches])


def play(policy: Policy, slots: Sequence[BatchTime], budget: FloatArray) -> Played:
    """Let a policy decide slot after slot; `budget` (K,), inf where there is none."""
    queue = np.zeros(len(budget))
    batches: list[Batch] = []
    spent, queues, moving = [], [], []
    for slot in slots:
        before = [batch.plan for batch in batches[-1:]]
        batch = policy(slot, queue, [plan.groups for plan in before])
        moving.append(sum(slot.moving(plan, batch.plan) for plan in before))
        spent.append(batch.cost / budget)
        queue = np.maximum(queue + spent[-1] - 1.0, 0.0)
        queues.append(queue)
        batches.append(batch)
    return Played(tuple(batches), np.array(spent), np.array(queues), np.array(moving))


def best_kept(
    slots: Sequence[BatchTime], budget: FloatArray, played: Sequence[Played]
) -> GroupPlan:
    """Of all plans that any policy had in some slot, the one that should have been kept.

    Least average seconds, of those whose average costs keep to `budget`.
    """
    plans = {batch.plan: None for own in played for batch in own.batches}

    def kept(plan: GroupPlan) -> tuple[float, float]:
        batches = [slot.of(plan) for slot in slots]
        spent = np.mean([batch.cost / budget for batch in batches], axis=0)
        return max(0.0, float(spent.max()) - 1.0), float(np.mean([b.seconds for b in batches]))

    return min(plans, key=kept)


def even(batch: BatchTime) -> GroupPlan:
    """Plain data parallelism: every worker has all layers and an equal share."""
    workers = range(batch.num_workers)
    ends = ((len(batch.layers.seconds),),) * len(workers)
    share = batch.samples / len(workers)
    return GroupPlan(tuple((worker,) for worker in workers), ends, (share,) * len(workers))


_ROUNDS = 30
_GAIN = 1e-5  # relative: what a further round has to bring
_SECONDS = 60.0  # of HiGHS


@dataclass(frozen=True, eq=False)
class Clairvoyant:
    """Least average seconds of slots whose plans are mixed, costs within the budget on average.

    `bound` is what no policy that keeps to the budget is below, where the search found the best
    plan at the final prices in every slot; otherwise it is an estimate of that.
    """

    seconds: float
    bound: float


def clairvoyant(
    slots: Sequence[BatchTime], budget: FloatArray, known: Sequence[Sequence[Batch]]
) -> Clairvoyant:
    """Column generation: plans of each slot are added that pay at the prices of the program.

    Args:
        slots: T of them.
        budget: (K,) of a slot on average, inf where there is none.
        known: plans of each slot to begin with, at least one.

    Raises:
        InputError: the budgets are too small for any plans found.
    """
    columns = [list(batches) for batches in known]
    for _ in range(_ROUNDS):
        seconds, price, missing = _mixed(columns, budget)
        reduced = gained = 0.0
        for slot, batches in zip(slots, columns, strict=True):
            old = min(batches, key=lambda batch: _priced(batch, price))
            new = search(slot, (old.plan.groups,), price=price)
            gain = _priced(old, price) - _priced(new, price)
            reduced += _priced(old, price) - max(0.0, gain)
            gained += max(0.0, gain)
            if gain > 0.0:
                batches.append(new)
        limited = np.isfinite(budget)
        bound = reduced / len(slots) - float(price[limited] @ budget[limited])
        if gained <= _GAIN * abs(reduced):
            break
    if missing:
        raise InputError("no plans keep to the budgets on average", field="budget")
    return Clairvoyant(seconds, bound)


def _priced(batch: Batch, price: FloatArray) -> float:
    return batch.seconds + float(price @ batch.cost)


def _mixed(
    columns: Sequence[Sequence[Batch]], budget: FloatArray
) -> tuple[float, FloatArray, bool]:
    """Average seconds, the price of each cost, and whether a budget is exceeded all the same."""
    program, slots = LinearProgram(), len(columns)
    flat = [batch for batches in columns for batch in batches]
    seconds = np.array([batch.seconds for batch in flat]) / slots
    share = program.add_columns(len(flat), cost=seconds)
    start = 0
    for batches in columns:
        mine = share[start : start + len(batches)]
        program.add_row([(mine, 1.0)], lower=1.0, upper=1.0)
        start += len(batches)
    limited = np.flatnonzero(np.isfinite(budget))
    excess = program.add_columns(len(limited), cost=1e3 * seconds.max() * slots)
    for k, column in zip(limited, excess, strict=True):
        spent = np.array([batch.cost[k] for batch in flat]) / (slots * budget[k])
        program.add_row([(share, spent), (column, -1.0)], upper=1.0)
    solver = program.solver(time_limit=_SECONDS)
    solver.run()
    found = solver.getSolution()
    price = np.zeros(len(budget))
    price[limited] = -np.array(found.row_dual[slots:]) / budget[limited]
    over = np.array(found.col_value)[excess]
    return float(solver.getInfo().objective_function_value), price, bool((over > _GAIN).any())
