"""The best ratios that are known in closed form; `spread` is phi = highest / lowest price."""

from __future__ import annotations

import math
from collections.abc import Callable

from scipy.optimize import brentq
from scipy.special import lambertw

from envs.bounds import Count, bounded
from envs.pricing.problem import Spread


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
