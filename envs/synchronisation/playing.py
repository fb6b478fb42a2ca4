"""`play`: a plan of synchronisation in the fluid network, chunk by chunk.

Every way of every tree is a *connection*. A tree's share is cut into equal chunks of at most
`plan.chunk` bytes. A connection sends its chunks in order, one at a time; chunk c of a way towards
the root may leave when its sender has added chunk c of all that it receives, chunk c of a way from
the root when it has arrived (at the root: when its sum is formed). A chunk that has drained arrives
after the latencies along its way; meanwhile the next one drains.

Connections share the directed links max-min fairly, weighted by the shares of their trees: a
connection therefore never drains slower than its share of the vector in `plan.busiest_seconds`,
whatever the others do. With equal weights, a tree with a large share beside small ones would be
held back. Connections over the same links are one flow of the filling, with one clock: the bytes
that a unit of weight has drained. Rates are found anew only when the weights on some links change.

An instant costs O(L) for L such groups of connections, and a filling of them where rates change;
memory is 24 bytes a message (a chunk on a connection).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.arrays import FloatArray, IntArray, sums_before
from envs.compilation import unchecked, unchecked_inner
from envs.errors import InputError
from envs.heap import pop, push
from envs.network.max_min import Filling, fill, filling
from envs.synchronisation.plan import SynchronisationPlan, VectorSum, Way

Connection = tuple[int, Way, bool]  # tree of the plan, way, whether it leads to the root

MOST_MESSAGES = 4_000_000
_SAME = 1e-12  # instants closer than this share of the time are one, and so are amounts

_ARRIVES, _ADDED, _BEGINS = 0, 1, 2  # kinds of events
_EVENTS, _READY, _ACTIVE, _LEFT, _CHANGED = 0, 1, 2, 3, 4  # what `_State.tally` counts


@dataclass(frozen=True, eq=False)
class Played:
    """When every message of a plan began to drain, had drained, and arrived.

    The messages of connection c are rows `first[c]` to `first[c + 1] - 1`, chunk by chunk.
    """

    seconds: float  # until the last chunk has arrived and is added
    connections: list[Connection]  # (C,)
    first: IntArray  # (C + 1,)
    start: FloatArray  # (M,) seconds
    drained: FloatArray  # (M,)
    arrived: FloatArray  # (M,)


def seconds_of(problem: VectorSum, plan: SynchronisationPlan) -> float:
    """Seconds by the plan's own model where it has one; otherwise as it is played.

    Raises:
        InputError: as `play`.
    """
    own = plan.own_seconds(problem)
    return play(problem, plan).seconds if own is None else own


def play(
    problem: VectorSum,
    plan: SynchronisationPlan,
    summing: float = 0.0,
    overhead: float = 0.0,
) -> Played:
    """The plan alone on the problem's network; `plan.violations(problem)` is empty.

    Args:
        summing: seconds to add one byte that has arrived. A vertex adds chunk after chunk as they
            arrive; switches (that forward, and do not take part) add at the rate of their links.
        overhead: seconds a connection spends on each chunk before it drains, as programs and
            drivers do for each message.

    Raises:
        InputError: more than `MOST_MESSAGES` messages, a way over one link twice, or trees that
            wait for what never arrives.
    """
    connections = [
        (number, way, reduces)
        for number, tree in enumerate(plan.trees)
        for ways, reduces in ((tree.reduce, True), (tree.broadcast, False))
        for way in ways
    ]
    chunks = [max(math.ceil(t.share * problem.size / plan.chunk), 1) for t in plan.trees]
    messages = sum(chunks[number] for number, _, _ in connections)
    if messages > MOST_MESSAGES:
        raise InputError(
            f"{messages:,} messages, at most {MOST_MESSAGES:,}: chunks of {plan.chunk:g} bytes "
            f"are too small for {problem.size:g}",
            field="chunk",
        )
    network = problem.network
    groups: dict[tuple[int, ...], int] = {}
    links = [tuple(network.links_of(way)) for _, way, _ in connections]
    for route, (_, way, _) in zip(links, connections, strict=True):
        if len(set(route)) != len(route):
            raise InputError(f"way {way} crosses a link twice", field="plan")
        groups.setdefault(route, len(groups))
    group = np.array([groups[route] for route in links], dtype=np.int64)
    of = np.array([number for number, _, _ in connections], dtype=np.int64)
    count = np.array(chunks, dtype=np.int64)[of]
    share = np.array([float(tree.share) for tree in plan.trees])[of]
    ends = np.array([way[-1] for _, way, _ in connections], dtype=np.int64)
    adds = np.array([reduces for _, _, reduces in connections], dtype=np.bool_)
    adds &= ~(network.forwards & ~network.participant)[ends]
    first = sums_before(count)
    setting = _Setting(
        first=first,
        share=share,
        quantum=problem.size / count,
        latency=np.array([network.latency[list(route)].sum() for route in links]),
        adding=np.where(adds, summing * share * problem.size / count, 0.0),
        end=ends,
        group=group,
        group_first=sums_before(np.bincount(group, minlength=len(groups))),
        **_gates(plan, connections, chunks),
        overhead=overhead,
    )
    link_ptr = sums_before(np.array([len(route) for route in groups], dtype=np.int64))
    entries = np.array([link for route in groups for link in route], dtype=np.int64)
    state = _state(setting, len(groups), network.num_vertices)
    seconds = _run(
        setting, state, link_ptr, entries, network.capacity,
        np.zeros(len(groups), dtype=np.int64), filling(network.num_links, len(entries)),
    )  # fmt: skip
    if state.tally[_LEFT]:
        raise InputError(f"{state.tally[_LEFT]} messages wait for what never arrives", field="plan")
    return Played(seconds, connections, first, state.start, state.drained, state.arrived)


def _gates(
    plan: SynchronisationPlan, connections: list[Connection], chunks: list[int]
) -> dict[str, IntArray]:
    """What vertices of trees hold: a gate passes chunk c when all its senders have brought it."""
    number: dict[tuple[int, int, bool], int] = {}

    def gate(tree: int, vertex: int, sums: bool) -> int:
        return number.setdefault((tree, vertex, sums), len(number))

    opens = [
        gate(tree, way[0], reduces or way[0] == plan.trees[tree].root)
        for tree, way, reduces in connections
    ]
    awaits = [gate(tree, way[-1], reduces) for tree, way, reduces in connections]
    found = {"opens": np.array(opens, np.int64), "awaits": np.array(awaits, np.int64)}
    for name, owner in (("followers", found["opens"]), ("senders", found["awaits"])):
        found[f"{name}_ptr"] = sums_before(np.bincount(owner, minlength=len(number)))
        found[name] = np.argsort(owner, kind="stable")
    return found | {"gate_chunks": np.array([chunks[tree] for tree, _, _ in number], np.int64)}


class _Setting(NamedTuple):
    """C connections in L groups of the same links, and G gates."""

    first: IntArray  # (C + 1,) first message
    share: FloatArray  # (C,) weight
    quantum: FloatArray  # (C,) bytes of a chunk over the weight
    latency: FloatArray  # (C,) s
    adding: FloatArray  # (C,) s that a chunk keeps the adder of `end`
    end: IntArray  # (C,) vertex
    group: IntArray  # (C,)
    group_first: IntArray  # (L + 1,) slots in the heap of a group
    opens: IntArray  # (C,) gate
    awaits: IntArray  # (C,) gate
    senders_ptr: IntArray
    senders: IntArray
    followers_ptr: IntArray
    followers: IntArray
    gate_chunks: IntArray  # (G,)
    overhead: float  # s


class _State(NamedTuple):
    """What changes from instant to instant."""

    sent: IntArray  # (C,) chunks that have drained
    landed: IntArray  # (C,) chunks that have arrived
    brought: IntArray  # (C,) chunks that have arrived and are added
    busy: NDArray[np.bool_]  # (C,) whether a chunk drains or is about to
    passed: IntArray  # (G,) chunks
    complete: IntArray  # (G,) senders that have brought the next chunk
    event_at: FloatArray  # heap of what happens later, by its time: arrivals and the like
    event: IntArray
    heap_key: FloatArray  # (C,) a heap for each group, by the clock at which a chunk has drained
    heap_item: IntArray  # (C,)
    size: IntArray  # (L,) connections of a group that drain
    weight: FloatArray  # (L,) of these
    filled: FloatArray  # (L,) the same when rates were found
    clock: FloatArray  # (L,) bytes that a unit of weight has drained
    rate: FloatArray  # (L,) bytes/s
    active: IntArray  # (L,) groups that drained when rates were found
    ready: IntArray  # (C,) connections that may have a chunk to send
    free: FloatArray  # (V,) when the adder of a vertex is free
    start: FloatArray  # (M,)
    drained: FloatArray  # (M,)
    arrived: FloatArray  # (M,)
    tally: IntArray  # (5,) events, ready, active, messages left, whether weights may have changed


def _state(setting: _Setting, groups: int, vertices: int) -> _State:
    c, m, gates = len(setting.share), int(setting.first[-1]), len(setting.gate_chunks)

    def integers(size: int) -> IntArray:
        return np.zeros(size, np.int64)

    zeros, pending = np.zeros, m + 1
    return _State(
        integers(c), integers(c), integers(c), zeros(c, np.bool_), integers(gates), integers(gates),
        zeros(pending), integers(pending), zeros(c), integers(c), integers(groups), zeros(groups),
        zeros(groups), zeros(groups), zeros(groups), integers(groups), integers(c), zeros(vertices),
        zeros(m), zeros(m), zeros(m), np.array([0, 0, 0, m, 0], np.int64),
    )  # fmt: skip


@unchecked
def _run(
    s: _Setting,
    state: _State,
    link_ptr: IntArray,  # (L + 1,)
    links: IntArray,
    capacity: FloatArray,  # (K,)
    priority: IntArray,  # (L,) zeros
    work: Filling,
) -> float:
    """Plays all messages; returns when the last one ends."""
    for gate in range(len(state.passed)):
        if s.senders_ptr[gate] == s.senders_ptr[gate + 1]:
            state.passed[gate] = s.gate_chunks[gate]
            _wake(s, state, gate)
    now = 0.0
    while True:
        _settle(s, state, now)
        if _weights_differ(state):
            state.tally[_ACTIVE] = 0
            for g in range(len(state.size)):
                state.filled[g] = state.weight[g]
                if state.size[g] > 0:
                    state.active[state.tally[_ACTIVE]] = g
                    state.tally[_ACTIVE] += 1
            fill(state.active, state.tally[_ACTIVE], link_ptr, links, state.weight, priority,
                 capacity, state.rate, work)  # fmt: skip
        step = state.event_at[0] - now if state.tally[_EVENTS] > 0 else np.inf
        for a in range(state.tally[_ACTIVE]):
            g = state.active[a]
            if state.size[g] > 0:
                ahead = state.heap_key[s.group_first[g]] - state.clock[g]
                step = min(step, ahead * state.filled[g] / state.rate[g])
        if step == np.inf:
            return now
        step = max(step, 0.0)
        now += step
        for a in range(state.tally[_ACTIVE]):
            _drain(s, state, state.active[a], now, step)


@unchecked_inner
def _weights_differ(state: _State) -> bool:
    """Whether some group's weight is not that of the last filling."""
    differ = False
    if state.tally[_CHANGED] > 0:
        for g in range(len(state.size)):
            differ |= abs(state.weight[g] - state.filled[g]) > _SAME * state.weight[g]
        state.tally[_CHANGED] = 0
    return differ


@unchecked_inner
def _settle(s: _Setting, state: _State, now: float) -> None:
    """Everything that happens at this instant but the end of draining."""
    connections = len(s.share)
    while True:
        if state.tally[_READY] > 0:
            state.tally[_READY] -= 1
            c = state.ready[state.tally[_READY]]
            if not state.busy[c] and state.sent[c] < state.passed[s.opens[c]]:
                state.busy[c] = True
                state.start[s.first[c] + state.sent[c]] = now
                if s.overhead > 0.0:
                    _later(state, now + s.overhead, _BEGINS * connections + c)
                else:
                    _join(s, state, c)
        elif state.tally[_EVENTS] > 0 and state.event_at[0] <= now * (1.0 + _SAME):
            kind, c = state.event[0] // connections, state.event[0] % connections
            state.tally[_EVENTS] = pop(state.event_at, state.event, state.tally[_EVENTS])
            if kind == _ARRIVES:
                state.arrived[s.first[c] + state.landed[c]] = now
                state.landed[c] += 1
            if kind == _BEGINS:
                _join(s, state, c)
            elif kind == _ARRIVES and s.adding[c] > 0.0:
                state.free[s.end[c]] = max(now, state.free[s.end[c]]) + s.adding[c]
                _later(state, state.free[s.end[c]], _ADDED * connections + c)
            else:
                _deliver(s, state, c)
        else:
            return


@unchecked_inner
def _later(state: _State, at: float, event: int) -> None:
    state.tally[_EVENTS] = push(state.event_at, state.event, state.tally[_EVENTS], at, event)


@unchecked_inner
def _join(s: _Setting, state: _State, c: int) -> None:
    """The next chunk of connection c drains."""
    g = s.group[c]
    key = state.clock[g] + s.quantum[c]
    low = s.group_first[g]
    state.size[g] = push(state.heap_key[low:], state.heap_item[low:], state.size[g], key, c)
    state.weight[g] += s.share[c]
    state.tally[_CHANGED] = 1


@unchecked_inner
def _deliver(s: _Setting, state: _State, c: int) -> None:
    """Connection c has brought its next chunk to its gate."""
    state.tally[_LEFT] -= 1
    gate = s.awaits[c]
    low, high = s.senders_ptr[gate], s.senders_ptr[gate + 1]
    if state.brought[c] == state.passed[gate]:
        state.complete[gate] += 1
    state.brought[c] += 1
    while state.complete[gate] == high - low and state.passed[gate] < s.gate_chunks[gate]:
        state.passed[gate] += 1
        state.complete[gate] = 0
        for i in range(low, high):
            state.complete[gate] += state.brought[s.senders[i]] > state.passed[gate]
    _wake(s, state, gate)


@unchecked_inner
def _wake(s: _Setting, state: _State, gate: int) -> None:
    """Those that send what a gate passes look whether there is something."""
    for f in range(s.followers_ptr[gate], s.followers_ptr[gate + 1]):
        c = s.followers[f]
        if not state.busy[c] and state.sent[c] < state.passed[gate]:
            state.ready[state.tally[_READY]] = c
            state.tally[_READY] += 1


@unchecked_inner
def _drain(s: _Setting, state: _State, g: int, now: float, step: float) -> None:
    """Group g drains for `step` seconds until `now`; what follows at once keeps its place."""
    low = s.group_first[g]
    keys, items = state.heap_key[low:], state.heap_item[low:]
    state.clock[g] += state.rate[g] / state.filled[g] * step
    while state.size[g] > 0 and keys[0] <= state.clock[g] * (1.0 + _SAME):
        c, key = items[0], keys[0]
        state.size[g] = pop(keys, items, state.size[g])
        state.drained[s.first[c] + state.sent[c]] = now
        state.sent[c] += 1
        _later(state, now + s.latency[c], _ARRIVES * len(s.share) + c)
        more = state.sent[c] < state.passed[s.opens[c]]
        if more and s.overhead == 0.0:
            state.start[s.first[c] + state.sent[c]] = now
            state.size[g] = push(keys, items, state.size[g], key + s.quantum[c], c)
            continue
        state.weight[g] = state.weight[g] - s.share[c] if state.size[g] > 0 else 0.0
        state.busy[c] = False
        state.tally[_CHANGED] = 1
        if more:
            state.ready[state.tally[_READY]] = c
            state.tally[_READY] += 1
    if state.size[g] == 0:
        state.clock[g] = 0.0
