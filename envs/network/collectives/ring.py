"""Ring collectives: every rank sends to one neighbour and receives from the other.

Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, JPDC
69(2), 2009; Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in
MPICH, IJHPCA 19(1), 2005 (the all-gather).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from envs.errors import InputError
from envs.network.collectives.schedule import (
    AlphaBeta,
    Message,
    Operation,
    Round,
    Schedule,
    checked_participants,
    freeze,
)

TO_NEXT = 1  # rank i sends to rank i + 1, as in the literature, MPICH and NCCL
TO_PREVIOUS = -1  # rank i sends to rank i - 1, as gloo's ring all-reduce does

Chunks = tuple[int, int]  # first, end


def blocks_of(first: int, end: int, count: int) -> list[Chunks]:
    """Chunks `first` to `end - 1` as `count` equal blocks; `count` divides their number."""
    size = (end - first) // count
    return [(first + size * number, first + size * (number + 1)) for number in range(count)]


def ring_reduce_scatter(ranks: Sequence[int], blocks: Sequence[Chunks], step: int) -> list[Round]:
    """n - 1 rounds after which `ranks[i]` holds the sum of `blocks[i]`."""
    n = len(ranks)
    return [
        [
            Message(ranks[i], ranks[(i + step) % n], *blocks[(i - step * (number + 1)) % n], True)
            for i in range(n)
        ]
        for number in range(n - 1)
    ]


def ring_all_gather(ranks: Sequence[int], blocks: Sequence[Chunks], step: int) -> list[Round]:
    """n - 1 rounds that take `blocks[i]` from `ranks[i]` to all others."""
    n = len(ranks)
    return [
        [
            Message(ranks[i], ranks[(i + step) % n], *blocks[(i - step * number) % n], False)
            for i in range(n)
        ]
        for number in range(n - 1)
    ]


def ring_all_reduce(ranks: Sequence[int], chunks: Chunks, step: int) -> list[Round]:
    """Reduce-scatter, then all-gather of the given chunks; n divides their number."""
    blocks = blocks_of(*chunks, len(ranks))
    return ring_reduce_scatter(ranks, blocks, step) + ring_all_gather(ranks, blocks, step)


@dataclass(frozen=True)
class _Ring(ABC):
    """Over the ring 0, 1, ..., n - 1, in passes of n - 1 rounds of S / n bytes."""

    passes: ClassVar[int] = 1
    step: int = TO_NEXT

    def __post_init__(self) -> None:
        if self.step not in (TO_NEXT, TO_PREVIOUS):
            raise InputError(f"{self.step} is neither {TO_NEXT} nor {TO_PREVIOUS}", field="step")

    @abstractmethod
    def _rounds(self, n: int) -> list[Round]: ...

    def schedule(self, participants: int) -> Schedule:
        """Rounds over the ring 0, 1, ..., n - 1."""
        n = checked_participants(participants)
        return Schedule(n, n, n, freeze(self._rounds(n)))

    def seconds(self, participants: int, size: float, link: AlphaBeta) -> float:
        """Passes (n - 1) (latency + S / n / B)."""
        n = checked_participants(participants)
        return self.passes * (n - 1) * link.seconds(size / n)


class RingAllReduce(_Ring):
    """2 (n - 1) rounds of S / n bytes: 2 (n - 1) latency + 2 (n - 1) / n S / B seconds.

    No all-reduce sends fewer bytes per rank (Patarasuk and Yuan).

    Args:
        step: `TO_NEXT` or `TO_PREVIOUS`.

    Raises:
        InputError: `step` is neither.
    """

    passes: ClassVar[int] = 2

    name = "ring"
    operation = Operation.ALL_REDUCE

    def _rounds(self, n: int) -> list[Round]:
        return ring_all_reduce(range(n), (0, n), self.step)


class RingReduceScatter(_Ring):
    """The first half of `RingAllReduce`.

    Raises:
        InputError: `step` is neither `TO_NEXT` nor `TO_PREVIOUS`.
    """

    name = "ring reduce-scatter"
    operation = Operation.REDUCE_SCATTER

    def _rounds(self, n: int) -> list[Round]:
        return ring_reduce_scatter(range(n), blocks_of(0, n, n), self.step)


class RingAllGather(_Ring):
    """The second half of `RingAllReduce`; S is the size of the gathered vector.

    Raises:
        InputError: `step` is neither `TO_NEXT` nor `TO_PREVIOUS`.
    """

    name = "ring all-gather"
    operation = Operation.ALL_GATHER

    def _rounds(self, n: int) -> list[Round]:
        return ring_all_gather(range(n), blocks_of(0, n, n), self.step)
