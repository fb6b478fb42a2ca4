"""Hierarchical all-reduce: rings inside servers and between them.

Jia et al., Highly scalable deep learning training system with mixed-precision: training ImageNet in
four minutes, 2018 (arXiv:1807.11205), for `HierarchicalRing`; Cho et al., BlueConnect: decomposing
all-reduce for deep learning on heterogeneous network hierarchy, MLSys 2019, for `BlueConnect`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm

from envs.errors import InputError
from envs.network.collectives.ring import (
    TO_NEXT,
    blocks_of,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
)
from envs.network.collectives.schedule import (
    AlphaBeta,
    Message,
    Operation,
    Round,
    Schedule,
    freeze,
    side_by_side,
)


@dataclass(frozen=True)
class HierarchicalRing:
    """Reduce to the first rank of each server, ring between these, broadcast inside.

    The reduction inside is a ring reduce-scatter and a gather, the broadcast a scatter and a ring
    all-gather. Servers may have different numbers of ranks.

    Args:
        server: the server of each participant.
    """

    server: tuple[int, ...]  # (n,)

    name = "hierarchical ring"
    operation = Operation.ALL_REDUCE

    def schedule(self, participants: int) -> Schedule:
        """As many chunks as the least common multiple of all ring lengths."""
        groups = _groups(self.server, participants)
        leaders = [group[0] for group in groups]
        chunks = lcm(len(leaders), *(len(group) for group in groups))
        rounds = [
            *side_by_side([_reduce(group, chunks) for group in groups]),
            *ring_all_reduce(leaders, (0, chunks), TO_NEXT),
            *side_by_side([_broadcast(group, chunks) for group in groups]),
        ]
        return Schedule(participants, participants, chunks, freeze(rounds))

    def seconds(self, participants: int, size: float, link: AlphaBeta) -> float:
        """`seconds_on` with the same network inside and between."""
        return self.seconds_on(participants, size, link, link)

    def seconds_on(
        self, participants: int, size: float, inside: AlphaBeta, between: AlphaBeta
    ) -> float:
        """2 (g latency + 2 (g - 1) / g S / B) inside, 2 (L - 1) (latency + S / L / B) between.

        L servers, g ranks in the largest; nothing inside where g = 1.
        """
        groups = _groups(self.server, participants)
        g, count = max(len(group) for group in groups), len(groups)
        within = g * inside.latency + 2 * (g - 1) / g * size / inside.bandwidth
        return (2 * within if g > 1 else 0.0) + 2 * (count - 1) * between.seconds(size / count)


@dataclass(frozen=True)
class BlueConnect:
    """Ring reduce-scatter inside, a ring for every block between, ring all-gather inside.

    All ranks send between servers, each its block: a server with a network card for each rank uses
    all of them.

    Args:
        server: the server of each participant; all servers have the same number of them.
    """

    server: tuple[int, ...]  # (n,)

    name = "BlueConnect"
    operation = Operation.ALL_REDUCE

    def schedule(self, participants: int) -> Schedule:
        """As many chunks as ranks."""
        groups = self._equal_groups(participants)
        blocks = blocks_of(0, participants, len(groups[0]))
        rounds = [
            *side_by_side([ring_reduce_scatter(group, blocks, TO_NEXT) for group in groups]),
            *side_by_side(
                [
                    ring_all_reduce([group[number] for group in groups], block, TO_NEXT)
                    for number, block in enumerate(blocks)
                ]
            ),
            *side_by_side([ring_all_gather(group, blocks, TO_NEXT) for group in groups]),
        ]
        return Schedule(participants, participants, participants, freeze(rounds))

    def seconds(self, participants: int, size: float, link: AlphaBeta) -> float:
        """`seconds_on` with the same network inside and between."""
        return self.seconds_on(participants, size, link, link)

    def seconds_on(
        self, participants: int, size: float, inside: AlphaBeta, between: AlphaBeta
    ) -> float:
        """2 (g - 1) (latency + S / g / B) inside, 2 (L - 1) (latency + S / n / B) between.

        L servers of g ranks; the bandwidth between is that of one rank.
        """
        groups = self._equal_groups(participants)
        g = len(groups[0])
        within = 2 * (g - 1) * inside.seconds(size / g)
        return within + 2 * (len(groups) - 1) * between.seconds(size / participants)

    def _equal_groups(self, participants: int) -> list[list[int]]:
        groups = _groups(self.server, participants)
        if len({len(group) for group in groups}) > 1:
            raise InputError(
                f"servers of {', '.join(str(len(group)) for group in groups)} ranks; "
                "BlueConnect needs equal numbers",
                field="server",
            )
        return groups


def _groups(server: Sequence[int], participants: int) -> list[list[int]]:
    """The ranks of each server, in order of first appearance."""
    if participants < 1 or len(server) != participants:
        raise InputError(
            f"names the servers of {len(server)} participants, there are {participants}",
            field="server",
        )
    found: dict[int, list[int]] = {}
    for rank, index in enumerate(server):
        found.setdefault(index, []).append(rank)
    return list(found.values())


def _reduce(group: Sequence[int], chunks: int) -> list[Round]:
    blocks = blocks_of(0, chunks, len(group))
    gather = [Message(group[i], group[0], *blocks[i], False) for i in range(1, len(group))]
    return [*ring_reduce_scatter(group, blocks, TO_NEXT), gather]


def _broadcast(group: Sequence[int], chunks: int) -> list[Round]:
    blocks = blocks_of(0, chunks, len(group))
    scatter = [Message(group[0], group[i], *blocks[i], False) for i in range(1, len(group))]
    return [scatter, *ring_all_gather(group, blocks, TO_NEXT)]
