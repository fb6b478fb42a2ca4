"""Requests that come one after another at posted prices, and what hindsight makes of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
        nothing = Kind((0,) * len(self.capacity))
        found = [np.zeros((len(self.capacity), longest + 1), dtype=np.int64)]
        number = {found[0].tobytes(): 0}
        following = []
        for used in found:  # which grows meanwhile
            for kind in (nothing, *self.kinds):
                then = used.copy()
                then[:, kind.duration] += kind.need
                fits = (then.sum(axis=1) <= self.capacity).all()
                then[:, 1:] = np.pad(then[:, 2:], ((0, 0), (0, min(longest, 1))))
                if fits and then.tobytes() not in number:
                    number[then.tobytes()] = len(found)
                    found.append(then)
                following.append(number[then.tobytes()] if fits else -1)
        table = np.array(following).reshape(len(found), -1).T
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
def k_search(spread: Spread, units: Count, *, buys: bool = False) -> float:
    """Deterministic, what is left goes at the worst price.

    To sell, (phi - 1) / (w - 1) = (1 + w / k)^k; to buy, the same of 1 / phi and 1 / w. Lorenz,
    Panagiotou, Steger: *Optimal algorithms for k-search with application in option pricing*,
    Algorithmica 2009.
    """
    power = -1.0 if buys else 1.0

    def missed(w: float) -> float:
        left, ratio = spread**power - 1.0, w**power
        return math.log(left / (ratio - 1.0)) - units * math.log1p(ratio / units)

    return float(brentq(missed, 1.0 + 1e-12, spread, xtol=1e-13))


@bounded
def one_way_trading(spread: Spread) -> float:
    """Any share at any price, or one unit and a randomised choice: 1 + W((phi - 1) / e), forced.

    The limit of `k_search` for many units. El-Yaniv, Fiat, Karp, Turpin: *Optimal search and
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
    n, m, buys = problem.capacity[0], len(problem.prices), problem.buys
    sizes = [kind.need[0] for kind in problem.kinds]
    # to buy: values below 0, levels from the worst price, the highest, on
    prices, salvage = (
        (-problem.prices[::-1], -problem.salvage) if buys else (problem.prices, problem.salvage)
    )
    least = m - 1 - reserve if buys else reserve
    refused: IntArray = np.full(n + 1, m - 1)  # the best level that is; all where nothing fits
    refused[: n + 1 - max(sizes)] = least[: n + 1 - max(sizes)] - 1
    levels = np.unique(refused[refused >= 0])
    best = np.append(prices[levels], salvage)  # r; the last is: nothing refused
    left = np.arange(n, -1, -1)[:, None]
    worst, improved = 1.0, True
    while improved:
        # by state: value of the rule and of hindsight, r not refused yet or refused, r
        got = np.full((n + 1, 2, 2, len(best)), np.nan)
        got[0, :, 0] = 0.0
        factor = 1.0 / worst if buys else worst
        for z in range(n + 1):
            here = np.where(np.append(levels <= refused[z], True), got[z, :, 0], np.nan)
            got[z, :, 1] = _worse(factor, got[z, :, 1], here)
            if z == n or least[z] == m:
                continue
            for level in {int(least[z]), m - 1} if buys else {int(least[z])}:
                price = np.full_like(best, prices[level])
                gain = np.stack([price, np.maximum(price, best)])[:, None]
                for size in (size for size in sizes if z + size <= n):
                    got[z + size] = _worse(factor, got[z + size], got[z] + size * gain)
        own, hindsight = np.abs((got[:, 0, 1] + left * salvage, got[:, 1, 1] + left * best))
        high, low = (own, hindsight) if buys else (hindsight, own)
        with np.errstate(divide="ignore", invalid="ignore"):
            found = float(np.nanmax(np.where(high > 0.0, high / low, np.nan), initial=1.0))
        improved, worst = worst * (1.0 + 1e-12) < found < np.inf, max(found, worst)
    return worst


def _worse(factor: float, first: FloatArray, second: FloatArray) -> FloatArray:
    """Of two arrays (2, ...) of pairs those further beyond a ratio (Dinkelbach); nan: none."""
    one, other = (hindsight - factor * own for own, hindsight in (first, second))
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
