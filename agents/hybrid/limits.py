"""Pipelines are as slow as their slowest stage: search over what that may take."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from envs.compilation import clock
from envs.graphs.op_graph import FloatArray

Plan = TypeVar("Plan")


class Limited(NamedTuple, Generic[Plan]):
    """The best plan whose slowest stage keeps to a limit."""

    slowest: float  # seconds of its slowest stage
    other: float  # seconds of everything else: the fewest that any plan of the limit has
    plan: Plan


def best_of_limits(
    solve: Callable[[float], Limited[Plan] | None],
    limits: FloatArray,
    weight: float,
    until: float,
    most: int | None,
    beat: float = math.inf,
) -> Iterator[Limited[Plan]]:
    """Plans among which one has the least `weight` * slowest + other.

    A lower limit leaves fewer plans, so `other` bounds what plans of lower limits add: ranges of
    limits are halved where the bound is least, until it is no less than the best plan.

    Args:
        solve: the plan of a limit; None: there is none.
        limits: what the slowest stage may take, ascending: all values that it can have.
        weight: how often the slowest stage counts.
        until: when to stop, by `envs.compilation.clock`.
        most: limits to solve; None: any number.
        beat: what plans must be less than.
    """
    useful = int(np.searchsorted(limits, beat / weight, "right")) if weight else len(limits)
    waiting = [(-math.inf, 0, useful, -math.inf)]  # bound, range of limits, least `other`
    best, solved = beat, 0
    while waiting and useful:
        bound, low, high, other = heapq.heappop(waiting)
        if bound >= best or (solved and (clock() > until or solved == most)):
            return
        middle = (low + high) // 2 if solved else high - 1
        solved += 1
        found = solve(float(limits[middle]))
        if middle + 1 < high:
            bound = float(limits[middle + 1]) * weight + other
            heapq.heappush(waiting, (bound, middle + 1, high, other))
        if found is None:
            continue
        yield found
        best = min(best, found.slowest * weight + found.other)
        high = min(middle, int(np.searchsorted(limits, found.slowest)))
        if low < high:
            bound = float(limits[low]) * weight + found.other
            heapq.heappush(waiting, (bound, low, high, found.other))
