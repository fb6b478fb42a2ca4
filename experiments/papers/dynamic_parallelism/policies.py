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
    Groups,
    Pipeline,
    Plan,
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
    workers, layers = len(batch.speed), len(batch.layers.seconds)

    def value(groups: Groups, better: float = 0.0) -> tuple[float, float]:
        found = batch.best(groups)
        excess = max(0.0, float((found.cost / limit).max()) - 1.0 - _CLOSE)
        return excess, (found.seconds + float(price @ found.cost)) * (1.0 - better)

    best: Groups = min((((worker,),) for worker in range(workers)), key=value)
    for start in dict.fromkeys((best, *starts)):
        now, found = start, start
        while found:
            now, least = found, value(found, _CLOSE)
            found = next((x for x in neighbours(now, workers, layers) if value(x) < least), ())
        best = min(best, now, key=value)
    return batch.best(best)


def neighbours(groups: Groups, workers: int, longest: int) -> Iterator[Groups]:
    """Groups that differ by the place of one worker or two, a merger or a split.

    None has more than `longest` workers. A worker that is in no group has nothing to do.
    """
    for worker in range(workers):
        rest = tuple(left for group in groups if (left := tuple(w for w in group if w != worker)))
        if rest:
            yield _changed(rest)
        for group in rest:
            for place in range(len(group) + 1 if len(group) < longest else 0):
                yield _changed(rest, (group,), (*group[:place], worker, *group[place:]))
        yield _changed(rest, (), (worker,))
    for one in groups:
        for two in groups:
            if two != one and len(one) + len(two) <= longest:
                yield _changed(groups, (one, two), one + two)
        for place in range(1, len(one)):
            yield _changed(groups, (one,), one[:place], one[place:])
    for a, b in itertools.combinations(range(workers), 2):
        swapped = {a: b, b: a}
        yield _changed(tuple(tuple(swapped.get(w, w) for w in group) for group in groups))


def _changed(groups: Groups, gone: Groups = (), *new: tuple[int, ...]) -> Groups:
    return tuple(sorted({*groups, *new}.difference(gone)))


# What a policy does with a slot, given the queues (K,) and the groups of the slot before, if any.
Policy = Callable[[BatchTime, FloatArray, Sequence[Groups]], Batch]


def static(plan: Plan) -> Policy:
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

    batches: list[Batch]
    seconds: FloatArray  # (T,) of them
    spent: FloatArray  # (T, K) budgets of a slot
    queue: FloatArray  # (T, K) budgets of a slot, after each
    moving: list[float]  # (T,) seconds in which parameters get where they were not; in no batch


def play(policy: Policy, slots: Sequence[BatchTime], budget: FloatArray) -> Played:
    """Let a policy decide slot after slot; `budget` (K,), inf where there is none."""
    queue = np.zeros(len(budget))
    batches, spent, queues, moving = list[Batch](), [], [], []
    for slot in slots:
        before = batches[-1:]
        batch = policy(slot, queue, [old.groups for old in before])
        moved = (slot.moving(old.plan, batch.plan) for old in before if old.plan is not batch.plan)
        moving.append(sum(moved))
        batches.append(batch)
        spent.append(batch.cost / budget)
        queue = np.maximum(queue + spent[-1] - 1.0, 0.0)
        queues.append(queue)
    seconds = np.array([batch.seconds for batch in batches])
    return Played(batches, seconds, np.array(spent), np.array(queues), moving)


def best_kept(slots: Sequence[BatchTime], budget: FloatArray, played: Iterable[Played]) -> Played:
    """Of all plans that any policy had in some slot, the one that should have been kept.

    Least average seconds, of those whose average costs keep to `budget`.
    """

    def excess(kept: Played) -> tuple[float, float]:
        return max(0.0, float(kept.spent.mean(axis=0).max()) - 1.0), float(kept.seconds.mean())

    plans = dict.fromkeys(batch.plan for own in played for batch in own.batches)
    return min((play(static(plan), slots, budget) for plan in plans), key=excess)


def even(batch: BatchTime) -> Plan:
    """Plain data parallelism: every worker has all layers and an equal share."""
    workers, layers = len(batch.speed), len(batch.layers.seconds)
    return tuple(Pipeline((w,), (layers,), batch.samples / workers) for w in range(workers))


_ROUNDS = 30
_GAIN = 1e-5  # relative: what a further round has to bring
_SECONDS = 60.0  # of HiGHS


def clairvoyant(
    slots: Sequence[BatchTime], budget: FloatArray, known: Iterable[Iterable[Batch]]
) -> tuple[float, float]:
    """Least average seconds of slots whose plans are mixed, costs within the budget on average.

    Column generation: plans of each slot are added that pay at the prices of the program.

    Args:
        slots: T of them.
        budget: (K,) of a slot on average, inf where there is none.
        known: plans of each slot to begin with, at least one.

    Returns:
        The seconds, and a bound: no policy that keeps to the budget is below it, where the search
        found the best plan at the final prices in every slot; else it estimates that.

    Raises:
        InputError: the budgets are too small for any plans found.
    """
    columns, limited = [list(batches) for batches in known], np.isfinite(budget)
    for _ in range(_ROUNDS):
        seconds, price, missing = _mixed(columns, budget)

        def priced(batch: Batch, price: FloatArray = price) -> float:
            return batch.seconds + float(price @ batch.cost)

        reduced = gained = 0.0
        for slot, batches in zip(slots, columns, strict=True):
            old = min(batches, key=priced)
            new = search(slot, (old.groups,), price=price)
            gain = max(0.0, priced(old) - priced(new))
            reduced += priced(old) - gain
            gained += gain
            if gain:
                batches.append(new)
        if gained <= _GAIN * abs(reduced):
            break
    if missing:
        raise InputError("no plans keep to the budgets on average", field="budget")
    return seconds, reduced / len(slots) - float(price[limited] @ budget[limited])


def _mixed(
    columns: Sequence[Sequence[Batch]], budget: FloatArray
) -> tuple[float, FloatArray, bool]:
    """Average seconds, the price of each cost, and whether a budget is exceeded all the same."""
    program, slots = LinearProgram(), len(columns)
    flat = [batch for batches in columns for batch in batches]
    for batches in columns:
        own = program.add_columns(len(batches), cost=[x.seconds / slots for x in batches])
        program.add_row([(own, 1.0)], lower=1.0, upper=1.0)
    share, limited = np.arange(len(flat)), np.flatnonzero(np.isfinite(budget))
    dear = 1e3 * max(batch.seconds for batch in flat)
    excess = program.add_columns(len(limited), cost=dear)
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
