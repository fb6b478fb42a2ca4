"""Orders of coflows by name."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from envs.arrays import FloatArray, IntArray
from envs.compilation import unchecked
from experiments.papers.coinnetflow.simulation import CoflowProblem, Order
from experiments.papers.coinnetflow.tenants import Ranks, Tenancy


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
        the sum of completion times is at most four times the optimum.

    Source:
        Agarwal, Rajakrishnan, Narayan, Agarwal, Shmoys, Vahdat: *Sincronia: Near-Optimal Network
        Design for Coflows*, SIGCOMM 2018, algorithm 1; online it is run again at every arrival.
    """

    def __call__(self, problem: CoflowProblem, active: IntArray, load: FloatArray) -> IntArray:
        order, _ = bssi(load[active] / problem.rate, np.ones(len(active)))
        found: IntArray = active[order]
        return found


def lower_bound(problem: CoflowProblem) -> float:
    """No schedule has a smaller sum of times from arrival to end.

    The largest of: every coflow alone; the dual of the relaxation, less the arrivals; and shortest
    remaining time first at single ports, each coflow counted at the port it needs longest, or all
    those of one port there and the others alone.
    """
    alone, ones = problem.alone, np.ones(problem.num_coflows)
    times = problem.loads / problem.rate
    _, dual = bssi(times, ones)
    found = [float(alone @ ones), dual - float(problem.arrival @ ones)]
    if problem.arrival.any():
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


@dataclass(frozen=True)
class Ascending:
    """The coflow with the smallest `key` first; ties go by arrival, then by place in the file.

    `key` is of the problem, the coflows that are there, and what all have left at every port.

    Guarantees:
        Least completion times where all coflows share one port and the key is what they have left
        there; none otherwise.

    Source:
        Chowdhury, Zhong, Stoica: *Efficient Coflow Scheduling with Varys*, SIGCOMM 2014, section
        4.1: first in first out, smallest effective bottleneck, shortest (by its largest flow) and
        narrowest coflow first; and CoflowSim's least coflow (in all) first.
    """

    key: Callable[[CoflowProblem, IntArray, FloatArray], FloatArray | IntArray]

    def __call__(self, problem: CoflowProblem, active: IntArray, load: FloatArray) -> IntArray:
        found: IntArray = active[np.argsort(self.key(problem, active, load), kind="stable")]
        return found


ORDERS: Mapping[str, Order] = {
    "fifo": Ascending(lambda problem, active, _: problem.arrival[active]),
    "sebf": Ascending(lambda _, active, load: load[active].max(axis=1)),
    "scf": Ascending(lambda problem, active, _: problem.longest[active]),
    "ncf": Ascending(lambda problem, active, _: problem.width[active]),
    "lcf": Ascending(lambda _, active, load: load[active].sum(axis=1)),
    "bssi": Bssi(),
}
FAIR = "fair"  # has no order


CLAIRVOYANT = "clairvoyant"
UNTOUCHED = 1e-9  # the weight of a tensor of which nothing was sent: such ones go by their size
WEIGHTINGS = ("none", "layer", "remaining", "idle", CLAIRVOYANT)


def fair(state: Tenancy, senders: IntArray, clock: float) -> IntArray:
    """All alike: max-min fair."""
    return np.zeros(len(senders), dtype=np.int64)


def fifo(state: Tenancy, senders: IntArray, clock: float) -> IntArray:
    """The gradient that was there first."""
    return _ranked(state.ready[senders, state.current[senders]])


def smallest(state: Tenancy, senders: IntArray, clock: float) -> IntArray:
    """The gradient with the least left, as SEBF would: it has as much at each of its ports."""
    return _ranked(state.left[senders, state.current[senders]])


def _ranked(key: FloatArray) -> IntArray:
    rank: IntArray = np.argsort(np.argsort(key, kind="stable"))
    return rank


@dataclass(frozen=True)
class CoInNetFlow:
    """Sincronia's order of the jobs' front tensors at the racks' ports, as strict priorities.

    Jobs weigh, by `weighting`: `none` 1; `layer` more, the sooner the forward pass needs the
    tensor; `remaining` one less the part of the tensor that is left; `idle` the share of its time
    that the job has waited. `clairvoyant` is a yardstick: one over the bytes that the job has yet
    to sum until it ends, for which its iterations must be known.

    Guarantees:
        None for training jobs: BSSI's factor of 4 is of one front tensor each.

    Source:
        Ho, *Efficient and Scalable Deep Learning Through In-Network Aggregation*, dissertation,
        KAUST 2023, reconstructed from its outline. `remaining` is its formula; the others are this
        project's.
    """

    weighting: str = "none"

    def __call__(self, state: Tenancy, senders: IntArray, clock: float) -> IntArray:
        layer = state.current[senders]
        ports = state.links[senders, :-1]
        rows, columns = np.nonzero(ports >= 0)
        if not len(rows):
            return np.zeros(len(senders), dtype=np.int64)
        used = ports[rows, columns]
        times = np.zeros((len(senders), int(used.max()) + 1))
        times[rows, used] = state.left[senders, layer][rows]
        order, _ = bssi(times, self._weights(state, senders, layer, clock))
        rank: IntArray = np.argsort(order)
        return rank

    def _weights(
        self, state: Tenancy, senders: IntArray, layer: IntArray, clock: float
    ) -> FloatArray:
        if self.weighting == "layer":
            weight: FloatArray = 1.0 - layer / state.layers[senders]
            return weight
        if self.weighting == "remaining":
            rest: FloatArray = state.left[senders, layer] / state.size[senders, layer]
            return 1.0 - rest + UNTOUCHED
        if self.weighting == CLAIRVOYANT:
            whole = state.size[senders].sum(axis=1)
            ahead: FloatArray = state.iterations[senders] * whole + state.left[senders].sum(axis=1)
            return 1.0 / ahead
        if self.weighting == "idle":
            waiting = np.isinf(state.busy[senders]) * (clock - state.since[senders])
            share: FloatArray = 1e-3 + (state.idle[senders] + waiting) / max(clock, 1e-9)
            return share
        return np.ones(len(senders))


BASELINES: Mapping[str, Ranks] = {"fifo": fifo, "fair": fair, "smallest": smallest}
