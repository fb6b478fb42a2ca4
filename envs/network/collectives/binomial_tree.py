"""Binomial trees: reduce to rank 0 and broadcast from it.

Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, IJHPCA
19(1), 2005 (broadcast and reduce of short messages).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from envs.network.collectives.collective import AlphaBeta, checked_participants
from envs.network.collectives.schedule import Message, Operation, Round, Schedule, freeze


def binomial_broadcast(ranks: Sequence[int], first: int, end: int) -> list[Round]:
    """ceil(log2 n) rounds that take the chunks from `ranks[0]` to all others."""
    n = len(ranks)
    return [
        [
            Message(ranks[i], ranks[i + (1 << level)], first, end, False)
            for i in range(0, n - (1 << level), 2 << level)
        ]
        for level in reversed(range((n - 1).bit_length()))
    ]


def binomial_reduce(ranks: Sequence[int], first: int, end: int) -> list[Round]:
    """The broadcast backwards: `ranks[0]` gets the sum of the chunks."""
    return [
        [Message(m.destination, m.source, m.first, m.end, True) for m in messages]
        for messages in reversed(binomial_broadcast(ranks, first, end))
    ]


@dataclass(frozen=True)
class BinomialTree:
    """All-reduce: reduce to rank 0, then broadcast, whole vectors each time."""

    @property
    def name(self) -> str:
        """`binomial tree`."""
        return "binomial tree"

    @property
    def operation(self) -> Operation:
        """All-reduce."""
        return Operation.ALL_REDUCE

    def schedule(self, participants: int) -> Schedule:
        """One chunk."""
        n = checked_participants(participants)
        rounds = binomial_reduce(range(n), 0, 1) + binomial_broadcast(range(n), 0, 1)
        return Schedule(n, n, 1, freeze(rounds))

    def seconds(self, participants: int, size: float, link: AlphaBeta) -> float:
        """2 ceil(log2 n) (latency + S / B)."""
        return 2 * (checked_participants(participants) - 1).bit_length() * link.seconds(size)


@dataclass(frozen=True)
class BinomialBroadcast:
    """Broadcast of rank 0's vector."""

    @property
    def name(self) -> str:
        """`binomial broadcast`."""
        return "binomial broadcast"

    @property
    def operation(self) -> Operation:
        """Broadcast."""
        return Operation.BROADCAST

    def schedule(self, participants: int) -> Schedule:
        """One chunk."""
        n = checked_participants(participants)
        return Schedule(n, n, 1, freeze(binomial_broadcast(range(n), 0, 1)))

    def seconds(self, participants: int, size: float, link: AlphaBeta) -> float:
        """ceil(log2 n) (latency + S / B)."""
        return (checked_participants(participants) - 1).bit_length() * link.seconds(size)
