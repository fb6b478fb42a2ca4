"""Requests that come one after another at posted prices, and what hindsight makes of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Gt, Lt, MinLen
from scipy.optimize import brentq
from scipy.special import lambertw

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


@bounded
def k_max_search(spread: Spread, units: Count) -> float:
    """Deterministic, forced sale at the lowest price: (phi - 1) / (w - 1) = (1 + w / k)^k.

    Lorenz, Panagiotou, Steger: *Optimal algorithms for k-search with application in option
    pricing*, Algorithmica 2009.
    """
    return _root(
        lambda w: math.log((spread - 1.0) / (w - 1.0)) - units * math.log1p(w / units), spread
    )


@bounded
def k_min_search(spread: Spread, units: Count) -> float:
    """Deterministic, forced purchase at the highest: (1 - 1/phi)/(1 - 1/w) = (1 + 1/(k w))^k."""
    return _root(
        lambda w: (
            math.log((1.0 - 1.0 / spread) / (1.0 - 1.0 / w)) - units * math.log1p(1.0 / (units * w))
        ),
        spread,
    )


@bounded
def one_way_trading(spread: Spread) -> float:
    """Any share at any price, or one unit and a randomised choice: 1 + W((phi - 1) / e), forced.

    The limit of `k_max_search` for many units. El-Yaniv, Fiat, Karp, Turpin: *Optimal search and
    one-way trading online algorithms*, Algorithmica 2001.
    """
    return 1.0 + float(lambertw((spread - 1.0) / math.e).real)


@bounded
def fractional_knapsack(spread: Spread) -> float:
    """Infinitesimal items, what is left is worth nothing: ln phi + 1; chance does not help.

    Zhou, Chakrabarty, Lukose: *Budget constrained bidding in keyword auctions and online knapsack
    problems*, WINE 2008.
    """
    return 1.0 + math.log(spread)


def _root(function: Callable[[float], float], highest: float) -> float:
    """Between 1 and phi, where the function falls through 0."""
    return float(brentq(function, 1.0 + 1e-12, highest, xtol=1e-13))


def worst_reserve_ratio(problem: PricingProblem, reserve: IntArray) -> float:
    """The worst ratio of `reserve` (N,), the worst level that is taken once z units are gone.

    One resource, units for good; a request that does not fit is refused. A refusal changes nothing,
    so what is refused in a state that is passed may come without end, and of all such levels one,
    r, counts. Given r, a price a that is taken adds s a to the rule and s max(a, r) to hindsight
    (which fills up with r): their ratio is worst at the least price taken; where units are bought
    (min for max) at the highest or at the lowest. So z and r suffice, and whether r has been
    refused on the way. Hindsight may split the last request it takes: with sizes that do not divide
    the capacity the ratio is an upper bound, otherwise exact.
    """
    n, m = problem.capacity[0], len(problem.prices)
    sizes = [kind.need[0] for kind in problem.kinds]
    last, step = (0, 1) if problem.buys else (m - 1, -1)  # level refused where nothing fits
    refused: IntArray = np.full(n + 1, last)
    refused[: n + 1 - max(sizes)] = reserve[: n + 1 - max(sizes)] + step
    known = (refused >= 0) & (refused < m)
    levels = np.unique(refused[known])
    best = np.append(problem.prices[levels], problem.salvage)  # r; the last is: nothing refused
    pick = np.minimum if problem.buys else np.maximum
    left = np.arange(n, -1, -1)[:, None]
    worst, improved = 1.0, True
    while improved:
        # by state: value of the rule and of hindsight, r not refused yet or refused, r
        got = np.full((n + 1, 2, 2, len(best)), np.nan)
        got[0, :, 0] = 0.0
        for z in range(n + 1):
            said = levels >= refused[z] if problem.buys else levels <= refused[z]
            here = np.where(np.append(said, True), got[z, :, 0], np.nan)
            got[z, :, 1] = _worse(problem, worst, got[z, :, 1], here)
            if z == n or not 0 <= reserve[z] < m:
                continue
            for level in {int(reserve[z]), 0} if problem.buys else {int(reserve[z])}:
                price = problem.prices[level]
                gain = np.stack([np.full_like(best, price), pick(price, best)])[:, None]
                for size in (size for size in sizes if z + size <= n):
                    got[z + size] = _worse(problem, worst, got[z + size], got[z] + size * gain)
        ends = (got[:, 0, 1] + left * problem.salvage, got[:, 1, 1] + left * best)
        high, low = ends if problem.buys else ends[::-1]
        with np.errstate(divide="ignore", invalid="ignore"):
            found = float(np.nanmax(np.where(high > 0.0, high / low, np.nan), initial=1.0))
        improved, worst = worst * (1.0 + 1e-12) < found < np.inf, max(found, worst)
    return worst


def _worse(
    problem: PricingProblem, ratio: float, first: FloatArray, second: FloatArray
) -> FloatArray:
    """Of two arrays (2, ...) of pairs the ones further beyond a ratio (Dinkelbach); nan: none."""
    high, low = (0, 1) if problem.buys else (1, 0)
    one, other = (pair[high] - ratio * pair[low] for pair in (first, second))
    return np.where((other > one) | np.isnan(one), second, first)


def worst_sales_ratio(problem: PricingProblem, sales: FloatArray) -> float:
    """The worst ratio of selling the share `sales` (m,) at the first price of that level or above.

    The share sold by then depends on the highest price so far alone, prices below it change
    nothing, and a rise that leaves out levels sells their shares at a higher price: prices that
    climb level by level and stop are the worst, and hindsight has the last of them. A unit that is
    sold at a random reservation price with probabilities `sales` expects the same.
    """
    sold = np.cumsum(sales)
    own = np.cumsum(sales * problem.prices) + problem.salvage * (1.0 - sold)
    return _largest(problem.prices, own)


class RequestTree:
    """All sequences of up to `rounds` requests: node i is request i % Q after node i // Q.

    The arithmetic of `values` is that of the arrays given, NumPy's or torch's.
    """

    def __init__(self, problem: PricingProblem) -> None:
        self.problem, q = problem, problem.requests
        if float(q) ** problem.rounds > 2e6:
            raise InputError(
                f"{q} requests in {problem.rounds} rounds are too many", field="rounds"
            )
        best, self.optimum, self.reachable = problem.nothing_known[None], [], []
        for _ in range(problem.rounds):
            self.reachable.append(best > -np.inf)  # (Q^t, S)
            best = np.stack([problem.hindsight(best, r) for r in range(q)], axis=1)
            best = best.reshape(-1, best.shape[-1])
            self.optimum.append((best + problem.closing).max(axis=-1))  # (Q^(t+1),)
        _, wait, take = problem.states
        kind = np.repeat(np.arange(len(problem.kinds)), len(problem.prices))
        self.fits = take[kind] >= 0  # (Q, S)
        eye = np.eye(len(wait))
        self.wait, self.take = eye[wait], eye[take[kind]] * self.fits[..., None]  # from, to
        # (Q,) value less what the units would have brought at the end
        self.gain = problem.value + (problem.closing[take[kind, 0]] - problem.closing[0])

    def values(self, taken: Sequence[Any], tables: tuple[Any, Any, Any] | None = None) -> list[Any]:
        """The expected values (Q^t,) after each round, of a rule that looks at its state.

        Args:
            taken: for each round (Q^t, Q, S), the chance that the request is taken if it fits.
            tables: `wait`, `take` and `gain`, as arrays of the kind of `taken`.
        """
        wait, take, gain = tables or (self.wait, self.take, self.gain)
        there = wait[:1] * 0.0  # (1, S)
        there[0, 0] = 1.0
        so_far = there[:, 0] * 0.0 + float(self.problem.closing[0])
        found: list[Any] = []
        yes: Any = None
        for chance in taken:
            if found:
                took = (yes.swapaxes(0, 1) @ take).swapaxes(0, 1)
                there = ((there[:, None, :] - yes) @ wait + took).reshape(-1, len(wait))
            yes = there[:, None, :] * chance * take.sum(-1)
            so_far = (so_far[:, None] + yes.sum(-1) * gain).reshape(-1)
            found.append(so_far)
        return found

    def worst_ratio(self, *rules: Sequence[FloatArray]) -> float:
        """Of expected values, over all sequences; one of the rules is drawn before the first."""
        own = np.mean([np.concatenate(self.values(taken)) for taken in rules], axis=0)
        return _largest(np.concatenate(self.optimum), own)


def _largest(best: FloatArray, own: FloatArray) -> float:
    with np.errstate(divide="ignore"):
        return float(np.max(best / own))
