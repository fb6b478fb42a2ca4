"""The fluid network: flows drain at max-min fair rates from event to event.

Rates hold between events and are found anew at each: when flows enter (arrival plus latency) and
when they have drained, all events of one instant together. A completion time is the sum of the
steps a flow was there for. One clock runs in the time of the arrivals, and the step to the next
entry is its distance from the clock: that step carries the rounding of the clock, 1e-16 of its
value, which is why arrivals should not lie far from 0 where flows are short.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from envs.arrays import FloatArray, IntArray
from envs.compilation import unchecked, unchecked_inner
from envs.network.max_min import Filling, checked_weights, fill, filling, with_limits


def ring_seconds(participants: int, size: float, latency: float, bandwidth: float) -> float:
    """2 (n - 1) (latency + S / n / B): a ring all-reduce of S bytes by n participants.

    n - 1 rounds of S / n bytes each scatter the sums, n - 1 gather them (Patarasuk and Yuan,
    Bandwidth optimal all-reduce algorithms for clusters of workstations, JPDC 69(2), 2009).
    """
    n = participants
    return 2 * (n - 1) * (latency + size / n / bandwidth)


_DRAINED = 1e-12  # a flow with less than this share of its volume left has ended: rounding


@dataclass(frozen=True, eq=False)
class RateHistory:
    """The rates of the subflows: R rows, one for each time a subflow has a positive rate."""

    start: FloatArray  # (R,) s
    duration: FloatArray  # (R,) s
    path: IntArray  # (R,) path of the flow set
    rate: FloatArray  # (R,) bytes/s


@dataclass(frozen=True, eq=False)
class FluidResult:
    """When flows end, and what was counted on the way."""

    completion: FloatArray  # (F,) s from arrival to end, inf for a flow that never ends
    num_events: int  # instants at which rates were found anew
    history: RateHistory | None


def simulate_flows(
    capacity: FloatArray, flows: FlowSet, *, record_rates: bool = False
) -> FluidResult:
    """Completion times of `flows` over links of `capacity` (K,) bytes/s.

    A flow without a positive rate to the end of the simulation (on a link of capacity 0, of weight
    0, or behind such a one of a more urgent class) never ends.

    Args:
        capacity: of each link, not negative; inf for a link that is never full. Every path has a
            finite one, or its flow a limit.
        record_rates: keep all rates, a row for each path and event.
    """
    capacity = np.ascontiguousarray(capacity, dtype=np.float64)
    link_ptr, path_links, rooms = with_limits(
        capacity, flows.link_ptr, flows.path_links, flows.limit, flows.path_flow
    )
    entry = flows.arrival + flows.latency
    f, p = flows.num_flows, flows.num_paths
    age = np.full(f, np.inf)
    state = _State(
        left=flows.volume.copy(),
        rate=np.zeros(f),
        due=np.zeros(f),
        elapsed=np.zeros(f),
        active=np.zeros(f, np.int64),
        paths=np.zeros(p, np.int64),
        path_rate=np.zeros(p),
    )
    events, rows = _drain(
        entry, np.argsort(entry, kind="stable"), flows.volume, flows.path_ptr, flows.path_flow,
        link_ptr, path_links, checked_weights(flows.weight)[flows.path_flow],
        flows.priority[flows.path_flow], rooms, filling(len(rooms), len(path_links)), state, age,
        record_rates,
    )  # fmt: skip
    history = None
    if record_rates:
        start, duration, path, rate = rows.T
        history = RateHistory(start, duration, path.astype(np.int64), rate)
    return FluidResult(flows.latency + age, int(events), history)


class _State(NamedTuple):
    """What changes from event to event."""

    left: FloatArray  # (F,) bytes
    rate: FloatArray  # (F,) bytes/s
    due: FloatArray  # (F,) s until it has drained at this rate
    elapsed: FloatArray  # (F,) s since its entry
    active: IntArray  # (F,) flows in the network
    paths: IntArray  # (P,) their paths, by class
    path_rate: FloatArray  # (P,) bytes/s


@unchecked
def _drain(
    entry: FloatArray,  # (F,)
    order: IntArray,  # (F,) flows by entry
    volume: FloatArray,  # (F,)
    path_ptr: IntArray,  # (F + 1,)
    path_flow: IntArray,  # (P,)
    link_ptr: IntArray,  # (P + 1,)
    path_links: IntArray,
    weight: FloatArray,  # (P,)
    priority: IntArray,  # (P,)
    capacity: FloatArray,  # (K,)
    work: Filling,
    state: _State,
    age: FloatArray,  # (F,) in: inf; out: from entry to end
    record: bool,
) -> tuple[int, FloatArray]:
    """Plays the whole simulation; returns the number of events and the rows of the history.

    Every turn of the loop admits a flow or ends one.
    """
    rows = np.zeros((64 if record else 0, 4))
    num_active, num_paths, num_rows, events = 0, 0, 0, 0
    entered, clock = 0, entry[order[0]] if len(order) else 0.0
    while True:
        wait = max(entry[order[entered]] - clock, 0.0) if entered < len(order) else np.inf
        step = min(wait, _next_end(num_active, state))
        if step == np.inf:
            return events, rows[:num_rows]
        if record:
            rows, num_rows = _record(clock, step, num_paths, state, rows, num_rows)
        still = _advance(step, num_active, volume, state, age)
        if still < num_active:
            num_active, num_paths = still, _leave(num_paths, path_flow, age, state)
        clock += step
        if wait <= step:
            now = entry[order[entered]]
            while entered < len(order) and entry[order[entered]] == now:
                flow = order[entered]
                entered += 1
                if volume[flow] == 0.0:
                    age[flow] = 0.0
                    continue
                state.active[num_active] = flow
                num_active += 1
                num_paths = _enter(flow, num_paths, path_ptr, priority, state)
        fill(state.paths, num_paths, link_ptr, path_links, weight, priority, capacity,
             state.path_rate, work)  # fmt: skip
        _add_up(num_active, path_ptr, state)
        events += 1


@unchecked_inner
def _next_end(num_active: int, state: _State) -> float:
    """Seconds until the next flow has drained, inf where none does."""
    step = np.inf
    for a in range(num_active):
        flow = state.active[a]
        rate = state.rate[flow]
        state.due[flow] = state.left[flow] / rate if rate > 0.0 else np.inf
        step = min(step, state.due[flow])
    return step


@unchecked_inner
def _advance(
    step: float, num_active: int, volume: FloatArray, state: _State, age: FloatArray
) -> int:
    """Drains all flows for `step` seconds; returns how many are left."""
    still = 0
    for a in range(num_active):
        flow = state.active[a]
        state.elapsed[flow] += step
        state.left[flow] -= state.rate[flow] * step
        if state.due[flow] <= step or state.left[flow] <= _DRAINED * volume[flow]:
            age[flow] = state.elapsed[flow]
        else:
            state.active[still] = flow
            still += 1
    return still


@unchecked_inner
def _leave(num_paths: int, path_flow: IntArray, age: FloatArray, state: _State) -> int:
    """Takes out the paths of flows that have ended; returns how many are left."""
    still = 0
    for a in range(num_paths):
        path = state.paths[a]
        if age[path_flow[path]] == np.inf:
            state.paths[still] = path
            still += 1
    return still


@unchecked_inner
def _enter(flow: int, num_paths: int, path_ptr: IntArray, priority: IntArray, state: _State) -> int:
    """Puts the paths of a flow behind those of its class; returns how many there are."""
    for path in range(path_ptr[flow], path_ptr[flow + 1]):
        slot = num_paths
        while slot > 0 and priority[state.paths[slot - 1]] > priority[path]:
            state.paths[slot] = state.paths[slot - 1]
            slot -= 1
        state.paths[slot] = path
        num_paths += 1
    return num_paths


@unchecked_inner
def _add_up(num_active: int, path_ptr: IntArray, state: _State) -> None:
    """The rates of the flows, from those of their paths."""
    for a in range(num_active):
        flow = state.active[a]
        state.rate[flow] = 0.0
        for path in range(path_ptr[flow], path_ptr[flow + 1]):
            state.rate[flow] += state.path_rate[path]


@unchecked_inner
def _record(
    start: float, step: float, num_paths: int, state: _State, rows: FloatArray, num_rows: int
) -> tuple[FloatArray, int]:
    """Adds a row for every path of positive rate; the rows grow as needed."""
    if num_rows + num_paths > len(rows):
        longer = np.zeros((2 * (num_rows + num_paths), 4))
        longer[:num_rows] = rows[:num_rows]
        rows = longer
    for a in range(num_paths):
        path = state.paths[a]
        if state.path_rate[path] > 0.0 and step > 0.0:
            rows[num_rows, 0] = start
            rows[num_rows, 1] = step
            rows[num_rows, 2] = path
            rows[num_rows, 3] = state.path_rate[path]
            num_rows += 1
    return rows, num_rows


@dataclass(frozen=True, eq=False)
class FlowSet:
    """F flows in columns, over P paths.

    A flow waits for its latency, then drains its volume over all its paths at once: every path is a
    subflow with a max-min fair rate of its own, and the flow drains at their sum. `limit` holds
    that sum. Times are seconds and rates bytes/s; another unit of time serves as well where all
    times and rates of a simulation are in it.
    """

    arrival: FloatArray  # (F,) s
    volume: FloatArray  # (F,) bytes
    path_ptr: IntArray  # (F + 1,) paths of flow f are rows path_ptr[f] to the next
    link_ptr: IntArray  # (P + 1,) links of each path
    path_links: IntArray  # links of the paths, none twice in a path
    priority: IntArray  # (F,) class; the smallest is served first, the next from what it leaves
    weight: FloatArray  # (F,) of each of its subflows
    latency: FloatArray  # (F,) s
    limit: FloatArray  # (F,) bytes/s, inf for none

    @property
    def num_flows(self) -> int:
        return len(self.arrival)

    @property
    def num_paths(self) -> int:
        return len(self.link_ptr) - 1

    @cached_property
    def path_flow(self) -> IntArray:
        """(P,) the flow of each path."""
        return np.repeat(np.arange(self.num_flows), np.diff(self.path_ptr))


def single_paths(
    arrival: FloatArray,  # (F,)
    volume: FloatArray,  # (F,)
    link_ptr: IntArray,  # (F + 1,)
    path_links: IntArray,
) -> FlowSet:
    """Flows of one class and weight over a path each, without latencies and limits."""
    flows = len(arrival)
    return FlowSet(
        arrival, volume, np.arange(flows + 1), link_ptr, path_links,
        priority=np.zeros(flows, np.int64), weight=np.ones(flows), latency=np.zeros(flows),
        limit=np.full(flows, np.inf),
    )  # fmt: skip
