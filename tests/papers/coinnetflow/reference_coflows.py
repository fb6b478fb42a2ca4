"""Coflows replayed in exact arithmetic, straight from the definitions; rates are checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np

from experiments.papers.coinnetflow.simulation import CoflowProblem, Order

Left = dict[int, Fraction]
Rate = dict[int, Fraction]


def greedy(problem: CoflowProblem, order: Sequence[int], left: Left) -> Rate:
    rooms = _rooms(problem)
    rate: Rate = {}
    for c in order:
        for f in flows_of(problem, c, left):
            ends = [(0, problem.source[f]), (1, problem.destination[f])]
            rate[f] = min(rooms[end] for end in ends)
            for end in ends:
                rooms[end] -= rate[f]
    return rate


def madd(problem: CoflowProblem, order: Sequence[int], left: Left) -> Rate:
    rooms = _rooms(problem)
    rate: Rate = {}
    skipped: list[int] = []
    for c in order:
        own = flows_of(problem, c, left)
        load: dict[tuple[int, int], Fraction] = {}
        for f in own:
            for end in ((0, problem.source[f]), (1, problem.destination[f])):
                load[end] = load.get(end, Fraction(0)) + left[f]
        if any(rooms[end] == 0 for end in load):
            skipped += own
            continue
        needed = max(load[end] / rooms[end] for end in load)
        rate |= {f: left[f] / needed for f in own}
        for end, volume in load.items():
            rooms[end] -= volume / needed
    ends_of = {f: ((0, problem.source[f]), (1, problem.destination[f])) for f in skipped}
    able = [f for f in skipped if all(rooms[end] > 0 for end in ends_of[f])]
    count = {end: sum(end in ends_of[f] for f in able) for end in rooms}
    fair = {f: min(rooms[end] / count[end] for end in ends_of[f]) for f in able}
    rate |= {f: fair.get(f, Fraction(0)) for f in skipped}
    for f in able:
        for end in ends_of[f]:
            rooms[end] -= fair[f]
    for c in order:
        for f in flows_of(problem, c, left):
            ends = ((0, problem.source[f]), (1, problem.destination[f]))
            more = min(rooms[end] for end in ends)
            rate[f] += more
            for end in ends:
                rooms[end] -= more
    return rate


def flows_of(problem: CoflowProblem, c: int, left: Left) -> list[int]:
    return [f for f in range(problem.flow_ptr[c], problem.flow_ptr[c + 1]) if left[f] > 0]


def _rooms(problem: CoflowProblem) -> dict[tuple[int, int], Fraction]:
    return {(side, p): Fraction(problem.rate) for side in (0, 1) for p in range(problem.ports)}


def replay(
    problem: CoflowProblem,
    order: Order,
    rates: Callable[[CoflowProblem, Sequence[int], Left], Rate],
) -> list[float]:
    """Times from arrival to end; `greedy` looks again at ends of flows, `madd` of coflows."""
    left = {f: Fraction(size) for f, size in enumerate(problem.size)}
    n = problem.num_coflows
    finish: dict[int, Fraction] = {}
    now, ranked, seen = Fraction(0), [], -1
    while len(finish) < n:
        there = [c for c in range(n) if problem.arrival[c] <= now and c not in finish]
        for c in there:
            if not flows_of(problem, c, left):
                finish[c] = now
        there = sorted((c for c in there if c not in finish), key=lambda c: problem.arrival[c])
        coming = [Fraction(a) for a in problem.arrival if a > now]
        if len(coming) != seen:  # some have arrived
            seen = len(coming)
            load = np.zeros((n, 2 * problem.ports))
            for f, rest in left.items():
                load[problem.coflow[f], problem.source[f]] += float(rest)
                load[problem.coflow[f], problem.ports + problem.destination[f]] += float(rest)
            ranked = [int(c) for c in order(problem, np.array(there, dtype=np.int64), load)]
        ranked = [c for c in ranked if c not in finish]
        rate = rates(problem, ranked, left)
        for port in range(problem.ports):  # no port sends or receives more than it can
            assert sum(r for f, r in rate.items() if problem.source[f] == port) <= problem.rate
            assert sum(r for f, r in rate.items() if problem.destination[f] == port) <= problem.rate
        steps = [start - now for start in coming]
        if rates is greedy:
            steps += [left[f] / rate[f] for f in rate if rate[f] > 0]
        else:
            for c in ranked:
                own = flows_of(problem, c, left)
                if all(rate[f] > 0 for f in own):
                    steps.append(max(left[f] / rate[f] for f in own))
        if not steps:
            break
        step = min(steps)
        for f in rate:
            left[f] -= min(left[f], rate[f] * step)
        now += step
    return [float(finish[c]) - problem.arrival[c] for c in range(n)]
