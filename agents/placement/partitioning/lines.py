"""Random starts: the atoms in a line along the data's way, cut into one piece per device."""

from __future__ import annotations

import heapq

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from agents.placement.partitioning.atoms import IntArray, PartitionAtoms

_WHOLE = 0.3  # share of the starts that are in one piece, where one device can hold everything


class Lines:
    """Draws placements in which the pairs `arcs` (P, 2) of operators never lead back in the line.

    Atoms on a cycle of arcs stay together. Pieces get shares in proportion to the devices' speeds,
    varied at random; they need not fit the memory, and an atom may be where it is not allowed.
    Some starts are in one piece, on a device that can hold it.
    """

    def __init__(self, atoms: PartitionAtoms, arcs: IntArray, capacity: np.ndarray) -> None:
        size = atoms.num_atoms
        pairs = np.unique(atoms.of[arcs], axis=0).reshape(-1, 2)
        matrix = csr_array((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=(size, size))
        number, self._knot = connected_components(matrix, directed=True, connection="strong")
        self._following: list[list[int]] = [[] for _ in range(number)]
        self._waiting = np.zeros(number, dtype=np.int64)
        for u, v in np.unique(self._knot[pairs], axis=0).reshape(-1, 2).tolist():
            if u != v:
                self._following[u].append(v)
                self._waiting[v] += 1
        seconds = np.where(atoms.allowed, atoms.seconds, 0.0)
        self._work = np.bincount(self._knot, weights=seconds.min(axis=1), minlength=number)
        whole = atoms.allowed.all(axis=0) & (atoms.state.sum() <= capacity)
        self._whole = np.flatnonzero(whole)
        total = seconds.sum(axis=0)
        self._speed = 1.0 / np.maximum(total, max(float(total.max()), 1e-15) * 1e-6)

    def draw(self, random: np.random.Generator) -> IntArray:
        """(A,) device of every atom."""
        devices = len(self._speed)
        if len(self._whole) and random.random() < _WHOLE:
            return np.full(len(self._knot), random.choice(self._whole), dtype=np.int64)
        share = self._speed * random.exponential(size=devices)
        device = random.permutation(devices)
        line = self._line(random)
        reached = np.cumsum(self._work[line])
        cuts = np.cumsum(share[device]) * (reached[-1] / share.sum())
        piece = np.empty(len(line), dtype=np.int64)
        piece[line] = np.minimum(np.searchsorted(cuts, reached - self._work[line] / 2), devices - 1)
        return np.asarray(device[piece[self._knot]], dtype=np.int64)

    def _line(self, random: np.random.Generator) -> IntArray:
        """The knots in a random topological order."""
        priority = random.random(len(self._waiting)).tolist()
        waiting = self._waiting.copy()
        ready = [(priority[k], k) for k in np.flatnonzero(waiting == 0).tolist()]
        heapq.heapify(ready)
        line = []
        while ready:
            _, knot = heapq.heappop(ready)
            line.append(knot)
            for other in self._following[knot]:
                waiting[other] -= 1
                if not waiting[other]:
                    heapq.heappush(ready, (priority[other], other))
        return np.array(line, dtype=np.int64)
