"""Coflows replayed in exact arithmetic, straight from the definitions; rates are checked."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np

from experiments.papers.coinnetflow.simulation import CoflowProblem, Order

Left = dict[int, Fraction]
Rate = dict[int, Fraction]


def ends(problem: CoflowProblem, f: int) -> tuple[int, int]:
    return int(problem.source[f]), int(problem.destination[f])


def live(problem: CoflowProblem, c: int, left: Left) -> list[int]:
    return [f for f in range(problem.flow_ptr[c], problem.flow_ptr[c + 1]) if left[f] > 0]


def fill_up(problem: CoflowProblem, flows: Sequence[int], room: list[Fraction], rate: Rate) -> None:
    for f in flows:
        more = min(room[p] for p in ends(problem, f))
        rate[f] += more
        for p in ends(problem, f):
            room[p] -= more


def greedy(problem: CoflowProblem, order: Sequence[int], left: Left) -> Rate:
    room, rate = [Fraction(problem.rate)] * 2 * problem.ports, defaultdict(Fraction)
    fill_up(problem, [f for c in order for f in live(problem, c, left)], room, rate)
    return rate


def madd(problem: CoflowProblem, order: Sequence[int], left: Left) -> Rate:
    room, rate = [Fraction(problem.rate)] * 2 * problem.ports, defaultdict(Fraction)
    skipped: list[int] = []
    for c in order:
        own, load = live(problem, c, left), defaultdict(Fraction)
        for f in own:
            for p in ends(problem, f):
                load[p] += left[f]
        if any(room[p] == 0 for p in load):
            skipped += own
            continue
        needed = max(load[p] / room[p] for p in load)
        for f in own:
            rate[f] = left[f] / needed
        for p in load:
            room[p] -= load[p] / needed
    able = [f for f in skipped if all(room[p] > 0 for p in ends(problem, f))]
    count = Counter(p for f in able for p in ends(problem, f))
    for f in able:
        rate[f] = min(room[p] / count[p] for p in ends(problem, f))
    for f in able:
        for p in ends(problem, f):
            room[p] -= rate[f]
    fill_up(problem, [f for c in order for f in live(problem, c, left)], room, rate)
    return rate


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
        finish |= {c: now for c in there if not live(problem, c, left)}
        coming = [Fraction(a) for a in problem.arrival if a > now]
        if len(coming) != seen:  # some have arrived
            seen = len(coming)
            load = np.zeros((n, 2 * problem.ports))
            for f, rest in left.items():
                load[problem.coflow[f], list(ends(problem, f))] += float(rest)
            active = sorted((c for c in there if c not in finish), key=lambda c: problem.arrival[c])
            ranked = [int(c) for c in order(problem, np.array(active, np.int64), load)]
        ranked = [c for c in ranked if c not in finish]
        rate = rates(problem, ranked, left)
        for p in range(2 * problem.ports):  # no port sends or receives more than it can
            assert sum(r for f, r in rate.items() if p in ends(problem, f)) <= problem.rate
        steps = [start - now for start in coming]
        if rates is greedy:
            steps += [left[f] / rate[f] for f in rate if rate[f] > 0]
        else:
            for own in (live(problem, c, left) for c in ranked):
                if all(rate[f] > 0 for f in own):
                    steps.append(max(left[f] / rate[f] for f in own))
        if not steps:
            break
        now += min(steps)
        for f in rate:
            left[f] -= min(left[f], rate[f] * min(steps))
    return [float(finish[c]) - problem.arrival[c] for c in range(n)]
