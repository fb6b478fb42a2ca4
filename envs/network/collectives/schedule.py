"""`Schedule`: the messages of a collective, round by round, with what they carry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.errors import InputError

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
