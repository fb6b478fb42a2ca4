"""What a contiguous split divides: items that stay whole, messages between them, device classes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from agents.step.grouping import atoms, numbered, topological
from agents.step.lower_bound import longest_paths
from envs.arrays import FloatArray, IntArray, sums_before
from envs.graphs.contraction import sum_rows
from envs.graphs.op_graph import NONE, Phase
from envs.partition.problem import HostTraffic
from envs.step.problem import StepProblem


@dataclass(frozen=True, eq=False)
class Rows:
    """Lists of integers, one after another: row i is `value[ptr[i] : ptr[i + 1]]`."""

    ptr: IntArray  # (R + 1,)
    value: IntArray  # (sum of lengths,)

    @classmethod
    def of(cls, row: IntArray, value: IntArray, count: int) -> Rows:
        """`count` rows; row[i] receives value[i], values ascend in each row."""
        order = np.lexsort((value, row))
        lengths = np.bincount(row, minlength=count)
        return cls(
            sums_before(lengths),
            np.ascontiguousarray(value[order], dtype=np.int64),
        )

    def take(self, rows: IntArray) -> tuple[IntArray, IntArray]:
        """Which of `rows` each entry is of, and the entries, row after row."""
        lengths = np.diff(self.ptr)[rows]
        of = np.repeat(np.arange(len(rows)), lengths)
        place = np.arange(len(of)) - np.repeat(sums_before(lengths)[:-1], lengths)
        return of, self.value[self.ptr[rows][of] + place]


@dataclass(frozen=True, eq=False)
class Items:
    """n items in topological order, for K classes of interchangeable devices.

    An item is a set of operators that every contiguous placement keeps together, a co-location
    group, or several that depend on each other in a circle; or that one of the best keeps together:
    what takes no time and no memory anywhere stays with the only other item it depends on, reads
    from or writes to, since moving it there costs nothing and parts nothing. Devices are
    interchangeable when they compute everything, send everything and hold as much in the same time.
    Messages among the same items are added up, and those inside one item are left out.

    `exact`: every contiguous placement is one of the items. It is not where operators that are
    bound to nothing, those of an optimizer, were put with the largest of their inputs.
    """

    of: IntArray  # (N,) item of every operator
    devices: tuple[IntArray, ...]  # K classes of devices
    line: IntArray  # (D,) class of each device, in the order in which they were given
    seconds: FloatArray  # (n, K), inf: not supported
    state: FloatArray  # (n,) bytes
    capacity: FloatArray  # (K,) bytes
    arcs: IntArray  # (A, 2) items u, v: u is never on a device behind v's
    members: Rows  # (M,) items among which a message passes, its producer's included
    weight: FloatArray  # (M, K) seconds a device is busy with a message that does not stay on it
    exact: bool

    @classmethod
    def build(
        cls, step: StepProblem, precedence: IntArray, traffic: HostTraffic, devices: IntArray
    ) -> Items:
        """The items of `step` under `precedence` (P, 2 operators) for some of its `devices`."""
        atom, exact = _atoms(step)
        facts = np.concatenate([step.op_seconds, traffic.seconds, step.capacity[None, :]])
        line = numbered(np.unique(facts[:, devices], axis=1, return_inverse=True)[1])
        classes = tuple(devices[line == k] for k in range(line.max() + 1))
        first = np.array([members[0] for members in classes])
        of = _without_idle(circles(atom, precedence), step, precedence, traffic, first)
        of = _ordered(of, precedence)
        count = int(of.max(initial=NONE)) + 1
        seconds = sum_rows(step.op_seconds[:, first], of, count)
        state = sum_rows(step.graph.state_bytes, of, count)
        members, weight = _messages(traffic, of, first)
        return cls(
            of=of,
            devices=classes,
            line=line,
            seconds=seconds,
            state=state,
            capacity=step.capacity[first],
            arcs=between(of[precedence]),
            members=members,
            weight=weight,
            exact=exact,
        )

    @property
    def count(self) -> int:
        return len(self.state)

    @property
    def class_sizes(self) -> IntArray:
        """(K,) devices of each class."""
        return np.array([len(members) for members in self.devices], dtype=np.int64)


def between(pairs: IntArray) -> IntArray:
    """The rows of `pairs` whose two entries differ, once each."""
    return np.unique(pairs[pairs[:, 0] != pairs[:, 1]], axis=0).reshape(-1, 2)


def _atoms(step: StepProblem) -> tuple[IntArray, bool]:
    """(N,) co-location group or free operator, 0..A-1, and whether none was put with another.

    A group of optimizer operators alone follows the producer of the largest input of its first.
    """
    graph, atom = step.graph, atoms(step)
    bound = np.zeros(len(atom), np.bool_)
    bound[atom[graph.phase != Phase.OPTIMIZER]] = True
    loose = np.flatnonzero(~bound[atom])
    if len(loose):
        edges = graph.edges
        order = np.lexsort((graph.tensor_bytes[edges[:, 2]], edges[:, 1]))
        largest = np.full(len(atom), NONE, dtype=np.int64)
        largest[edges[order, 1]] = edges[order, 0]
        for op in loose.tolist():
            if not bound[atom[op]] and largest[op] != NONE:
                atom[atom == atom[op]] = atom[largest[op]]
    return numbered(atom), len(loose) == 0


def circles(atom: IntArray, precedence: IntArray) -> IntArray:
    """(N,) strongly connected component of every operator's atom."""
    count = int(atom.max(initial=NONE)) + 1
    arcs = between(atom[precedence])
    graph = coo_array((np.ones(len(arcs)), (arcs[:, 0], arcs[:, 1])), shape=(count, count))
    _, component = connected_components(graph, directed=True, connection="strong")
    return np.asarray(component, dtype=np.int64)[atom]


def _without_idle(
    of: IntArray, step: StepProblem, precedence: IntArray, traffic: HostTraffic, first: IntArray
) -> IntArray:
    """`of`, where items that cost nothing are put together with their only neighbour."""
    count = int(of.max(initial=NONE)) + 1
    idle = (sum_rows(step.op_seconds[:, first], of, count) == 0.0).all(axis=1)
    idle &= sum_rows(step.graph.state_bytes, of, count) == 0.0
    if not idle.any():
        return of
    uses = traffic.uses()
    sent = np.stack([traffic.producer[uses[:, 0]], uses[:, 1]], axis=1)
    neighbours: list[set[int]] = [set() for _ in range(count)]
    for u, v in between(of[np.concatenate([precedence, sent])]).tolist():
        neighbours[u].add(v)
        neighbours[v].add(u)
    target = list(range(count))
    lonely = [v for v in np.flatnonzero(idle).tolist() if len(neighbours[v]) == 1]
    while lonely:
        v = lonely.pop()
        if not neighbours[v]:
            continue  # its only neighbour was put together with it
        u = neighbours[v].pop()
        target[v] = u
        neighbours[u].discard(v)
        if idle[u] and len(neighbours[u]) == 1:
            lonely.append(u)
    for v in range(count):
        while target[v] != target[target[v]]:
            target[v] = target[target[v]]
    return numbered(np.array(target)[of])


def _ordered(of: IntArray, precedence: IntArray) -> IntArray:
    """`of`, its items renumbered topologically, those with the first operator first."""
    count = int(of.max(initial=NONE)) + 1
    first = np.full(count, len(of), dtype=np.int64)
    np.minimum.at(first, of, np.arange(len(of)))
    return np.argsort(topological(between(of[precedence]), first))[of]


def _messages(traffic: HostTraffic, of: IntArray, first: IntArray) -> tuple[Rows, FloatArray]:
    """Messages that join different items, and their seconds on the classes' `first` devices."""
    merged: dict[tuple[int, ...], FloatArray] = {}
    for message, seconds in enumerate(traffic.seconds[:, first]):
        ends = slice(traffic.consumer_ptr[message], traffic.consumer_ptr[message + 1])
        joined = {int(of[traffic.producer[message]]), *of[traffic.consumer[ends]].tolist()}
        members = tuple(sorted(joined))
        if len(members) > 1 and seconds.any():
            merged[members] = merged.get(members, 0.0) + seconds
    owner = np.repeat(np.arange(len(merged)), [len(members) for members in merged])
    value = np.array([item for members in merged for item in members], dtype=np.int64)
    weight = np.array(list(merged.values())).reshape(len(merged), len(first))
    return Rows.of(owner, value, len(merged)), weight


def orders(items: Items) -> Iterator[IntArray]:
    """Orders in which a split is likely to be good: (n,) items each, no two alike.

    As numbered; depth first, which finishes a branch before it begins the next one, from the front
    and from the back; and by the seconds before each item, which takes branches side by side.
    """
    n, arcs = items.count, items.arcs
    seen = set()
    for order in (
        np.arange(n),
        _depth_first(n, arcs),
        _depth_first(n, arcs[:, ::-1])[::-1],
        topological(arcs, np.argsort(np.argsort(_head(items), kind="stable"))),
    ):
        if order.tobytes() not in seen:
            seen.add(order.tobytes())
            yield np.ascontiguousarray(order, dtype=np.int64)


def _depth_first(count: int, arcs: IntArray) -> IntArray:
    """Of the items that are ready, the one that became ready last."""
    following = Rows.of(arcs[:, 0], arcs[:, 1], count)
    ptr, value = following.ptr.tolist(), following.value.tolist()
    waiting = np.bincount(arcs[:, 1], minlength=count).tolist()
    ready = [v for v in range(count - 1, -1, -1) if not waiting[v]]
    order = []
    while ready:
        v = ready.pop()
        order.append(v)
        for w in value[ptr[v] : ptr[v + 1]]:
            waiting[w] -= 1
            if not waiting[w]:
                ready.append(w)
    return np.array(order, dtype=np.int64)


def _head(items: Items) -> FloatArray:
    """(n,) the longest path, in seconds of the fastest class, that ends before each item."""
    fastest = items.seconds.min(axis=1, initial=np.inf)
    fastest = np.where(np.isfinite(fastest), fastest, 0.0)
    after = Rows.of(items.arcs[:, 0], items.arcs[:, 1], items.count)
    # items are in topological order
    head: FloatArray = longest_paths(fastest, after.ptr, after.value)[0]
    return head
