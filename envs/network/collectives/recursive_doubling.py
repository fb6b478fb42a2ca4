"""All-reduce by recursive doubling: whole vectors exchanged at distances 1, 2, 4, ...

Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, IJHPCA
19(1), 2005 (all-reduce of short messages).
"""

from __future__ import annotations

from dataclasses import dataclass

from envs.network.collectives.collective import AlphaBeta, checked_participants
from envs.network.collectives.schedule import Message, Operation, Round, Schedule, freeze


@dataclass(frozen=True)
class RecursiveDoubling:
    """log2 n rounds of S bytes.

    Where n is no power of two, p is the next lower one and r = n - p: of the first 2 r ranks the
    even ones send their vectors to their right neighbours, stand aside, and are sent the sum at
    the end.
    """

    @property
    def name(self) -> str:
        """`recursive doubling`."""
        return "recursive doubling"

    @property
    def operation(self) -> Operation:
        """All-reduce."""
        return Operation.ALL_REDUCE

    def schedule(self, participants: int) -> Schedule:
        """One chunk."""
        n = checked_participants(participants)
        power = 1 << (n.bit_length() - 1)
        folded = n - power
        rounds: list[Round] = [[Message(2 * i, 2 * i + 1, 0, 1, True) for i in range(folded)]]
        active = [2 * i + 1 for i in range(folded)] + list(range(2 * folded, n))
        for level in range(power.bit_length() - 1):
            rounds.append(
                [Message(active[v], active[v ^ 1 << level], 0, 1, True) for v in range(power)]
            )
        rounds.append([Message(2 * i + 1, 2 * i, 0, 1, False) for i in range(folded)])
        return Schedule(n, n, 1, freeze(rounds))

    def seconds(self, participants: int, size: float, link: AlphaBeta) -> float:
        """floor(log2 n) (latency + S / B), two rounds more where n is no power of two."""
        n = checked_participants(participants)
        levels = n.bit_length() - 1
        return (levels + (2 if n > 1 << levels else 0)) * link.seconds(size)
