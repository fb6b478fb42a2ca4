"""One option for every operator: the program behind the signatures of a shared layer."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from agents.linear_program import LinearProgram, best_values
from envs.arrays import FloatArray, IntArray
from envs.compilation import clock

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


_TABLE = 1 << 20  # entries of the largest table of the dynamic program


@dataclass(frozen=True, eq=False)
class ChoiceProgram:
    """Choose an option for each of N operators: the sum of seconds is least.

    Options are signatures of SBP, edges cost boxing (OneFlow). inf: not possible.
    """

    seconds: tuple[FloatArray, ...]  # (N,) of (options,)
    edges: tuple[tuple[int, int], ...]  # (E,) operators; an edge may stand twice
    edge_seconds: tuple[FloatArray, ...]  # (E,) of (options of the first, options of the second)

    def value(self, options: IntArray) -> float:
        """Seconds of a choice."""
        own = sum(float(table[o]) for table, o in zip(self.seconds, options, strict=True))
        edges = zip(self.edges, self.edge_seconds, strict=True)
        return own + sum(float(table[options[u], options[v]]) for (u, v), table in edges)


def choose(program: ChoiceProgram, budget_s: float) -> IntArray | None:
    """(N,) the best options; None: none are possible.

    By a dynamic program along the operators, eliminated in the order that keeps its tables small:
    on chains it is the usual one. Where the graph is too wide for that, by a MILP, whose best
    solution is taken when `budget_s` ends first.
    """
    found = _eliminate(program)
    if found is None:
        found = _solve(program, budget_s)
    return found if found is not None and np.isfinite(program.value(found)) else None


def _eliminate(program: ChoiceProgram) -> IntArray | None:
    """The optimum; None where a table would be too large."""
    sizes = [len(table) for table in program.seconds]
    around = {number: {number} for number in range(len(sizes))}  # itself and what it is tied to
    for u, v in program.edges:
        around[u].add(v)
        around[v].add(u)
    tables: list[tuple[tuple[int, ...], FloatArray]] = [
        ((number,), table) for number, table in enumerate(program.seconds)
    ]
    tables += zip(program.edges, program.edge_seconds, strict=True)
    bests: list[tuple[int, tuple[int, ...], IntArray]] = []
    while around:
        node = min(around, key=lambda n: prod(sizes[other] for other in around[n]))
        scope = tuple(sorted(around.pop(node) - {node}))
        if sizes[node] * prod(sizes[other] for other in scope) > _TABLE:
            return None
        for other in scope:
            around[other] = (around[other] | set(scope)) - {node}
        total: FloatArray = np.zeros([sizes[other] for other in (*scope, node)])
        for nodes, table in (entry for entry in tables if node in entry[0]):
            turned = np.transpose(table, np.argsort([(*scope, node).index(n) for n in nodes]))
            total += turned.reshape([sizes[n] if n in nodes else 1 for n in (*scope, node)])
        tables = [entry for entry in tables if node not in entry[0]]
        tables.append((scope, total.min(axis=-1)))
        bests.append((node, scope, total.argmin(axis=-1)))
    options: IntArray = np.zeros(len(sizes), dtype=np.int64)
    for node, scope, best in reversed(bests):
        options[node] = best[tuple(options[other] for other in scope)]
    return options


def _solve(program: ChoiceProgram, budget_s: float) -> IntArray | None:
    """A binary for each option, a column for each pair of options on an edge."""
    model = LinearProgram()

    def columns(seconds: FloatArray, *, integer: bool) -> IntArray:
        able = np.isfinite(seconds)
        return model.add_columns(
            seconds.shape, cost=np.where(able, seconds, 0.0) / scale, upper=able, integer=integer
        )

    every = np.concatenate([t.ravel() for t in (*program.seconds, *program.edge_seconds)])
    scale = float(every[np.isfinite(every)].max(initial=0.0)) or 1.0
    chosen = [columns(table, integer=True) for table in program.seconds]
    for options in chosen:
        model.add_row([(options, 1.0)], lower=1.0, upper=1.0)
    for (u, v), table in zip(program.edges, program.edge_seconds, strict=True):
        pairs = columns(table, integer=False)
        for options, lines in ((chosen[u], pairs), (chosen[v], pairs.T)):
            terms = [(lines, 1.0), (options, -1.0)]
            model.add_rows(len(options), terms, lower=0.0, upper=0.0)
    solver = model.solver(time_limit=budget_s)
    solver.setOptionValue("mip_rel_gap", 0.0)
    values = best_values(solver)
    return None if values is None else np.array([values[o].argmax() for o in chosen])
