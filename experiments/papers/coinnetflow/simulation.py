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

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from envs.arrays import FloatArray, IntArray
from envs.compilation import unchecked
from envs.network.fluid import simulate_flows, single_paths


@dataclass(frozen=True, eq=False)
class CoflowProblem:
    """n coflows of F flows; a coflow is done when the last of its flows is.

    Sizes and times are in the units of the file, rates in sizes per time: MB and ms in the
    coflow-benchmark trace, units and time units in Sincronia's. Flows ascend by coflow, destination
    and source.
    """

    ports: int  # N on each side
    rate: float  # of every port
    arrival: FloatArray  # (n,)
    flow_ptr: (
        IntArray  # (n + 1,) the flows of c: flow_ptr[c]:flow_ptr[c + 1], by (destination, source)
    )
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
        """(n, 2 N) the size of each coflow at each ingress, then each egress port."""
        n, ports = self.num_coflows, self.ports
        first = 2 * ports * self.coflow
        loads = np.zeros(2 * n * ports)
        np.add.at(loads, first + self.source, self.size)
        np.add.at(loads, first + ports + self.destination, self.size)
        return loads.reshape(n, 2 * ports)

    @cached_property
    def alone(self) -> FloatArray:
        """(n,) the time of each coflow if nothing else were sent: that of its busiest port."""
        found: FloatArray = self.loads.max(axis=1, initial=0.0) / self.rate
        return found

    @cached_property
    def width(self) -> IntArray:
        """(n,) the smaller of the numbers of its sources and destinations."""
        used = np.zeros((2, self.num_coflows, self.ports), dtype=np.bool_)
        used[0, self.coflow, self.source] = used[1, self.coflow, self.destination] = True
        found: IntArray = used.sum(axis=2).min(axis=0)
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
    ports: int,
    rate: float,
    arrival: FloatArray,
    rows: list[tuple[IntArray, IntArray, FloatArray]],
) -> CoflowProblem:
    """Of a row (sources, destinations, sizes) for each coflow.

    Several flows of a coflow between the same ports are one, of their sizes' sum; flows of size 0
    are dropped. A coflow's flows stand by destination, then by source.
    """
    kept = [_added(ports, *row) for row in rows]
    ptr = np.cumsum([0, *(len(size) for _, _, size in kept)])
    source, destination, size = (np.concatenate([*column]) for column in zip(*kept, strict=True))
    return CoflowProblem(ports, rate, arrival, ptr.astype(np.int64), source, destination, size)


def _added(
    ports: int, source: IntArray, destination: IntArray, size: FloatArray
) -> tuple[IntArray, IntArray, FloatArray]:
    pair, own = np.unique(destination * ports + source, return_inverse=True)
    total = np.zeros(len(pair))
    np.add.at(total, own, size)
    there = total > 0.0
    return pair[there] % ports, pair[there] // ports, total[there]


Rates = Literal["madd", "greedy"]
# The coflows that are there, (k,), by priority: of the problem, those coflows by arrival, and
# (n, 2 N) what every coflow has left at every ingress, then every egress port.
Order = Callable[[CoflowProblem, IntArray, FloatArray], IntArray]

_DRAINED = 1e-9  # of what it has just sent: a flow with less left has ended
_NO_BITS = 1e-3 / (8.0 * 1_048_576.0 * 1024.0)  # MB/ms: CoflowSim's least rate, 1e-3 bit/s
_BITS = 60  # ports in a word


@dataclass(frozen=True, eq=False)
class CoflowTimes:
    """(n,) from arrival to end of each coflow."""

    completion: FloatArray
    events: int


class Switch(NamedTuple):
    """What changes while coflows are sent. A run is the flows of a coflow to one destination."""

    source: IntArray  # (F,) as in the problem
    runs: IntArray  # (n + 1,) the runs of coflow c are runs[c]:runs[c + 1]
    destination: IntArray  # (R,)
    start: IntArray  # (R,) where its flows begin
    end: IntArray  # (R,) and its live ones end: live[start[r]:end[r]]
    live: IntArray  # (F,) flows with something left, those of a run side by side
    left: FloatArray  # (F,)
    rate: FloatArray  # (F,)
    load: FloatArray  # (n, 2 N) left at every port, up to date where an order is asked for
    finish: FloatArray  # (n,) when each coflow ended, inf before


def switch_of(problem: CoflowProblem) -> Switch:
    """Before anything is sent."""
    flows = len(problem.size)
    key = problem.coflow * problem.ports + problem.destination
    start = np.flatnonzero(np.diff(key, prepend=-1))
    runs = np.searchsorted(problem.coflow[start], np.arange(problem.num_coflows + 1))
    return Switch(
        source=problem.source,
        runs=runs,
        destination=problem.destination[start],
        start=start,
        end=np.append(start, flows)[1:],
        live=np.arange(flows),
        left=problem.size.copy(),
        rate=np.zeros(flows),
        load=problem.loads.copy(),
        finish=np.where(np.diff(runs) == 0, problem.arrival, np.inf),
    )


def simulate(problem: CoflowProblem, order: Order, rates: Rates = "madd") -> CoflowTimes:
    """Replays the coflows; the order is asked for whenever some arrive."""
    state, events = switch_of(problem), 0
    instants, group = np.unique(problem.arrival, return_inverse=True)
    coming = np.argsort(group, kind="stable")
    groups = np.split(coming, np.cumsum(np.bincount(group))[:-1])
    active = np.zeros(0, np.int64)
    for now, until, new in zip(instants, np.append(instants[1:], np.inf), groups, strict=True):
        active = np.concatenate((active, new))
        active = active[np.isinf(state.finish[active])]
        ranked = order(problem, active, state.load)
        if rates == "madd":
            events += play_madd(ranked, problem.rate, state, now, until, 0.0, _DRAINED, np.zeros(0))
        else:
            events += play_greedy(ranked, problem.ports, problem.rate, state, now, until)
    return CoflowTimes(state.finish - problem.arrival, events)


def simulate_fair(problem: CoflowProblem) -> CoflowTimes:
    """Every flow by itself, max-min fair."""
    flows = len(problem.size)
    links = np.stack((problem.source, problem.destination + problem.ports), axis=1)
    found = simulate_flows(
        np.full(2 * problem.ports, problem.rate),
        single_paths(
            problem.arrival[problem.coflow], problem.size, 2 * np.arange(flows + 1), links.ravel()
        ),
    )
    completion = np.zeros(problem.num_coflows)
    np.maximum.at(completion, problem.coflow, found.completion)
    return CoflowTimes(completion, found.num_events)


@unchecked
def share_madd(
    order: IntArray,  # (k,) coflows by priority
    refill: IntArray,  # (k,) coflows in the order of filling up
    capacity: float,
    state: Switch,
    zero: float,  # rates up to this are none
) -> None:
    """Sets the rates of all live flows of the coflows in `order`."""
    source, runs, destination, start, end, live, left, rate, load, _ = state
    ports = load.shape[1] // 2
    room, used = np.full(2 * ports, capacity), np.zeros(2 * ports)
    skipped = np.zeros(len(order), np.bool_)
    any_skipped = False
    for k in range(len(order)):
        c = order[k]
        needed = 0.0
        for p in range(2 * ports):
            if load[c, p] > 0.0:
                if room[p] <= zero:
                    skipped[k] = any_skipped = True
                    break
                needed = max(needed, load[c, p] / room[p])
        if skipped[k]:
            for r in range(runs[c], runs[c + 1]):
                for a in range(start[r], end[r]):
                    rate[live[a]] = 0.0
            continue
        used[:] = 0.0
        for r in range(runs[c], runs[c + 1]):
            d, most = ports + destination[r], room[ports + destination[r]]
            taken = 0.0
            for a in range(start[r], end[r]):
                f = live[a]
                own = min(left[f] / needed, room[source[f]], most)
                rate[f] = own
                used[source[f]] += own
                taken += own
            used[d] = taken
        room -= used
    if any_skipped:
        _share_fairly(order[skipped], room, state, zero)
    for k in range(len(refill)):
        for r in range(runs[refill[k]], runs[refill[k] + 1]):
            most = room[ports + destination[r]]
            for a in range(start[r], end[r]):
                if most <= zero:
                    break
                f = live[a]
                more = min(room[source[f]], most)
                if more > zero:
                    rate[f] += more
                    room[source[f]] -= more
                    most -= more
            room[ports + destination[r]] = most


@unchecked
def _share_fairly(coflows: IntArray, room: FloatArray, state: Switch, zero: float) -> None:
    """Each flow gets the smaller of its equal parts of what its two ports have left."""
    source, runs, destination, start, end, live, _, rate, _, _ = state
    ports = len(room) // 2
    count, used = np.zeros(2 * ports), np.zeros(2 * ports)
    for counting in (True, False):
        for c in coflows:
            for r in range(runs[c], runs[c + 1]):
                d = ports + destination[r]
                if room[d] <= zero:
                    continue
                for a in range(start[r], end[r]):
                    s = source[live[a]]
                    if room[s] <= zero:
                        continue
                    if counting:
                        count[s] += 1.0
                        count[d] += 1.0
                    else:
                        own = min(room[s] / count[s], room[d] / count[d])
                        own = own if own > zero else 0.0
                        rate[live[a]] = own
                        used[s] += own
                        used[d] += own
    room -= used


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
    source, runs, destination, start, end, live, left, rate, load, finish = state
    ports = load.shape[1] // 2
    events, begun = 0, now  # when the last quantum began
    order = order.copy()
    zero = _NO_BITS if quantum > 0.0 else 1e-12 * capacity
    while len(order) and now < until:
        refill = order
        if len(due):
            key = np.zeros(len(order))
            for k in range(len(order)):
                key[k] = np.trunc(due[order[k]] - begun)
            refill = order[np.argsort(key, kind="mergesort")]
        share_madd(order, refill, capacity, state, zero)
        events += 1
        step = until - now
        for c in order:
            step = _departure(c, step, quantum, drained, state)
        now += step
        begun = now - quantum
        kept = 0
        for c in order:
            load[c] = 0.0
            for r in range(runs[c], runs[c + 1]):
                slot, total = start[r], 0.0
                for a in range(start[r], end[r]):
                    f = live[a]
                    sent = rate[f] * step
                    rest = left[f] - sent
                    if rest > (drained if quantum > 0.0 else drained * sent):
                        left[f] = rest
                        live[slot] = f
                        slot += 1
                        total += rest
                        load[c, source[f]] += rest
                    else:
                        left[f] = 0.0
                end[r] = slot
                load[c, ports + destination[r]] = total
            if np.all(load[c] == 0.0):
                finish[c] = now
            else:
                order[kept] = c
                kept += 1
        order = order[:kept]
    return events


@unchecked
def _departure(c: int, step: float, quantum: float, drained: float, state: Switch) -> float:
    """The time until coflow c ends at its rates, if that is before `step`."""
    longest = 0.0
    for r in range(state.runs[c], state.runs[c + 1]):
        for a in range(state.start[r], state.end[r]):
            f = state.live[a]
            left, rate = state.left[f], state.rate[f]
            if left > longest * rate:
                if left >= step * rate + drained:
                    return step
                if quantum > 0.0:
                    longest = max(longest, np.ceil((left - drained) / (rate * quantum)) * quantum)
                else:
                    longest = left / rate
    return min(longest, step)


@unchecked
def play_greedy(
    order: IntArray, ports: int, capacity: float, state: Switch, now: float, until: float
) -> int:
    """As `play_madd`: all ports have one rate, so that a flow gets all of it or nothing.

    What is sent by runs before the first in which a flow ends stays as it is.
    """
    source, runs, destination, start, end, live, left, _, load, finish = state
    words = (ports + _BITS - 1) // _BITS
    chain = np.zeros(np.sum(runs[order + 1] - runs[order]), np.int64)  # runs by priority
    owner = np.zeros(len(chain), np.int64)
    mask = np.zeros((len(chain), words), np.int64)  # sources of its live flows
    place = np.zeros((len(order), ports), np.int64)  # of a coflow's run to a destination
    wanted = np.zeros((len(order), words), np.int64)  # destinations of its live flows
    waiting = np.zeros(len(chain), np.int64)  # live flows
    n = 0
    for k in range(len(order)):
        for r in range(runs[order[k]], runs[order[k] + 1]):
            if end[r] == start[r]:
                continue
            chain[n], owner[n], place[k, destination[r]] = r, k, n
            wanted[k, destination[r] // _BITS] |= 1 << (destination[r] % _BITS)
            waiting[n] = end[r] - start[r]
            for a in range(start[r], end[r]):
                s = source[live[a]]
                mask[n, s // _BITS] |= 1 << (s % _BITS)
            n += 1
    free_in, free_out = np.zeros(words, np.int64), np.zeros(words, np.int64)
    for w in range(words):
        free_in[w] = free_out[w] = (1 << min(_BITS, ports - w * _BITS)) - 1
    sent, by = np.zeros(ports, np.int64), np.zeros(ports, np.int64)  # flows, and their runs
    ends = np.zeros(ports)  # when they will have drained, from `now` on
    flows, first, events, elapsed = 0, 0, 0, 0.0
    while elapsed < until - now:
        for k in range(first, len(order)):
            for v in range(words):
                able = wanted[k, v] & free_out[v]
                while able:
                    out = able & -able
                    able ^= out
                    m = place[k, v * _BITS + math.frexp(float(out))[1] - 1]
                    for w in range(words):
                        both = mask[m, w] & free_in[w]
                        if both:
                            bit = both & -both
                            free_in[w] ^= bit
                            free_out[v] ^= out
                            s = w * _BITS + math.frexp(float(bit))[1] - 1
                            r = chain[m]
                            stop = start[r + 1] if r + 1 < len(start) else len(source)
                            sent[flows] = start[r] + np.searchsorted(source[start[r] : stop], s)
                            by[flows] = m
                            ends[flows] = elapsed + left[sent[flows]] / capacity
                            flows += 1
                            break
        if flows == 0:
            break
        events += 1
        elapsed = min(until - now, ends[:flows].min())
        soon = elapsed * (1.0 + 1e-13)
        changed = n
        for j in range(flows):
            if ends[j] <= soon:
                changed = min(changed, by[j])
        if elapsed == until - now:
            changed = 0
        kept = 0
        for j in range(flows):
            f, m = sent[j], by[j]
            if m < changed:
                sent[kept], by[kept], ends[kept] = f, m, ends[j]
                kept += 1
                continue
            d = destination[chain[m]]
            in_word, in_bit = source[f] // _BITS, 1 << (source[f] % _BITS)
            out_word, out_bit = d // _BITS, 1 << (d % _BITS)
            free_in[in_word] |= in_bit
            free_out[out_word] |= out_bit
            left[f] = (ends[j] - elapsed) * capacity if ends[j] > soon else 0.0
            if left[f] == 0.0:
                mask[m, in_word] ^= in_bit
                waiting[m] -= 1
                if waiting[m] == 0:
                    k = owner[m]
                    wanted[k, out_word] ^= out_bit
                    if not np.any(wanted[k]):
                        finish[order[k]] = now + elapsed
        flows = kept
        first = owner[changed] if changed < n else len(order)
    load[order] = 0.0
    for m in range(n):  # what is left, for the next call
        r, c = chain[m], order[owner[m]]
        slot = start[r]
        for a in range(start[r], end[r]):
            f = live[a]
            if left[f] > 0.0:
                live[slot] = f
                slot += 1
                load[c, source[f]] += left[f]
                load[c, ports + destination[r]] += left[f]
        end[r] = slot
    return events
