"""Maximum flow, compiled."""

from __future__ import annotations

import numpy as np

from envs.arrays import IntArray
from envs.compilation import compiled


@compiled
def max_flow(  # noqa: PLR0912 - one loop, compiled
    source: int,
    sink: int,
    ptr: IntArray,  # (V + 1,) rows of arcs by tail
    to: IntArray,  # (M,) head
    twin: IntArray,  # (M,) the arc back
    capacity: IntArray,  # (M,) in: units; out: what is left
) -> int:
    """The value of a maximum flow by shortest augmenting paths, level by level.

    Dinic, "Algorithm for solution of a problem of maximum flow in a network with power estimation",
    Soviet Mathematics Doklady 11, 1970.
    """
    nodes = len(ptr) - 1
    level = np.empty(nodes, dtype=np.int64)
    queue = np.empty(nodes, dtype=np.int64)
    path = np.empty(nodes, dtype=np.int64)
    total = 0
    while True:
        level[:] = -1
        level[source] = 0
        queue[0] = source
        first, last = 0, 1
        while first < last:
            u = queue[first]
            first += 1
            for k in range(ptr[u], ptr[u + 1]):
                if capacity[k] > 0 and level[to[k]] < 0:
                    level[to[k]] = level[u] + 1
                    queue[last] = to[k]
                    last += 1
        if level[sink] < 0:
            return total
        current = ptr[:-1].copy()
        depth, u = 0, source
        while True:
            if u == sink:
                least = capacity[path[0]]
                for i in range(1, depth):
                    least = min(least, capacity[path[i]])
                total += least
                cut = depth
                for i in range(depth - 1, -1, -1):
                    capacity[path[i]] -= least
                    capacity[twin[path[i]]] += least
                    if capacity[path[i]] == 0:
                        cut = i
                depth = cut
                u = to[twin[path[cut]]]
            elif current[u] == ptr[u + 1]:
                if u == source:
                    break
                level[u] = -1
                depth -= 1
                u = to[twin[path[depth]]]
                current[u] += 1
            else:
                k = current[u]
                if capacity[k] > 0 and level[to[k]] == level[u] + 1:
                    path[depth] = k
                    depth += 1
                    u = to[k]
                else:
                    current[u] += 1
