"""Orders of coflows, priorities of jobs that share a network, and a bound for every schedule."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
    load, square = np.zeros(ports), np.zeros(ports)
    for c in range(n):
        load += times[c]
        square += times[c] ** 2
    residue, waiting = weight.copy(), np.ones(n, np.bool_)
    order, bound = np.zeros(n, np.int64), 0.0
    for last in range(n - 1, -1, -1):
        b = np.argmax(load)
        chosen, least = int(np.argmax(waiting)), np.inf
        for c in range(n):
            d = times[c, b]
            if waiting[c] and d > 0.0 and residue[c] / d < least:
                chosen, least = c, residue[c] / d
        if least < np.inf:
            bound += least * (square[b] + load[b] ** 2) / 2.0
            residue = np.maximum(residue - least * times[:, b], 0.0)
        waiting[chosen], order[last] = False, chosen
        # At least 0, in spite of what subtraction leaves.
        load = np.maximum(load - times[chosen], 0.0)
        square = np.maximum(square - times[chosen] ** 2, 0.0)
    return order, bound


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
    starts = [*arrival[order].tolist(), math.inf]
    for start, until, length in zip(starts, starts[1:], time[order].tolist(), strict=False):
        now = max(now, start)
        total -= start
        heapq.heappush(waiting, length)
        while waiting and now < until:
            end = now + heapq.heappop(waiting)
            now = min(end, until)
            if end > until:
                heapq.heappush(waiting, end - until)
            else:
                total += end
    return total


def sincronia(problem: CoflowProblem, active: IntArray, load: FloatArray) -> IntArray:
    """The order of `bssi` for the coflows that are there, by what they have left.

    Offline, with any rates that keep the order and leave no port idle needlessly (`greedy`), the
    sum of completion times is at most four times the optimum.

    Agarwal, Rajakrishnan, Narayan, Agarwal, Shmoys, Vahdat: *Sincronia: Near-Optimal Network Design
    for Coflows*, SIGCOMM 2018, algorithm 1; online it is run again at every arrival.
    """
    order, _ = bssi(load[active] / problem.rate, np.ones(len(active)))
    found: IntArray = active[order]
    return found


def ascending(key: Callable[[CoflowProblem, IntArray, FloatArray], NDArray[Any]]) -> Order:
    """The coflow with the smallest `key` first; ties go by arrival, then by place in the file.

    `key` is of the problem, the coflows that are there, and what all have left at every port. Least
    completion times where all coflows share one port and it is what they have left there.

    Chowdhury, Zhong, Stoica: *Efficient Coflow Scheduling with Varys*, SIGCOMM 2014, section 4.1:
    first in first out, smallest effective bottleneck, shortest (by its largest flow) and narrowest
    coflow first; and CoflowSim's least coflow (in all) first.
    """
    return lambda problem, active, load: active[
        np.argsort(key(problem, active, load), kind="stable")
    ]


ORDERS: Mapping[str, Order] = {
    "fifo": ascending(lambda problem, active, _: problem.arrival[active]),
    "sebf": ascending(lambda _, active, load: load[active].max(axis=1)),
    "scf": ascending(lambda problem, active, _: problem.longest[active]),
    "ncf": ascending(lambda problem, active, _: problem.width[active]),
    "lcf": ascending(lambda _, active, load: load[active].sum(axis=1)),
    "bssi": sincronia,
}
FAIR = "fair"  # has no order


def fair(state: Tenancy, senders: IntArray, clock: float) -> IntArray:
    """All alike: max-min fair."""
    return np.zeros(len(senders), np.int64)


def least(amounts: Callable[[Tenancy], FloatArray]) -> Ranks:
    """The gradient of the least amount first; `amounts` (J, L) are of the state."""
    return lambda state, senders, _: np.argsort(
        np.argsort(amounts(state)[senders, state.current[senders]], kind="stable")
    )


# Of jobs j that send, the layers that they send, and the clock.
Weighting = Callable[[Tenancy, IntArray, IntArray, float], FloatArray]


def coinnetflow(weighting: Weighting) -> Ranks:
    """Sincronia's order of the jobs' front tensors at the racks' ports, as strict priorities.

    BSSI's factor of 4 is of one front tensor each: of training jobs nothing is guaranteed.

    Ho, *Efficient and Scalable Deep Learning Through In-Network Aggregation*, dissertation, KAUST
    2023, reconstructed from its outline.
    """

    def ranks(state: Tenancy, senders: IntArray, clock: float) -> IntArray:
        layer, links = state.current[senders], state.links[senders]
        times = np.zeros((len(senders), state.racks))
        rows, columns = np.nonzero(links < state.racks)
        times[rows, links[rows, columns]] = state.left[senders, layer][rows]
        if not len(rows):
            return fair(state, senders, clock)
        order, _ = bssi(times, weighting(state, senders, layer, clock))
        found: IntArray = np.argsort(order)
        return found

    return ranks


CLAIRVOYANT = "clairvoyant"
# The gradients of a job in the order of backward passes, whole; between jobs:
BASELINES: Mapping[str, Ranks] = {
    "fifo": least(lambda state: state.ready),
    "fair": fair,
    # As SEBF would: what is left is as much at each port of the job.
    "smallest": least(lambda state: state.left),
}
# Those of `coinnetflow`. `remaining` is its author's, and tensors of which nothing was sent go by
# their size; the others are this project's. `clairvoyant` is a yardstick: for the bytes that a job
# has yet to sum until it ends, its iterations must be known.
WEIGHTINGS: Mapping[str, Weighting] = {
    "none": lambda _, j, layer, clock: np.ones(len(j)),
    "layer": lambda state, j, layer, _: 1.0 - layer / state.layers[j],
    "remaining": lambda state, j, layer, _: (
        1.0 - state.left[j, layer] / state.size[j, layer] + 1e-9
    ),
    "idle": lambda state, j, _, clock: (
        (state.idle[j] + np.isinf(state.busy[j]) * (clock - state.since[j])) / max(clock, 1e-9)
        + 1e-3
    ),
    CLAIRVOYANT: lambda state, j, *_: (
        1.0 / (state.iterations[j] * state.size[j].sum(axis=1) + state.left[j].sum(axis=1))
    ),
}
