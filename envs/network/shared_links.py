"""`SharedLinks`: transfers that come and go and share the links of a topology max-min fairly."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from envs.errors import InputError
from envs.hardware.topology import Topology
from envs.network.max_min import fill, filling

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


@dataclass
class _Draining:
    key: int
    pair: int
    left: float  # bytes at `SharedLinks.now`
    finish: float = np.inf  # seconds, at the rates of now


class SharedLinks:
    """A clock and the transfers under way; whoever drives it starts transfers as he learns of them.

    A transfer takes its latency first, then drains its bytes. Where a pair of devices has several
    paths, a transfer drains over all of them at once. All transfers on a path, and the paths among
    each other, share the links max-min fairly (`envs.network.max_min`); rates change when a
    transfer begins to drain or ends. A transfer from a device to itself ends at once.

    Raises:
        InputError: two devices have no path between them.
    """

    def __init__(self, topology: Topology) -> None:
        network = topology.network
        d = topology.num_devices
        paths = np.diff(network.pair_ptr)
        for pair in np.flatnonzero(paths == 0):
            if pair % (d + 1):
                ends = topology.devices[pair // d].name, topology.devices[pair % d].name
                raise InputError(
                    f"no path from {ends[0]!r} to {ends[1]!r}", file=f"topology {topology.name}"
                )
        self.now = 0.0  # seconds
        self._num_devices = d
        self._latency = topology.latency
        self._network = network
        self._pair = np.repeat(np.arange(d * d), paths)  # (P,) of each path
        self._crowd = np.zeros(d * d)  # transfers draining on each pair
        self._rate = np.zeros(len(self._pair))  # (P,) bytes/s of all transfers of a path
        self._priority = np.zeros(len(self._pair), dtype=np.int64)
        self._work = filling(network.num_links, len(network.path_links))
        self._arrivals: list[tuple[float, int, int, float]] = []  # time, key, pair, bytes
        self._draining: list[_Draining] = []
        self._changed = False

    def send(
        self, key: int, source: int, destination: int, size: float, latency: float | None = None
    ) -> None:
        """Start the transfer `key` of `size` bytes now; `latency` is the topology's by default.

        Raises:
            InputError: the topology has no such device.
        """
        for device in (source, destination):
            if not 0 <= device < self._num_devices:
                raise InputError(f"device {device} is none of {self._num_devices}")
        pair = source * self._num_devices + destination
        if source == destination:
            heapq.heappush(self._arrivals, (self.now, key, pair, 0.0))
        else:
            wait = float(self._latency[source, destination]) if latency is None else latency
            heapq.heappush(self._arrivals, (self.now + wait, key, pair, size))

    def next_event(self) -> float:
        """When the next transfer begins to drain or ends; inf when none is under way.

        Raises:
            InputError: transfers are under way over links without capacity.
        """
        if self._changed:
            self._share()
        first = self._arrivals[0][0] if self._arrivals else np.inf
        for transfer in self._draining:
            first = min(first, transfer.finish)
        return first

    def advance(self, time: float) -> list[int]:
        """Move the clock to `time`, not beyond `next_event`; the keys of what has ended by then."""
        ended: list[int] = []
        if self._changed:
            self._share()
        if time > self.now:
            each = self._each()
            for transfer in self._draining:
                transfer.left -= each[transfer.pair] * (time - self.now)
            self.now = time
        kept = []
        for transfer in self._draining:
            if transfer.finish <= time:
                ended.append(transfer.key)
                self._crowd[transfer.pair] -= 1.0
                self._changed = True
            else:
                kept.append(transfer)
        while self._arrivals and self._arrivals[0][0] <= time:
            _, key, pair, size = heapq.heappop(self._arrivals)
            if size > 0.0:
                kept.append(_Draining(key, pair, size))
                self._crowd[pair] += 1.0
                self._changed = True
            else:
                ended.append(key)
        self._draining = kept
        return sorted(ended)

    def _each(self) -> FloatArray:
        """(D * D,) bytes/s of one transfer of each pair."""
        total = np.bincount(self._pair, weights=self._rate, minlength=len(self._crowd))
        return np.divide(total, self._crowd, out=np.zeros_like(total), where=self._crowd > 0)

    def _share(self) -> None:
        """New rates: a path is one flow whose weight is the number of its transfers."""
        weight = self._crowd[self._pair]
        active = np.flatnonzero(weight > 0)
        self._rate[:] = 0.0
        fill(
            active, len(active), self._network.path_ptr, self._network.path_links, weight,
            self._priority, self._network.link_capacity, self._rate, self._work,
        )  # fmt: skip
        each = self._each()
        for transfer in self._draining:
            rate = float(each[transfer.pair])
            if rate == 0.0:
                raise InputError(
                    f"a transfer from device {transfer.pair // self._num_devices} to device "
                    f"{transfer.pair % self._num_devices} has links without capacity"
                )
            transfer.finish = self.now + max(transfer.left, 0.0) / rate
        self._changed = False
