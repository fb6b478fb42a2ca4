"""Rules with reservation prices: one level for every unit that is gone."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from scipy.optimize import brentq

from envs.arrays import FloatArray, IntArray
from envs.pricing.problem import PricingProblem
from envs.pricing.worst_case import RequestTree


def reserve_levels(problem: PricingProblem, price: FloatArray) -> IntArray:
    """The levels of reservation prices (N,): the next ones up to sell, down to buy."""
    if problem.buys:
        return np.searchsorted(problem.prices, price * (1.0 + 1e-9), side="right") - 1
    return np.searchsorted(problem.prices, price * (1.0 - 1e-9))


def reservation_prices(problem: PricingProblem) -> tuple[FloatArray, float]:
    """The prices (N,) that promise the least ratio w, and w.

    Each is w times (to buy: one over w times) what the rule is left with on average if no further
    unit goes before the end; w is such that there is just no price left to refuse the last with.

    Guarantees:
        Sells at a ratio of at most w, which is optimal for a continuum of prices; w tends to
        1 + W((phi - 1) / e) (forced) and ln phi + 1 (not forced) for many units. To buy, w holds
        only while every unit costs its reservation price: after a lucky purchase the rule is too
        strict (`experiments.price problem=k_min_search` measures it).

    Source:
        Lorenz, Panagiotou, Steger: *Optimal algorithms for k-search with application in option
        pricing*, Algorithmica 2009 (k-search); Zhou, Chakrabarty, Lukose: *Budget constrained
        bidding in keyword auctions and online knapsack problems*, WINE 2008 (nothing forced).
    """
    n, low, high = problem.capacity[0], problem.prices[0], problem.prices[-1]

    def prices(w: float) -> FloatArray:
        factor, total, found = (1.0 / w if problem.buys else w) / n, 0.0, np.zeros(n + 1)
        for unit in range(n + 1):
            found[unit] = factor * (total + (n - unit) * problem.salvage)
            if not problem.buys:
                found[unit] = max(low, found[unit])
            total += found[unit]
        return found

    end = low if problem.buys else high

    def beyond(w: float) -> float:
        return float(np.log(prices(w)[-1] / end))

    w = float(brentq(beyond, 1.0 + 1e-9, high / low * (1.0 + 1e-9), xtol=1e-13))
    return prices(w)[:-1], w


RULES: Mapping[str, Callable[[PricingProblem], FloatArray]] = {
    # takes whatever comes
    "greedy": lambda problem: np.full(problem.capacity[0], problem.prices[0 - problem.buys]),
    # one price for all units: the geometric mean
    "fixed": lambda problem: np.full(
        problem.capacity[0], np.sqrt(problem.prices[0] * problem.prices[-1])
    ),
    "reservation": lambda problem: reservation_prices(problem)[0],
}


def rental_rules(tree: RequestTree) -> dict[str, list[list[FloatArray]]]:
    """Rules for the requests of a tree, as chances to take them: (Q^t, Q, S) for each round.

    `greedy` takes what fits; `fixed` from the geometric mean of the prices on; `utilised` from
    lowest * phi^u on, u the share of all resources in use now. `random` are as many rules as there
    are levels, of which one is to be drawn: it takes from its level on.
    """
    problem = tree.problem
    price = np.tile(problem.prices, len(problem.kinds))[:, None]  # (Q, 1)
    low, high = problem.prices[0], problem.prices[-1]
    used = problem.states[0].sum(axis=(1, 2)) / sum(problem.capacity)  # (S,)

    def taken(least: FloatArray) -> list[FloatArray]:
        chance = (price >= least * (1.0 - 1e-9)).astype(np.float64)
        return [np.repeat(chance[None], len(seen), axis=0) for seen in tree.reachable]

    return {
        "greedy": [taken(np.full_like(used, low))],
        "fixed": [taken(np.full_like(used, np.sqrt(low * high)))],
        "utilised": [taken(low * (high / low) ** used)],
        "random": [taken(np.full_like(used, level)) for level in problem.prices],
    }
