"""Coflows over time: rates under an order of priorities, from event to event.

* `greedy` (Sincronia, section 3.2): flow after flow in the order, each gets what both its ports
  have left; found anew whenever a flow ends.
* `madd` (Varys, section 4.2): a coflow's flows get the rates at which all of them end together, on
  what the coflows before left. Those that find a port taken share what is left, then all are
  filled up. Found anew whenever a coflow arrives or ends, so that a flow that ends earlier leaves
  its rate unused until then.
* `fair`: max-min fair among flows, without an order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from envs.arrays import FloatArray, IntArray
from envs.compilation import unchecked, unchecked_inner
from envs.network.fluid import simulate_flows, single_paths

Flows = tuple[IntArray, IntArray, FloatArray]  # of one coflow: sources, destinations, sizes


@dataclass(frozen=True, eq=False)
class CoflowProblem:
    """n coflows of F flows; a coflow is done when the last of its flows is.

    Sizes and times are in the units of the file, rates in sizes per time: MB and ms in the
    coflow-benchmark trace, units and time units in Sincronia's. Flows ascend by coflow, destination
    and source. Ingress ports are 0 to N - 1, egress ports N to 2 N - 1.
    """

    ports: int  # N on each side
    rate: float  # of every port
    arrival: FloatArray  # (n,)
    flow_ptr: IntArray  # (n + 1,) the flows of c: flow_ptr[c]:flow_ptr[c + 1]
    source: IntArray  # (F,) ingress port
    destination: IntArray  # (F,) egress port
    size: FloatArray  # (F,) positive

    @property
    def num_coflows(self) -> int:
        """Those without flows among them, which end when they arrive."""
        return len(self.arrival)

    @cached_property
    def coflow(self) -> IntArray:
        """(F,) the coflow of each flow."""
        return np.repeat(np.arange(self.num_coflows), np.diff(self.flow_ptr))

    @cached_property
    def loads(self) -> FloatArray:
        """(n, 2 N) the size of each coflow at each port."""
        loads = np.zeros((self.num_coflows, 2 * self.ports))
        for port in (self.source, self.destination):
            np.add.at(loads, (self.coflow, port), self.size)
        return loads

    @cached_property
    def alone(self) -> FloatArray:
        """(n,) the time of each coflow if nothing else were sent: that of its busiest port."""
        found: FloatArray = self.loads.max(axis=1) / self.rate
        return found

    @cached_property
    def width(self) -> IntArray:
        """(n,) the smaller of the numbers of its sources and destinations."""
        used = (self.loads > 0.0).reshape(self.num_coflows, 2, self.ports)
        found: IntArray = used.sum(axis=2).min(axis=1)
        return found

    @cached_property
    def longest(self) -> FloatArray:
        """(n,) the size of each coflow's largest flow."""
        found = np.zeros(self.num_coflows)
        np.maximum.at(found, self.coflow, self.size)
        return found

    def offline(self) -> CoflowProblem:
        """All coflows there at time 0."""
        return replace(self, arrival=np.zeros(self.num_coflows))


def coflow_problem(
    ports: int, rate: float, arrival: FloatArray, flows: Iterable[Flows]
) -> CoflowProblem:
    """Of the flows of each coflow; their ports count from 0 on both sides.

    Several flows of a coflow between the same ports are one, of their sizes' sum; flows of size 0
    are dropped.
    """
    sources, destinations, sizes = zip(*flows, strict=True)
    coflow = np.repeat(np.arange(len(arrival)), [len(size) for size in sizes])
    key = (coflow * ports + np.concatenate(destinations)) * ports + np.concatenate(sources)
    key, own = np.unique(key, return_inverse=True)
    size = np.zeros(len(key))
    np.add.at(size, own, np.concatenate(sizes))
    key, size = key[size > 0.0], size[size > 0.0]
    ptr = np.searchsorted(key, np.arange(len(arrival) + 1) * ports**2)
    return CoflowProblem(ports, rate, arrival, ptr, key % ports, key // ports % ports + ports, size)


# The coflows that are there, (k,), by priority: of the problem, those coflows by arrival, and
# (n, 2 N) what every coflow has left at every port.
Order = Callable[[CoflowProblem, IntArray, FloatArray], IntArray]

_NO_BITS = 1e-3 / (8.0 * 1_048_576.0 * 1024.0)  # MB/ms: CoflowSim's least rate, 1e-3 bit/s


@dataclass(frozen=True, eq=False)
class CoflowTimes:
    """(n,) from arrival to end of each coflow."""

    completion: FloatArray
    events: int


class Switch(NamedTuple):
    """The flows, and what changes while they are sent."""

    ptr: IntArray  # (n + 1,) as in the problem
    source: IntArray  # (F,)
    destination: IntArray  # (F,)
    left: FloatArray  # (F,)
    rate: FloatArray  # (F,)
    load: FloatArray  # (n, 2 N) left at every port, up to date where an order is asked for
    finish: FloatArray  # (n,) when each coflow ended, inf before


def switch_of(problem: CoflowProblem) -> Switch:
    """Before anything is sent."""
    return Switch(
        problem.flow_ptr, problem.source, problem.destination, problem.size.copy(),
        np.zeros(len(problem.size)), problem.loads.copy(),
        np.where(np.diff(problem.flow_ptr) == 0, problem.arrival, np.inf),
    )  # fmt: skip


# What sends in an order, with ports of a rate, from one time to another; counts the events.
Play = Callable[[IntArray, float, Switch, float, float], int]


def simulate(problem: CoflowProblem, order: Order, play: Play) -> CoflowTimes:
    """Replays the coflows; the order is asked for whenever some arrive."""
    state, events = switch_of(problem), 0
    instants = np.unique(problem.arrival)
    active = np.zeros(0, np.int64)
    for now, until in zip(instants, np.append(instants[1:], np.inf), strict=True):
        active = np.append(active, np.flatnonzero(problem.arrival == now))
        active = active[np.isinf(state.finish[active])]
        events += play(order(problem, active, state.load), problem.rate, state, now, until)
    return CoflowTimes(state.finish - problem.arrival, events)


def simulate_fair(problem: CoflowProblem) -> CoflowTimes:
    """Every flow by itself, max-min fair."""
    links = np.stack((problem.source, problem.destination), axis=1)
    found = simulate_flows(
        np.full(2 * problem.ports, problem.rate),
        single_paths(
            problem.arrival[problem.coflow], problem.size, 2 * np.arange(len(links) + 1),
            links.ravel(),
        ),
    )  # fmt: skip
    completion = np.zeros(problem.num_coflows)
    np.maximum.at(completion, problem.coflow, found.completion)
    return CoflowTimes(completion, found.num_events)


@unchecked_inner
def _share_madd(
    order: IntArray,  # (k,) coflows by priority
    refill: IntArray,  # (k,) coflows in the order of filling up
    capacity: float,
    state: Switch,
    zero: float,  # rates up to this are none
) -> None:
    """Sets the rates of all flows of the coflows in `order`."""
    ptr, source, destination, left, rate, load, _ = state
    room = np.full(load.shape[1], capacity)
    skipped = np.zeros(len(order), np.bool_)
    for k, c in enumerate(order):
        needed = 0.0
        for p in range(len(room)):
            if load[c, p] > 0.0:
                if room[p] <= zero:
                    skipped[k] = True
                    break
                needed = max(needed, load[c, p] / room[p])
        used = np.zeros(len(room))
        for f in range(ptr[c], ptr[c + 1]):
            rate[f] = 0.0
            if left[f] > 0.0 and not skipped[k]:
                s, d = source[f], destination[f]
                rate[f] = min(left[f] / needed, room[s], room[d])
                used[s] += rate[f]
                used[d] += rate[f]
        room -= used
    # Flows of those skipped get the smaller of their equal parts of what both their ports have.
    able = [
        f
        for c in order[skipped]
        for f in range(ptr[c], ptr[c + 1])
        if left[f] > 0.0 and min(room[source[f]], room[destination[f]]) > zero
    ]
    count, used = np.zeros(len(room)), np.zeros(len(room))
    for f in able:
        count[source[f]] += 1.0
        count[destination[f]] += 1.0
    for f in able:
        s, d = source[f], destination[f]
        own = min(room[s] / count[s], room[d] / count[d])
        rate[f] = own if own > zero else 0.0
        used[s] += rate[f]
        used[d] += rate[f]
    room -= used
    for c in refill:
        for f in range(ptr[c], ptr[c + 1]):
            s, d = source[f], destination[f]
            more = min(room[s], room[d])
            if left[f] > 0.0 and more > zero:
                rate[f] += more
                room[s] -= more
                room[d] -= more


@unchecked
def play_madd(
    order: IntArray,
    capacity: float,
    state: Switch,
    now: float,
    until: float,
    quantum: float,  # 0: time is continuous; otherwise flows end at its multiples
    drained: float,  # what a flow that has ended may have left: of what it sent, or absolute
    due: FloatArray,  # (n,) filling up goes by what is left till then, in whole ms; (0,): by order
) -> int:
    """Sends from `now` to `until`, or until `order` is done; returns the number of events."""
    ptr, source, destination, left, rate, load, finish = state
    events, begun = 0, now  # when the last quantum began
    zero = _NO_BITS if quantum > 0.0 else 1e-12 * capacity
    while len(order) and now < until:
        refill = order
        if len(due):
            refill = order[np.argsort(np.trunc(due[order] - begun), kind="mergesort")]
        _share_madd(order, refill, capacity, state, zero)
        events += 1
        step = until - now
        for c in order:
            longest = 0.0
            for f in range(ptr[c], ptr[c + 1]):
                if left[f] > 0.0 and quantum > 0.0:
                    quanta = np.ceil((left[f] - drained) / (rate[f] * quantum))
                    longest = max(longest, quanta * quantum)
                elif left[f] > 0.0:
                    longest = max(longest, left[f] / rate[f])
            step = min(step, longest)
        now += step
        begun = now - quantum
        for c in order:
            load[c] = 0.0
            for f in range(ptr[c], ptr[c + 1]):
                sent = rate[f] * step
                left[f] -= sent
                if left[f] > (drained if quantum > 0.0 else drained * sent):
                    load[c, source[f]] += left[f]
                    load[c, destination[f]] += left[f]
                else:
                    left[f] = 0.0
            if np.all(load[c] == 0.0):
                finish[c] = now
        order = order[finish[order] == np.inf]
    return events


@unchecked
def play_greedy(order: IntArray, capacity: float, state: Switch, now: float, until: float) -> int:
    """As `play_madd`: all ports have one rate, so that a flow gets all of it or nothing.

    What is sent by coflows before the first of which a flow ends stays as it is.
    """
    ptr, source, destination, left, _, load, finish = state
    free = np.ones(load.shape[1], np.bool_)
    waiting = np.zeros(len(order), np.int64)  # flows with something left
    run = np.full((len(order), len(free)), len(left))  # the first flow to each destination
    for k, c in enumerate(order):
        for f in range(ptr[c + 1] - 1, ptr[c] - 1, -1):
            if left[f] > 0.0:
                waiting[k] += 1
                run[k, destination[f]] = f
    sent, by = np.zeros(len(free), np.int64), np.zeros(len(free), np.int64)  # flows, and whose
    ends = np.zeros(len(free))  # when they will have drained, from `now` on
    flows, first, events, elapsed = 0, 0, 0, 0.0
    while elapsed < until - now:
        egress = len(free) // 2
        idle = egress + np.flatnonzero(free[egress:])
        for k in range(first, len(order)):
            for d in idle:
                for f in range(run[k, d], ptr[order[k] + 1] if free[d] else 0):
                    if destination[f] != d:
                        break
                    if left[f] > 0.0 and free[source[f]]:
                        free[source[f]] = free[d] = False
                        sent[flows], by[flows], ends[flows] = f, k, elapsed + left[f] / capacity
                        flows += 1
                        break
        if flows == 0:
            break
        events += 1
        elapsed = min(until - now, ends[:flows].min())
        soon = elapsed * (1.0 + 1e-13)
        first = 0 if elapsed == until - now else by[:flows][ends[:flows] <= soon].min()
        kept = 0
        for j in range(flows):
            f = sent[j]
            if by[j] < first:
                sent[kept], by[kept], ends[kept] = f, by[j], ends[j]
                kept += 1
                continue
            free[source[f]] = free[destination[f]] = True
            left[f] = (ends[j] - elapsed) * capacity
            if ends[j] <= soon:
                left[f] = 0.0
                waiting[by[j]] -= 1
                if waiting[by[j]] == 0:
                    finish[order[by[j]]], run[by[j]] = now + elapsed, len(left)
        flows = kept
    for c in order:  # what is left, for the next order
        load[c] = 0.0
        for f in range(ptr[c], ptr[c + 1]):
            load[c, source[f]] += left[f]
            load[c, destination[f]] += left[f]
    return events


RATES: Mapping[str, Play] = {
    "madd": lambda *given: play_madd(*given, 0.0, 1e-9, np.zeros(0)),
    "greedy": play_greedy,
}
