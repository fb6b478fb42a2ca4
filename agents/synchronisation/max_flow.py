"""Maximum flow on a matrix of integer capacities (Dinic 1970), compiled.

Where sums of capacities do not fit into 64 bits, the same code runs on Python's integers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

_LARGEST = 2**61  # sums of two capacities stay below 2^63


@numba.njit(cache=True, nogil=True)
def _max_flow(  # type: ignore[no-untyped-def] # noqa: PLR0912, PLR0915
    left, near, degree, sources, sinks, limit, level
):
    """Flow from `sources` to `sinks`, at most `limit`; `left` becomes what is left of capacities.

    `near[v, :degree[v]]` are the vertices that a link joins with v in either direction. Afterwards
    `level` (V,) is >= 0 on the source side of a smallest cut, unless `limit` was reached.
    """
    size = len(level)
    queue = np.empty(size, dtype=np.int64)
    path = np.empty(size + 1, dtype=np.int64)
    at = np.empty(size, dtype=np.int64)
    flow = limit - limit
    while True:
        level[:] = -1
        last = 0
        for v in range(size):
            if sources[v]:
                level[v] = 0
                queue[last] = v
                last += 1
        first, reached = 0, False
        while first < last:
            v = queue[first]
            first += 1
            for i in range(degree[v]):
                w = near[v, i]
                if level[w] < 0 and left[v, w] > 0:
                    level[w] = level[v] + 1
                    reached = reached or sinks[w]
                    queue[last] = w
                    last += 1
        if not reached or flow >= limit:
            return flow
        at[:] = 0
        for root in range(size):
            if not sources[root]:
                continue
            path[0] = root
            depth = 0
            while depth >= 0:
                v = path[depth]
                if sinks[v]:
                    push, stop = limit - flow, 0
                    for i in range(depth):
                        room = left[path[i], path[i + 1]]
                        if room < push:
                            push, stop = room, i
                    for i in range(depth):
                        left[path[i], path[i + 1]] -= push
                        left[path[i + 1], path[i]] += push
                    flow += push
                    if flow >= limit:
                        return flow
                    depth = stop
                    continue
                while at[v] < degree[v]:
                    w = near[v, at[v]]
                    if left[v, w] > 0 and level[w] == level[v] + 1:
                        break
                    at[v] += 1
                if at[v] < degree[v]:
                    depth += 1
                    path[depth] = near[v, at[v]]
                else:
                    level[v] = -2 if v != root else level[v]
                    depth -= 1


@numba.njit(cache=True, nogil=True)
def _room(capacity, near, degree, s, u, w, t, targets, needed, most):  # type: ignore[no-untyped-def]
    """How much of links u -> w -> t may become a link u -> t, at most `most`.

    So much that every target still receives `needed` from s: a set of vertices that loses a link
    holds s, u and t but not w, or s and w but neither u nor t.
    """
    size = len(degree)
    sources = np.zeros(size, dtype=np.bool_)
    sinks = np.zeros(size, dtype=np.bool_)
    level = np.empty(size, dtype=np.int64)
    for i in range(len(targets)):
        v = targets[i]
        for case in range(2):
            if case == 0 and (v in (u, t)):
                continue
            sources[:] = False
            sinks[:] = False
            sources[s] = True
            sinks[v] = True
            if case == 0:
                sources[u], sources[t], sinks[w] = True, True, True
            else:
                sources[w], sinks[u], sinks[t] = True, True, True
            left = capacity.copy()
            found = _max_flow(left, near, degree, sources, sinks, needed + most, level) - needed
            if found < most:
                most = found
                if most <= 0:
                    targets[1 : i + 1] = targets[:i].copy()  # the first to be asked next time
                    targets[0] = v
                    return most
    return most


class FlowNetwork:
    """Links with integer capacities between V vertices, which may change between flows.

    Args:
        capacity: (V, V).
        most: no flow that is asked for is larger.
    """

    def __init__(self, capacity: list[list[int]], most: int) -> None:
        total = max(most, *(sum(row) for row in capacity))
        self.capacity = np.array(capacity, dtype=np.int64 if total < _LARGEST else object)
        self._near: tuple[IntArray, IntArray] | None = None

    def add(self, u: int, v: int, amount: int) -> None:
        """Raise the capacity of the link from u to v."""
        if self.capacity[u, v] == 0:
            self._near = None
        self.capacity[u, v] += amount

    def add_vertex(self) -> int:
        """A new vertex without links."""
        self.capacity = np.pad(self.capacity, (0, 1))
        self._near = None
        return len(self.capacity) - 1

    def flow(self, sources: Sequence[int], sink: int, limit: int) -> tuple[int, BoolArray]:
        """The flow, at most `limit`, and (V,) the source side of a smallest cut."""
        near, degree = self._neighbours()
        begins, ends = (np.zeros(len(degree), dtype=np.bool_) for _ in range(2))
        begins[list(sources)], ends[sink] = True, True
        level = np.empty(len(degree), dtype=np.int64)
        kernel = self._kernel(_max_flow)
        found = kernel(self.capacity.copy(), near, degree, begins, ends, limit, level)
        return int(found), level >= 0

    def room(
        self, s: int, u: int, w: int, t: int, targets: IntArray, needed: int, most: int
    ) -> int:
        """As `_room`; puts `targets` into the order in which they are best asked next time."""
        near, degree = self._neighbours()
        kernel = self._kernel(_room)
        return int(kernel(self.capacity, near, degree, s, u, w, t, targets, needed, most))

    def _neighbours(self) -> tuple[IntArray, IntArray]:
        if self._near is None:
            joined = (self.capacity > 0) | (self.capacity.T > 0)
            degree = joined.sum(axis=1).astype(np.int64)
            order = np.argsort(~joined, axis=1, kind="stable")
            self._near = np.ascontiguousarray(order[:, : max(degree.max(), 1)]), degree
        return self._near

    def _kernel(self, kernel: Any) -> Callable[..., Any]:
        found: Callable[..., Any] = kernel.py_func if self.capacity.dtype == object else kernel
        return found
