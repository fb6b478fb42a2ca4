"""The best contiguous splits and lines of calls: chains first, then the whole lattice."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from agents.placement.ideals.calls import SumSearch
from agents.placement.ideals.items import FloatArray, IntArray, Items, Rows
from agents.placement.ideals.lattice import all_ideals, prefixes
from agents.placement.ideals.orders import orders
from agents.placement.ideals.search import ROUNDING, Effort, LoadSearch, Split
from agents.placement.ideals.supply import supplies


@dataclass(frozen=True, eq=False)
class LoadResult:
    """The best split found, and what is known about all others."""

    split: Split | None
    lower: float  # seconds: no split has a smaller largest load; inf: there is none
    pairs: int  # pairs of ideals looked at
    whole: bool  # whether the whole lattice was searched, not only chains


@dataclass(frozen=True, eq=False)
class CallsResult:
    """The best line of calls found."""

    accelerator: IntArray | None  # (n,) of each item, NONE on the host
    pairs: int  # pairs of ideals looked at


def best_split(items: Items, ideals: int, effort: Effort) -> LoadResult:
    """The split of `items` with the smallest largest load.

    Splits along four orders give an upper bound. If there are at most `ideals` ideals, and devices
    need not come in a fixed order, the search of the lattice then ends with the optimum, unless
    `effort` ends it earlier; the bound holds in any case.
    """
    best: Split | None = None
    pairs = 0
    supply = supplies(items)
    lower = supply.bound
    for order in orders(items):
        search = LoadSearch(items, prefixes(order), supply)
        best, _ = search.improve(best, lower, effort.after(pairs))
        pairs += search.pairs
    lattice = None if search.vectors.fixed else all_ideals(items, ideals)
    if lattice is None:
        return LoadResult(best, lower, pairs, whole=False)
    search = LoadSearch(items, lattice, supply)
    best, lower = search.improve(best, lower, effort.after(pairs))
    return LoadResult(best, lower * (1.0 - ROUNDING), pairs + search.pairs, whole=True)


def shortest_calls(items: Items, host: FloatArray, ideals: int, effort: Effort) -> CallsResult:
    """The line of calls of `items` with the smallest sum of durations, as `best_split`.

    `host` (n,) are the seconds of the items on the host, which is none of the items' devices.
    """
    best: IntArray | None = None
    upper, pairs = np.inf, 0
    for order in orders(items):
        search = SumSearch(items, host, prefixes(order))
        found, upper = search.improve(upper, effort.after(pairs))
        best = best if found is None else found
        pairs += search.pairs
    lattice = all_ideals(items, ideals)
    if lattice is not None:
        search = SumSearch(items, host, lattice)
        found, upper = search.improve(upper, effort.after(pairs))
        best = best if found is None else found
        pairs += search.pairs
    return CallsResult(best, pairs)


@cache
def compile_kernels() -> None:
    """Have the kernels compiled, once on a machine, before a clock starts."""
    items = Items(
        of=np.arange(3),
        devices=(np.arange(2),),
        position=(np.arange(2),),
        seconds=np.ones((3, 1)),
        state=np.ones(3),
        capacity=np.full(1, 2.0),
        arcs=np.array([[0, 1], [0, 2]]),
        members=Rows(np.array([0, 3]), np.arange(3)),
        weight=np.ones((1, 1)),
        exact=True,
    )
    best_split(items, 8, Effort(np.inf, None))
    shortest_calls(items, np.ones(3), 8, Effort(np.inf, None))
