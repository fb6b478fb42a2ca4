"""A collective on a real topology: its messages share the links with each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from envs.errors import InputError
from envs.hardware.topology import Topology
from envs.network.collectives.schedule import Schedule
from envs.network.shared_links import SharedLinks

FloatArray = NDArray[np.float64]


class Progress:
    """Which messages of a schedule may start, while others end.

    Args:
        schedule: the messages.
        size: bytes of a vector.
        devices: (ranks,) where each rank is; ranks may share a device.

    Raises:
        InputError: `devices` does not name a device for every rank.
    """

    def __init__(self, schedule: Schedule, size: float, devices: Sequence[int]) -> None:
        if len(devices) != schedule.ranks:
            raise InputError(
                f"names {len(devices)} devices, the collective has {schedule.ranks} ranks",
                field="devices",
            )
        self.size = schedule.message_bytes(size)  # (M,) bytes
        self.source = [devices[message.source] for message in schedule.messages]
        self.destination = [devices[message.destination] for message in schedule.messages]
        self.left = len(schedule.messages)  # messages that have not ended
        self.start = np.zeros(self.left)  # (M,) seconds, of those that have
        self.finish = np.zeros(self.left)  # (M,) seconds
        self._waiting = [len(before) for before in schedule.predecessors]
        self._after: list[list[int]] = [[] for _ in schedule.messages]
        for number, before in enumerate(schedule.predecessors):
            for other in before:
                self._after[other].append(number)

    def first(self) -> list[int]:
        """The messages that wait for nothing."""
        return [number for number, waiting in enumerate(self._waiting) if waiting == 0]

    def begin(self, message: int, now: float) -> tuple[int, int, float]:
        """Note that `message` starts; its source device, destination device and bytes."""
        self.start[message] = now
        return self.source[message], self.destination[message], float(self.size[message])

    def end(self, message: int, now: float) -> list[int]:
        """Note that `message` has ended; the messages that may start because of it."""
        self.finish[message] = now
        self.left -= 1
        free = []
        for number in self._after[message]:
            self._waiting[number] -= 1
            if self._waiting[number] == 0:
                free.append(number)
        return free

    def run(self) -> CollectiveRun:
        """All starts and finishes, when no message is left."""
        return CollectiveRun(self.start, self.finish)


@dataclass(frozen=True, eq=False)
class CollectiveRun:
    """When every message of a collective started and finished, in seconds."""

    start: FloatArray  # (M,)
    finish: FloatArray  # (M,)

    @property
    def seconds(self) -> float:
        """When the last message ends."""
        return float(self.finish.max(initial=0.0))


def play_collective(
    schedule: Schedule, size: float, topology: Topology, devices: Sequence[int]
) -> CollectiveRun:
    """Play a collective of vectors of `size` bytes alone on `topology`.

    Args:
        schedule: the messages.
        size: bytes of a vector.
        topology: the links and latencies.
        devices: (ranks,) where each rank is; ranks may share a device.

    Raises:
        InputError: `devices` does not name a device of the topology for every rank, two of them
            have no path, or `size` is negative or not finite.
    """
    links = SharedLinks(topology)
    progress = Progress(schedule, size, devices)
    for message in progress.first():
        links.send(message, *progress.begin(message, 0.0))
    while progress.left:
        for message in links.advance(links.next_event()):
            for following in progress.end(message, links.now):
                links.send(following, *progress.begin(following, links.now))
    return progress.run()
