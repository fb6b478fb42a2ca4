"""Collectives: their messages round by round, their closed forms, playing them on a topology."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from itertools import chain
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from envs.errors import InputError
from envs.hardware.topology import Topology
from envs.network.shared_links import SharedLinks

FloatArray = NDArray[np.float64]


class Operation(Enum):
    """What a collective promises to its n participants, ranks 0 to n - 1."""

    ALL_REDUCE = "all-reduce"  # every rank holds the sum of all vectors
    REDUCE_SCATTER = "reduce-scatter"  # rank i holds block i of n of the sum
    ALL_GATHER = "all-gather"  # every rank holds block i of rank i, for all i
    BROADCAST = "broadcast"  # every rank holds the vector of rank 0


class Message(NamedTuple):
    """Chunks `first` to `end - 1` of the sender's vector, added to or put in the receiver's."""

    source: int  # rank
    destination: int  # rank
    first: int  # chunk
    end: int  # chunk
    adds: bool  # whether the receiver adds them to its own; otherwise it takes them over


Round = list[Message]


@dataclass(frozen=True, eq=False)
class Schedule:
    """The rounds of a collective over vectors of `chunks` equal chunks.

    The ranks are the participants, then any servers, which begin with zeros. A message carries what
    its sender holds after the rounds before. There is no barrier between rounds: a message starts
    when *both its ends* have ended all their messages of earlier rounds. This is what libraries do
    (MPI's sendrecv with rendezvous, gloo, NCCL): a rank knows its own rounds and no others. On a
    network where all messages of a round take the same time it is equal to a barrier wherever some
    chain of messages leads through all rounds.

    Raises:
        InputError: a message names a rank or chunks that do not exist, or leads to its sender.
    """

    participants: int  # n
    ranks: int  # participants and servers
    chunks: int
    rounds: tuple[tuple[Message, ...], ...]

    def __post_init__(self) -> None:
        for number, messages in enumerate(self.rounds):
            for message in messages:
                ends = (message.source, message.destination)
                if not all(0 <= rank < self.ranks for rank in ends) or ends[0] == ends[1]:
                    raise InputError(f"{message} has a wrong end", record=f"round {number}")
                if not 0 <= message.first < message.end <= self.chunks:
                    raise InputError(f"{message} has wrong chunks", record=f"round {number}")

    @cached_property
    def messages(self) -> tuple[Message, ...]:
        """(M,) all messages, round after round."""
        return tuple(chain.from_iterable(self.rounds))

    def message_bytes(self, size: float) -> FloatArray:
        """(M,) bytes of every message for a vector of `size` bytes.

        Raises:
            InputError: `size` is negative or not finite.
        """
        if not 0.0 <= size < np.inf:
            raise InputError(f"a vector of {size} bytes", field="size")
        return np.array([(m.end - m.first) / self.chunks * size for m in self.messages])

    def sent_bytes(self, size: float) -> FloatArray:
        """(ranks,) bytes every rank sends for a vector of `size` bytes."""
        return self._sum([m.source for m in self.messages], size)

    def received_bytes(self, size: float) -> FloatArray:
        """(ranks,) bytes every rank receives for a vector of `size` bytes."""
        return self._sum([m.destination for m in self.messages], size)

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """(M,) the messages that must have ended before each one starts."""
        last: list[tuple[int, ...]] = [()] * self.ranks  # messages of a rank's last round
        before: list[tuple[int, ...]] = []
        for messages in self.rounds:
            own: dict[int, list[int]] = {}
            for message in messages:
                number = len(before)
                before.append(tuple(sorted({*last[message.source], *last[message.destination]})))
                for rank in (message.source, message.destination):
                    own.setdefault(rank, []).append(number)
            for rank, numbers in own.items():
                last[rank] = tuple(numbers)
        return tuple(before)

    def perform(self, vectors: FloatArray) -> FloatArray:
        """(ranks, chunks) what every rank holds at the end.

        Args:
            vectors: (participants, chunks) what every participant holds at the beginning.
        """
        held = np.zeros((self.ranks, self.chunks))
        held[: self.participants] = vectors
        for messages in self.rounds:
            before = held.copy()
            for source, destination, first, end, adds in messages:
                if not adds:
                    held[destination, first:end] = 0.0
                held[destination, first:end] += before[source, first:end]
        return held

    def _sum(self, rank: list[int], size: float) -> FloatArray:
        total = np.zeros(self.ranks)
        np.add.at(total, np.array(rank, dtype=np.int64), self.message_bytes(size))
        return total


def freeze(rounds: Sequence[Round]) -> tuple[tuple[Message, ...], ...]:
    """Rounds as a `Schedule` keeps them; empty ones are left out."""
    return tuple(tuple(messages) for messages in rounds if messages)


def side_by_side(parts: Sequence[Sequence[Round]]) -> list[Round]:
    """The rounds of several groups of ranks at once: first with first, second with second."""
    longest = max((len(rounds) for rounds in parts), default=0)
    return [
        [message for rounds in parts if number < len(rounds) for message in rounds[number]]
        for number in range(longest)
    ]


@dataclass(frozen=True)
class AlphaBeta:
    """A homogeneous network: every rank has one full-duplex port to all others.

    A message of V bytes takes `latency + V / bandwidth` seconds (Hockney, The communication
    challenge for MPP: Intel Paragon and Meiko CS-2, Parallel Computing 20(3), 1994). Messages that
    leave or enter one rank at the same time share its port equally.
    """

    latency: float  # seconds
    bandwidth: float  # bytes/s, each way

    def seconds(self, size: float) -> float:
        """Seconds of one message of `size` bytes."""
        return self.latency + size / self.bandwidth


@runtime_checkable
class Collective(Protocol):
    """One algorithm for one operation."""

    @property
    def name(self) -> str:
        """What people call it."""

    @property
    def operation(self) -> Operation: ...

    def schedule(self, participants: int) -> Schedule:
        """Its messages for n participants.

        Raises:
            InputError: n is not positive, or not a number the algorithm can serve.
        """

    def seconds(self, participants: int, size: float, link: AlphaBeta) -> float:
        """Seconds for vectors of `size` bytes on a homogeneous network: its closed form.

        Raises:
            InputError: as `schedule`.
        """


def checked_participants(participants: int) -> int:
    """The number itself.

    Raises:
        InputError: it is not positive.
    """
    if participants < 1:
        raise InputError(f"{participants} participants; there must be at least one")
    return participants


class Progress:
    """Which messages of a schedule may start, while others end.

    Args:
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
