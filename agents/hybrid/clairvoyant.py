"""What is possible with all slots known beforehand: a linear program over slots and plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from agents.hybrid.grouping import search
from agents.linear_program import LinearProgram
from envs.arrays import FloatArray
from envs.errors import InputError
from envs.hybrid.batch_time import Batch, BatchTime

_ROUNDS = 30
_CLOSE = 1e-5  # relative: what a further round has to bring
_SECONDS = 60.0  # of HiGHS


@dataclass(frozen=True, eq=False)
class Clairvoyant:
    """Least average seconds of slots whose plans are mixed, costs within the budget on average.

    `bound` is what no policy that keeps to the budget is below, where the search found the best
    plan at the final prices in every slot; otherwise it is an estimate of that.
    """

    seconds: float
    bound: float
    price: FloatArray  # (K,) seconds per unit of cost


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
        if gained <= _CLOSE * abs(reduced):
            break
    if missing:
        raise InputError("no plans keep to the budgets on average", field="budget")
    return Clairvoyant(seconds, bound, price)


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
    return float(solver.getInfo().objective_function_value), price, bool((over > _CLOSE).any())
