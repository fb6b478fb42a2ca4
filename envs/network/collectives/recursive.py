"""All-reduce by recursive doubling, and by halving and doubling (Rabenseifner's algorithm).

Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, IJHPCA
19(1), 2005 (all-reduce of short and of long messages); Rabenseifner, Optimization of collective
reduction operations, ICCS 2004.
"""

from __future__ import annotations

from dataclasses import dataclass

from envs.network.collectives.schedule import (
    AlphaBeta,
    Message,
    Operation,
    Round,
    Schedule,
    checked_participants,
    freeze,
)


@dataclass(frozen=True)
class RecursiveDoubling:
    """log2 n rounds of S bytes.

    Where n is no power of two, p is the next lower one and r = n - p: of the first 2 r ranks the
    even ones send their vectors to their right neighbours, stand aside, and are sent the sum at
    the end.
    """

    name = "recursive doubling"
    operation = Operation.ALL_REDUCE

    def schedule(self, participants: int) -> Schedule:
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


@dataclass(frozen=True)
class HalvingDoubling:
    """Reduce-scatter by recursive vector halving, all-gather by recursive vector doubling.

    Distances are 1, 2, 4, ... on the way there, so that the longest messages go to neighbours.
    Where n is no power of two, p is the next lower one and r = n - p: the first 2 r ranks work in
    pairs. Even and odd exchange halves, each adds one half, the odd one sends its half to the even
    one, stands aside and is sent the sum at the end.
    """

    name = "halving-doubling"
    operation = Operation.ALL_REDUCE

    def schedule(self, participants: int) -> Schedule:
        n = checked_participants(participants)
        power = 1 << (n.bit_length() - 1)
        folded, half = n - power, power // 2
        rounds: list[Round] = [
            [
                message
                for i in range(folded)
                for message in (
                    Message(2 * i, 2 * i + 1, half, power, True),
                    Message(2 * i + 1, 2 * i, 0, half, True),
                )
            ],
            [Message(2 * i + 1, 2 * i, half, power, False) for i in range(folded)],
        ]
        active = [2 * i for i in range(folded)] + list(range(2 * folded, n))
        held = [(0, power)] * power  # chunks of which each active rank sums its share
        back: list[Round] = []
        for level in range(power.bit_length() - 1):
            there: Round = []
            home: Round = []
            for v, (first, end) in enumerate(held):
                middle, upper = (first + end) // 2, bool(v >> level & 1)
                other = active[v ^ 1 << level]
                kept = (middle, end) if upper else (first, middle)
                given = (first, middle) if upper else (middle, end)
                there.append(Message(active[v], other, *given, True))
                home.append(Message(active[v], other, *kept, False))
                held[v] = kept
            rounds.append(there)
            back.append(home)
        rounds += back[::-1]
        rounds.append([Message(2 * i, 2 * i + 1, 0, power, False) for i in range(folded)])
        return Schedule(n, n, power, freeze(rounds))

    def seconds(self, participants: int, size: float, link: AlphaBeta) -> float:
        """2 log2 p latency + 2 (p - 1) / p S / B.

        Where n is no power of two: 3 latency + 2 S / B more.
        """
        n = checked_participants(participants)
        levels = n.bit_length() - 1
        power = 1 << levels
        seconds = 2 * levels * link.latency + 2 * (power - 1) / power * size / link.bandwidth
        if n > power:
            seconds += 2 * link.seconds(size / 2) + link.seconds(size)
        return seconds
