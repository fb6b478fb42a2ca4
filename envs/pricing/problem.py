"""Requests that come one after another at posted prices, and what hindsight makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Gt, Lt, MinLen

from envs.arrays import FloatArray, IntArray
from envs.bounds import Count, NonNegative, bounded
from envs.errors import InputError

Spread = Annotated[float, Gt(1.0), Lt(1e6)]  # phi: the highest price over the lowest


@bounded
@dataclass(frozen=True)
class Kind:
    """What a request wants: units of every resource, for `duration` rounds (0: for good)."""

    need: Annotated[tuple[int, ...], Ge(0)]
    duration: Annotated[int, Ge(0)] = 0


@bounded
@dataclass(frozen=True)
class PricingProblem:
    """Units of R resources, of which a request is given what it wants, whole and at once, or not.

    Request `kind * m + level` of Q = K m has that kind and pays `prices[level]` per unit and round.
    Units never given away bring `salvage` each at the end. With `buys` units are bought: prices
    and salvage are costs. A state is a number of `states`: what is in use at the start of a round.
    """

    prices: Annotated[FloatArray, MinLen(2), Gt(0.0)]  # (m,) ascending
    kinds: Annotated[tuple[Kind, ...], MinLen(1)]
    capacity: Annotated[tuple[Count, ...], MinLen(1)]  # (R,) units
    salvage: NonNegative
    rounds: Count  # requests, at most
    buys: bool = False

    def __post_init__(self) -> None:
        if np.any(np.diff(self.prices) <= 0.0):
            raise InputError("do not ascend", field="prices")
        for kind in self.kinds:
            if len(kind.need) != len(self.capacity) or not sum(kind.need):
                raise InputError(f"{kind} is of other resources, or of none", field="kinds")

    @property
    def requests(self) -> int:
        """Q."""
        return len(self.kinds) * len(self.prices)

    @cached_property
    def value(self) -> FloatArray:
        """(Q,) of a request that is taken; below 0 where units are bought."""
        units = [sum(kind.need) * max(kind.duration, 1) for kind in self.kinds]
        return (-1.0 if self.buys else 1.0) * np.outer(units, self.prices).ravel()

    @cached_property
    def states(self) -> tuple[IntArray, IntArray, IntArray]:
        """(S, R, D + 1) units in use for good and for so many rounds yet; the empty one first.

        Then the state of the next round if nothing is taken, (S,), and if a request of each kind
        is, (K, S), where -1 is for no room.
        """
        longest = max(kind.duration for kind in self.kinds)
        first = np.zeros((len(self.capacity), longest + 1), dtype=np.int64)
        found, number = [first], {first.tobytes(): 0}
        following: list[list[int]] = []
        for used in found:  # which grows meanwhile
            row = []
            for kind in (None, *self.kinds):
                then = used.copy()
                if kind is not None:
                    then[:, kind.duration] += kind.need
                    if np.any(then.sum(axis=1) > self.capacity):
                        row.append(-1)
                        continue
                then[:, 1:] = np.pad(then[:, 2:], ((0, 0), (0, min(longest, 1))))
                if then.tobytes() not in number:
                    number[then.tobytes()] = len(found)
                    found.append(then)
                row.append(number[then.tobytes()])
            following.append(row)
        table = np.array(following, dtype=np.int64).T
        return np.array(found), table[0], table[1:]

    @cached_property
    def closing(self) -> FloatArray:
        """(S,) what the units that were never given away bring at the end."""
        left = sum(self.capacity) - self.states[0][:, :, 0].sum(axis=1)
        found: FloatArray = (-self.salvage if self.buys else self.salvage) * left
        return found

    @cached_property
    def nothing_known(self) -> FloatArray:
        """(S,) `best` before the first request."""
        return np.where(np.arange(len(self.states[1])) == 0, 0.0, -np.inf)

    def hindsight(self, best: FloatArray, request: int) -> FloatArray:
        """(..., S) the most that any choices get by one more request, by the state they lead to."""
        kind, (_, wait, take) = request // len(self.prices), self.states
        then, fits = np.full_like(best, -np.inf), np.flatnonzero(take[kind] >= 0)
        at_wait: Any = (..., wait)
        at_take: Any = (..., take[kind, fits])
        np.maximum.at(then, at_wait, best)
        np.maximum.at(then, at_take, best[..., fits] + self.value[request])
        return then

    def optimum(self, requests: Sequence[int]) -> float:
        """The value of the best choices for a sequence known beforehand, salvage included."""
        best = self.nothing_known
        for request in requests:
            best = self.hindsight(best, request)
        return float((best + self.closing).max())

    def score(self, value: float, optimum: float) -> float:
        """One over the ratio, in [0, 1]; 1 where there was nothing to get."""
        if self.buys:
            return optimum / value
        return value / optimum if optimum > 0.0 else 1.0


@bounded
def price_search(
    spread: Spread,
    levels: Annotated[int, Ge(2)],
    units: Count,
    *,
    buys: bool = False,
    forced: bool = True,
    sizes: Annotated[Sequence[int], Ge(1), MinLen(1)] = (1,),
    rounds: Count | None = None,
) -> PricingProblem:
    """Units to sell at prices from 1 to `spread`, on a geometric grid, or to buy.

    What is left at the end goes at the worst price if `forced` (k-search, one-way trading with many
    units), and is worth nothing otherwise (knapsacks: a price is a density, a size a weight).
    """
    prices = np.geomspace(1.0, spread, levels)
    salvage = (spread if buys else 1.0) if forced else 0.0
    kinds = tuple(Kind((size,)) for size in sizes)
    return PricingProblem(prices, kinds, (units,), salvage, rounds or 4 * units, buys)


@bounded
def rentals(
    spread: Spread, levels: Annotated[int, Ge(2)] = 3, rounds: Count = 3, longest: Count = 3
) -> PricingProblem:
    """Two resources of one unit; requests for one or both, for one round or `longest` rounds."""
    wanted = ((1, 0), (0, 1), (1, 1))
    kinds = tuple(Kind(need, rounds_) for need in wanted for rounds_ in sorted({1, longest}))
    return PricingProblem(np.geomspace(1.0, spread, levels), kinds, (1, 1), 0.0, rounds)
