"""The most bytes a second that all-gather, reduce-scatter and all-reduce can pass, exactly.

Every byte of the participants in a set S of vertices leaves S if a participant stands outside.
All-gather therefore passes at most `n min_S capacity leaving S / participants in S`, and trees
reach it where as much leads into every switch as out of it (Zhang, Wu and Li, INFOCOM 2021; Zhao et
al., ForestColl, NSDI 2025, section 4). The cuts are found by maximum flow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import gcd, lcm
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agents.max_flow import max_flow
from envs.arrays import BoolArray, IntArray
from envs.synchronisation.link_graph import LinkGraph
from envs.synchronisation.problem import SynchronisationProblem

_LARGEST = 2**61  # sums of two capacities stay below 2^63


class _Arcs(NamedTuple):
    """Links both ways, from one vertex more to all, from all to another, and a last one before."""

    ptr: IntArray
    tail: IntArray
    head: IntArray
    twin: IntArray
    into: IntArray  # (V,) from the source
    out: IntArray  # (V,) to the sink
    first: int  # of all flow
    inner: IntArray  # arcs of the network itself
    place: IntArray  # of their capacities in the matrix


class FlowNetwork:
    """V vertices; beyond 64 bits the kernel runs uncompiled, on Python's integers.

    Args:
        links: capacities.
        most: no flow that is asked for is larger.
    """

    def __init__(self, size: int, links: Mapping[tuple[int, int], int], most: int) -> None:
        exact = max(most, sum(links.values())) >= _LARGEST
        self.capacity: NDArray[Any] = np.zeros((size, size), dtype=object if exact else np.int64)
        for pair, capacity in links.items():
            self.capacity[pair] = capacity
        self._kernel = max_flow.py_func if exact else max_flow
        self._known: _Arcs | None = None

    def add(self, u: int, v: int, amount: int) -> None:
        """Raise the capacity of the link from u to v."""
        if self.capacity[u, v] == 0:
            self._known = None
        self.capacity[u, v] += amount

    def add_vertex(self) -> int:
        """A new vertex without links."""
        self.capacity = np.pad(self.capacity, (0, 1))
        self._known = None
        return len(self.capacity) - 1

    def flow(self, sources: Iterable[int], sinks: Iterable[int], limit: int) -> int:
        """What passes from some vertices to others, at most `limit`."""
        return self._flow(sources, sinks, limit)[0]

    def cut(self, source: int, sink: int, limit: int) -> tuple[int, BoolArray]:
        """The flow, and (V,) the source side of a smallest cut where it is below `limit`."""
        flow, left = self._flow([source], [sink], limit)
        arcs = self._arcs()
        inside = np.zeros(len(arcs.ptr) - 1, dtype=np.bool_)
        inside[-2] = True
        while True:
            reached = arcs.head[inside[arcs.tail] & (left > 0)]
            if inside[reached].all():
                return flow, inside[:-3]
            inside[reached] = True

    def _flow(
        self, sources: Iterable[int], sinks: Iterable[int], limit: int
    ) -> tuple[int, NDArray[Any]]:
        arcs = self._arcs()
        size = len(self.capacity)
        left = np.zeros(len(arcs.tail), dtype=self.capacity.dtype)
        left[arcs.inner] = self.capacity.ravel()[arcs.place]
        left[[*arcs.into[list(sources)], *arcs.out[list(sinks)], arcs.first]] = limit
        return int(self._kernel(size + 2, size, arcs.ptr, arcs.head, arcs.twin, left)), left

    def _arcs(self) -> _Arcs:
        """The last three vertices are the sink, the source, and what is before the source."""
        if self._known is None:
            size = len(self.capacity)
            joined = np.zeros((size + 3, size + 3), dtype=np.bool_)
            joined[:size, :size] = self.capacity > 0
            joined[:size, size] = joined[size + 1, :size] = joined[size + 2, size + 1] = True
            tail, head = np.nonzero(joined | joined.T)
            key, back = tail * (size + 3) + head, head * (size + 3) + tail
            every = np.arange(size)
            place = np.searchsorted(key, np.concatenate((
                (size + 1) * (size + 3) + every, every * (size + 3) + size,
                [(size + 2) * (size + 3) + size + 1],
            )))  # fmt: skip
            ptr = np.searchsorted(tail, np.arange(size + 4))
            inner = np.flatnonzero((tail < size) & (head < size))
            self._known = _Arcs(ptr, tail, head, np.searchsorted(key, back),
                                place[:size], place[size:-1], int(place[-1]),
                                inner, tail[inner] * size + head[inner])  # fmt: skip
        return self._known


Capacities = dict[tuple[int, int], Fraction]


@dataclass(frozen=True)
class Supply:
    """Integer capacities, and what each root sends to all targets over them.

    `link[u, v]` and `weight[r]` count units of `unit` bytes/s. Vertices that are no targets only
    forward.
    """

    size: int  # V
    link: dict[tuple[int, int], int]
    weight: dict[int, int]  # at least one
    targets: tuple[int, ...]  # vertices that receive everything
    unit: Fraction  # bytes/s

    @property
    def total(self) -> int:
        """What every target has in the end: the weights' sum."""
        return sum(self.weight.values())

    @property
    def rate(self) -> Fraction:
        """Bytes/s that every target receives, itself included."""
        return self.unit * self.total

    def flow_network(self) -> FlowNetwork:
        """The links, and one from vertex V to every root with its weight."""
        sent = {(self.size, root): weight for root, weight in self.weight.items()}
        return FlowNetwork(self.size + 1, self.link | sent, 2 * self.total)

    def suffices(self) -> bool:
        """Whether every target can receive what all roots send."""
        network, needed = self.flow_network(), self.total
        return all(network.flow([self.size], [v], needed) >= needed for v in self.targets)

    def balanced(self) -> bool:
        """Whether as much leads into every vertex that only forwards as out of it."""
        surplus = [0] * self.size
        for (u, v), capacity in self.link.items():
            surplus[u] -= capacity
            surplus[v] += capacity
        return not any(surplus[v] for v in set(range(self.size)) - set(self.targets))


def reverse(network: LinkGraph) -> LinkGraph:
    """Every link the other way: its out-trees are in-trees of the network."""
    return replace(network, source=network.destination, destination=network.source)


def capacities(network: LinkGraph) -> Capacities:
    """Bytes/s between vertices that take part, add or forward."""
    uses = network.participant | network.sums | network.forwards
    return {
        pair: Fraction(float(network.capacity[number]))
        for pair, number in network.link.items()
        if uses[list(pair)].all()
    }


def even_supply(network: LinkGraph, targets: tuple[int, ...] = ()) -> Supply | None:
    """All-gather at the highest rate that every cut allows; None: a participant is out of reach.

    The unit is the largest that divides the rate of a participant and all capacities, so that its
    weight is the least number of equal trees a root needs (ForestColl, section 5).

    Args:
        targets: the participants by default; others may receive everything too, and pass it on.
    """
    link, roots = capacities(network), network.participants
    targets = targets or roots
    unit = common_unit(link.values()) if link else Fraction(1)
    supply = Supply(
        network.num_vertices,
        {pair: int(value / unit) for pair, value in link.items()},
        dict.fromkeys(roots, 1),
        targets,
        unit,
    )
    rate = Fraction(sum(supply.link.values()))
    for target in targets:
        while rate:
            scaled = _scaled(supply, rate)
            needed = scaled.total
            found, side = scaled.flow_network().cut(supply.size, target, needed)
            if found >= needed:
                break
            inside = sum(bool(side[root]) for root in roots)
            leaving = sum(c for (u, v), c in supply.link.items() if side[u] and not side[v])
            rate = Fraction(leaving, inside)
    return _scaled(supply, rate) if rate else None


def supply_of_few(network: LinkGraph, most: int, targets: tuple[int, ...] = ()) -> Supply | None:
    """The highest rate that at most `most` equal trees per root reach (ForestColl, section 5.5).

    With trees of y bytes/s a link carries `floor(capacity / y)` of them; y grows as long as every
    cut still lets through what it must. None: as `even_supply`, or rounding down leaves no balance
    at a switch.
    """
    whole = even_supply(network, targets)
    if whole is None or whole.weight[network.participants[0]] <= most:
        return whole
    link = capacities(network)
    rate = whole.unit * whole.weight[network.participants[0]]

    def rounded(unit: Fraction, trees: int) -> Supply:
        floors = {pair: int(value / unit) for pair, value in link.items()}
        weight = dict.fromkeys(network.participants, trees)
        return Supply(whole.size, floors, weight, whole.targets, unit)

    best: Supply | None = None
    for trees in range(1, most + 1):
        highest = rate / trees
        low = highest / 2
        while not rounded(low, trees).suffices():
            low /= 2
        while True:
            low = min(c / (c // low) for c in link.values() if c >= low)  # all floors as before
            further = [c / (-(-c // low) - 1) for c in link.values() if c > low]
            beyond = min(further, default=2 * highest)
            if beyond > highest or not rounded(beyond, trees).suffices():
                break
            low, high = beyond, highest
            for _ in range(16):
                middle = (low + high) / 2
                if rounded(middle, trees).suffices():
                    low = middle
                else:
                    high = middle
        if best is None or low * trees > best.unit * best.weight[network.participants[0]]:
            best = rounded(low, trees)
    return best


def optimum(problem: SynchronisationProblem) -> Fraction:
    """Bytes/s of the whole vector where each rank owns one n-th of it; 0: someone is out of reach.

    Sums inside the network are not counted on. All-reduce is reduce-scatter followed by all-gather,
    as published figures have it; where links or ranks are uneven, an all-reduce whose ranks own
    unequal parts may be faster: see `agents.synchronisation.division`.
    """
    network, primitive = problem.network, problem.primitive
    sides = [reverse(network)] * primitive.reduces + [network] * primitive.broadcasts
    supplies = [even_supply(side) for side in sides]
    return (
        1 / sum((1 / x.rate for x in supplies if x), Fraction(0)) if all(supplies) else Fraction(0)
    )


def _scaled(supply: Supply, rate: Fraction) -> Supply:
    """The supply in the largest unit that divides all capacities and the roots' new weight."""
    common = common_unit([rate, *map(Fraction, supply.link.values())])
    return replace(
        supply,
        link={pair: int(c / common) for pair, c in supply.link.items()},
        weight=dict.fromkeys(supply.weight, int(rate / common)),
        unit=supply.unit * common,
    )


def common_unit(values: Iterable[Fraction]) -> Fraction:
    """The largest number of which all values are multiples."""
    found = list(values)
    below = lcm(*(value.denominator for value in found))
    return Fraction(gcd(*(int(value * below) for value in found)), below)
