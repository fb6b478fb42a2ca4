"""Sincronia's order of coflows, and what no order can beat."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

import numpy as np

from envs.arrays import FloatArray, IntArray
from envs.coflows.problem import CoflowProblem
from envs.compilation import unchecked


@unchecked
def bssi(times: FloatArray, weight: FloatArray) -> tuple[IntArray, float]:
    """An order of n coflows by `times` (n, P) at P ports and `weight` (n,), and its dual value.

    Bottleneck, select, scale, iterate: of the coflows without a place, the one that weighs least
    for its time at the busiest port b goes last, and pays y = w / d_b; the others' weights fall by
    y d_b. The y are feasible in the dual of the relaxation in which, for every port and every set S
    of coflows, sum d C >= (sum d^2 + (sum d)^2) / 2 (Queyranne); their value is a lower bound
    of the weighted sum of completion times of every schedule, preemptive or not.
    """
    n, ports = times.shape
    residue = weight.copy()
    load, square = np.zeros(ports), np.zeros(ports)
    for c in range(n):
        load += times[c]
        square += times[c] ** 2
    waiting = np.arange(n)
    order = np.zeros(n, np.int64)
    bound = 0.0
    for last in range(n - 1, -1, -1):
        b = np.argmax(load)
        chosen, least = 0, np.inf
        for k in range(last + 1):
            d = times[waiting[k], b]
            if d > 0.0 and residue[waiting[k]] / d < least:
                least, chosen = residue[waiting[k]] / d, k
        c = waiting[chosen]
        if least < np.inf:
            bound += least * (square[b] + load[b] ** 2) / 2.0
            for k in range(last + 1):
                residue[waiting[k]] = max(residue[waiting[k]] - least * times[waiting[k], b], 0.0)
        for k in range(chosen, last):
            waiting[k] = waiting[k + 1]
        order[last] = c
        load -= times[c]
        square -= times[c] ** 2
        if last > 0:  # free of what subtraction leaves
            load = np.maximum(load, 0.0)
            square = np.maximum(square, 0.0)
    return order, bound


@dataclass(frozen=True)
class Bssi:
    """Sincronia's order of the coflows that are there, by what they have left.

    Guarantees:
        Offline, with any rates that keep the order and leave no port idle needlessly (`greedy`),
        the weighted sum of completion times is at most four times the optimum.

    Source:
        Agarwal, Rajakrishnan, Narayan, Agarwal, Shmoys, Vahdat: *Sincronia: Near-Optimal Network
        Design for Coflows*, SIGCOMM 2018, algorithm 1; online it is run again at every arrival.
    """

    def __call__(self, problem: CoflowProblem, active: IntArray, load: FloatArray) -> IntArray:
        order, _ = bssi(load[active] / problem.rate, problem.weight[active])
        found: IntArray = active[order]
        return found


def lower_bound(problem: CoflowProblem) -> float:
    """No schedule has a smaller weighted sum of times from arrival to end.

    The largest of: every coflow alone; the dual of the relaxation, less the arrivals; and, for
    equal weights, shortest remaining time first at single ports, each coflow counted at the port it
    needs longest, or all those of one port there and the others alone.
    """
    alone = problem.alone
    times = problem.loads / problem.rate
    _, dual = bssi(times, problem.weight)
    found = [float(alone @ problem.weight), dual - float(problem.arrival @ problem.weight)]
    if np.all(problem.weight == 1.0) and problem.arrival.any():
        port = times.argmax(axis=1)
        split, single = 0.0, np.zeros(times.shape[1])
        for p in range(times.shape[1]):
            there = times[:, p] > 0.0
            own = there & (port == p)
            split += _srpt(problem.arrival[own], times[own, p])
            single[p] = _srpt(problem.arrival[there], times[there, p]) + alone[~there].sum()
        found += [split, float(single.max())]
    return float(max(found))


def _srpt(arrival: FloatArray, time: FloatArray) -> float:
    """The sum of the times from arrival to end on one port: no schedule of it has a smaller one."""
    waiting: list[float] = []
    total, now = 0.0, 0.0
    order = np.argsort(arrival, kind="stable")
    starts = arrival[order].tolist()
    for start, length, until in zip(
        starts, time[order].tolist(), [*starts[1:], math.inf], strict=False
    ):
        now = max(now, start)
        total -= start
        heapq.heappush(waiting, length)
        while waiting and now < until:
            shortest = heapq.heappop(waiting)
            if now + shortest > until:
                heapq.heappush(waiting, shortest - (until - now))
                now = until
            else:
                now += shortest
                total += now
    return total
