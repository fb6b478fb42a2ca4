"""The parking lot: hosts in a row, the classic network on which fair shares differ."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class ParkingLot:
    """n hosts at n switches in a row; every cable is two links of one capacity.

    Links, in order: from host h to its switch (n), from the switch to host h (n), from switch i to
    i + 1 (n - 1), from switch i + 1 to i (n - 1).
    """

    hosts: int
    link_capacity: float  # bytes per unit of time

    @property
    def capacity(self) -> FloatArray:
        """(4 n - 2,) of each link."""
        return np.full(4 * self.hosts - 2, self.link_capacity)

    def routes(self, source: IntArray, destination: IntArray) -> tuple[IntArray, IntArray]:
        """The only path of each of F flows between different hosts, as rows: pointer and links."""
        n = self.hosts
        hops = np.abs(destination - source)
        ptr = np.concatenate(([0], np.cumsum(hops + 2)))
        links = np.empty(ptr[-1], dtype=np.int64)
        links[ptr[:-1]] = source
        links[ptr[1:] - 1] = n + destination
        before = np.cumsum(hops) - hops
        hop = np.arange(hops.sum()) - np.repeat(before, hops)  # 0.. within each flow
        place = np.repeat(ptr[:-1] + 1, hops) + hop
        start, up = np.repeat(source, hops), np.repeat(destination > source, hops)
        links[place] = np.where(up, 2 * n + start + hop, 3 * n - 1 + start - hop - 1)
        return ptr, links
