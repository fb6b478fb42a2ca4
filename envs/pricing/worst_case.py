"""The worst ratio of a rule over all sequences of requests, by dynamic programming."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from envs.arrays import FloatArray, IntArray
from envs.errors import InputError
from envs.pricing.problem import PricingProblem


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
    if len(problem.capacity) > 1 or len(reserve) != n or any(k.duration for k in problem.kinds):
        raise InputError(f"{n} levels of one resource that is never given back", field="reserve")
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
