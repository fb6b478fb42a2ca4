"""Collectives with a root: binomial trees, two binary trees at once, parameter servers.

Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, IJHPCA
19(1), 2005 (binomial broadcast and reduce of short messages); Sanders, Speck and Träff, Two-tree
algorithms for full bandwidth broadcast, reduction and scan, Parallel Computing 35(12), 2009; Li et
al., Scaling distributed machine learning with the parameter server, OSDI 2014.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from envs.bounds import Count, bounded
from envs.network.collectives.schedule import (
    AlphaBeta,
    Message,
    Operation,
    Round,
    Schedule,
    checked_participants,
    freeze,
)


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

    name = "binomial tree"
    operation = Operation.ALL_REDUCE

    def schedule(self, participants: int) -> Schedule:
        n = checked_participants(participants)
        rounds = binomial_reduce(range(n), 0, 1) + binomial_broadcast(range(n), 0, 1)
        return Schedule(n, n, 1, freeze(rounds))

    def seconds(self, participants: int, size: float, link: AlphaBeta) -> float:
        """2 ceil(log2 n) (latency + S / B)."""
        return 2 * (checked_participants(participants) - 1).bit_length() * link.seconds(size)


@dataclass(frozen=True)
class BinomialBroadcast:
    """Broadcast of rank 0's vector."""

    name = "binomial broadcast"
    operation = Operation.BROADCAST

    def schedule(self, participants: int) -> Schedule:
        n = checked_participants(participants)
        return Schedule(n, n, 1, freeze(binomial_broadcast(range(n), 0, 1)))

    def seconds(self, participants: int, size: float, link: AlphaBeta) -> float:
        """ceil(log2 n) (latency + S / B)."""
        return (checked_participants(participants) - 1).bit_length() * link.seconds(size)


_Edge = tuple[int, int, int]  # tree, parent, child


@bounded
@dataclass(frozen=True)
class _DoubleTree(ABC):
    """Passes over both trees, in `chunks` chunks each."""

    passes: ClassVar[int] = 1
    chunks: Count

    @abstractmethod
    def _rounds(self, n: int) -> list[Round]: ...

    def schedule(self, participants: int) -> Schedule:
        """2 `chunks` chunks."""
        n = checked_participants(participants)
        return Schedule(n, n, 2 * self.chunks, freeze(self._rounds(n)))

    def seconds(self, participants: int, size: float, link: AlphaBeta) -> float:
        """Rounds (latency + S / (2 chunks) / B)."""
        rounds = self.passes * _num_rounds(checked_participants(participants), self.chunks)
        return rounds * link.seconds(size / (2 * self.chunks))


class DoubleTree(_DoubleTree):
    """All-reduce: reduce to rank 0 over both trees, then broadcast from it.

    The ranks 1 to n - 1 form two binary trees, and what is interior in one is a leaf in the other;
    rank 0 stands above both roots. The edges have two colours such that every rank sends over one
    edge and receives over one edge of each colour at most. Rounds of the colours alternate, so that
    every rank sends one chunk and receives one in a round.

    Args:
        chunks: chunks of each tree's half, sent one after another.
    """

    passes: ClassVar[int] = 2

    name = "double tree"
    operation = Operation.ALL_REDUCE

    def _rounds(self, n: int) -> list[Round]:
        down = _broadcast(n, self.chunks)
        up = [
            [Message(m.destination, m.source, m.first, m.end, True) for m in messages]
            for messages in reversed(down)
        ]
        return up + down


class DoubleTreeBroadcast(_DoubleTree):
    """The second half of `DoubleTree`."""

    name = "double tree broadcast"
    operation = Operation.BROADCAST

    def _rounds(self, n: int) -> list[Round]:
        return _broadcast(n, self.chunks)


def _num_rounds(n: int, chunks: int) -> int:
    if n == 1:
        return 0
    return max(_first_rounds(n).values()) + 2 * (chunks - 1) + 1


def _broadcast(n: int, chunks: int) -> list[Round]:
    """Chunk c of tree t crosses an edge 2 c rounds after chunk 0 of the tree."""
    rounds: list[Round] = [[] for _ in range(_num_rounds(n, chunks))]
    for (tree, parent, child), at in _first_rounds(n).items():
        for c in range(chunks):
            chunk = tree * chunks + c
            rounds[at + 2 * c].append(Message(parent, child, chunk, chunk + 1, False))
    return rounds


def _first_rounds(n: int) -> dict[_Edge, int]:
    """When chunk 0 crosses each edge: in the next round of the edge's colour."""
    edges = _edges(n - 1)
    colour = _colours(edges)
    arrival: dict[tuple[int, int], int] = {(0, 0): -1, (1, 0): -1}  # (tree, rank)
    crossed = {}
    for edge in edges:
        tree, parent, child = edge
        at = arrival[tree, parent] + 1
        at += (colour[edge] - at) % 2
        arrival[tree, child] = crossed[edge] = at
    return crossed


def _edges(m: int) -> list[_Edge]:
    """Edges of both trees over ranks 1 to m and rank 0 above them, parents before children.

    In the first tree even ranks are interior. The second is its mirror image where m is even, and
    the same tree over ranks shifted by one where m is odd.
    """
    if m < 1:
        return []
    tree: list[tuple[int, int]] = []
    _in_order(1, m, 0, tree)
    other = [m + 1 - x if m % 2 == 0 else (x - 2) % m + 1 for x in range(m + 1)]
    other[0] = 0
    return [(0, a, b) for a, b in tree] + [(1, other[a], other[b]) for a, b in tree]


def _in_order(first: int, last: int, parent: int, tree: list[tuple[int, int]]) -> None:
    """A binary tree over `first` to `last` in order, whose leaves are the odd places."""
    if first > last:
        return
    root = first - 1 + (1 << ((last - first + 1).bit_length() - 1))
    tree.append((parent, root))
    _in_order(first, root - 1, root, tree)
    _in_order(root + 1, last, root, tree)


def _colours(edges: list[_Edge]) -> dict[_Edge, int]:
    """0 or 1 for each edge, different for the edges of one sender and for those of one receiver.

    Senders and receivers are the two sides of a bipartite graph of degree 2 at most: paths and even
    cycles, along which colours alternate.
    """
    at: dict[tuple[bool, int], list[_Edge]] = {}
    for edge in edges:
        at.setdefault((False, edge[1]), []).append(edge)
        at.setdefault((True, edge[2]), []).append(edge)
    colour: dict[_Edge, int] = {}
    for edge in edges:
        waiting = [(edge, 0)]
        while waiting:
            here, value = waiting.pop()
            if here in colour:
                continue
            colour[here] = value
            for side in ((False, here[1]), (True, here[2])):
                waiting += [(other, 1 - value) for other in at[side] if other != here]
    return colour


@bounded
@dataclass(frozen=True)
class ParameterServer:
    """Two rounds: every participant pushes shard j of k to server j, then pulls its sum.

    Server j is rank n + j. Whether a server has a machine of its own is a matter of where its rank
    is put: a rank on a participant's device exchanges with that participant for nothing.

    Args:
        servers: k, the number of equal shards.
    """

    servers: Count = 1

    @property
    def name(self) -> str:
        """`parameter server`, and the number of servers."""
        return f"parameter server x{self.servers}"

    operation = Operation.ALL_REDUCE

    def schedule(self, participants: int) -> Schedule:
        """k chunks, ranks 0 to n + k - 1; nothing for one participant."""
        n, k = checked_participants(participants), self.servers
        if n == 1:
            return Schedule(1, 1 + k, k, ())
        push = [Message(w, n + j, j, j + 1, True) for w in range(n) for j in range(k)]
        pull = [Message(n + j, w, j, j + 1, False) for w in range(n) for j in range(k)]
        return Schedule(n, n + k, k, freeze([push, pull]))

    def seconds(self, participants: int, size: float, link: AlphaBeta) -> float:
        """2 (latency + max(n / k, 1) S / B), each server with a port of its own."""
        n = checked_participants(participants)
        if n == 1:
            return 0.0
        return 2 * link.seconds(max(n / self.servers, 1.0) * size)
