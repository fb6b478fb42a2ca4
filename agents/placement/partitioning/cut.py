"""The least load of a device that holds certain atoms: a minimum cut."""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from agents.placement.partitioning.atoms import PartitionAtoms

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

_UNITS = 2.0**58  # all capacities together: what is rounded down is less than 1e-15 of them
_SAFE = 1.0 - 1e-15  # relative; covers the rounding of a product
_MANY = 2**60  # units: more than any finite cut


class Cuts:
    """Minimum cuts that bound what one device has to do.

    The traffic of a device that holds the atoms S is a cut function: a parcel leaves it if its
    sender is in S and a reader is not, and arrives if a reader is in S and its sender is not. With
    costs m[a] of the atoms, the least of sum of m[a] over S plus w times the traffic of S, over all
    S that hold some given atoms, is a minimum cut between the atoms in S, on the side of a source,
    and the others, on that of a sink (Picard, "Maximal closure of a graph and applications to
    combinatorial problems", Management Science 22(11), 1976). Each parcel with several readers has
    a node that is in S with its sender unless the parcel leaves, and one that is in S with any of
    its readers and pays unless its sender is in S, too.

    A maximum flow is the proof. Capacities are integers, rounded down, so that no rounding can
    overstate it.

    Args:
        atoms: the atoms and their parcels.
        device: whose seconds of parcels count.
    """

    def __init__(self, atoms: PartitionAtoms, device: int) -> None:
        self._atoms = atoms
        count, parcels = atoms.num_atoms, len(atoms.sender)
        length = np.array([len(row) for row in atoms.readers], dtype=np.int64)
        reader = np.array([a for row in atoms.readers for a in row], dtype=np.int64)
        parcel = np.repeat(np.arange(parcels), length)
        leaves, arrives = count + np.arange(parcels), count + parcels + np.arange(parcels)
        self._source, self._sink = count + 2 * parcels, count + 2 * parcels + 1
        everyone = np.arange(count)
        blocks = [
            (np.full(count, self._source), everyone),  # capacities are set by `least`
            (everyone, np.full(count, self._sink)),
            (atoms.sender, leaves),
            (arrives, atoms.sender),
            (leaves[parcel], reader),
            (reader, arrives[parcel]),
        ]
        tail = np.concatenate([block[0] for block in blocks])
        head = np.concatenate([block[1] for block in blocks])
        arcs = len(tail)
        both = np.concatenate([tail, head])
        order = np.argsort(both, kind="stable")
        place = np.empty(2 * arcs, dtype=np.int64)
        place[order] = np.arange(2 * arcs)
        self._place = place[:arcs]
        self._to = np.concatenate([head, tail])[order]
        self._twin = np.concatenate([place[arcs:], place[:arcs]])[order]
        self._ptr = np.concatenate([[0], np.cumsum(np.bincount(both, minlength=self._sink + 1))])
        self._traffic = atoms.parcel_seconds[:, device]
        self._wide = np.full(2 * len(reader), _MANY, dtype=np.int64)

    def least(self, cost: FloatArray, weight: float, inside: IntArray) -> float:
        """At most the least cost of a set with all atoms of `inside`; `cost` (A,) may be negative.

        A cost of inf keeps an atom out; inf is returned if `inside` names it, too.
        """
        if np.isinf(cost[inside]).any():
            return np.inf
        finite = np.where(np.isfinite(cost), cost, 0.0)
        gain, loss = np.maximum(-finite, 0.0), np.maximum(finite, 0.0)
        traffic = weight * self._traffic
        total = gain.sum() + loss.sum() + 2.0 * traffic.sum()
        if total <= 0.0:
            return 0.0
        units = _UNITS / total
        enter = np.floor(gain * (units * _SAFE)).astype(np.int64)
        exit_ = np.floor(loss * (units * _SAFE)).astype(np.int64)
        exit_[np.isinf(cost)] = _MANY
        enter[inside] = _MANY
        moved = np.floor(traffic * (units * _SAFE)).astype(np.int64)
        capacity = np.zeros(len(self._to), dtype=np.int64)
        capacity[self._place] = np.concatenate([enter, exit_, moved, moved, self._wide])
        flow = max_flow(self._source, self._sink, self._ptr, self._to, self._twin, capacity)
        outside = np.ones(len(cost), dtype=np.bool_)
        outside[inside] = False
        all_gain = float(gain[outside].sum())
        value = flow / units - all_gain + float(np.minimum(finite[inside], 0.0).sum())
        return float(value - 1e-12 * all_gain)


@numba.njit(cache=True, nogil=True)
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
