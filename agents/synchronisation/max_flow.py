"""Flows between the vertices of a network with integer capacities that change in between."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agents.max_flow import max_flow
from envs.arrays import BoolArray, IntArray

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
