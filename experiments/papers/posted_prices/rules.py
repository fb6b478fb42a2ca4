"""Rules with reservation prices: one level for every unit that is gone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from scipy.optimize import brentq

from agents.linear_program import LinearProgram
from envs.arrays import FloatArray, IntArray
from experiments.papers.posted_prices.problem import PricingProblem, RequestTree


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
        strict (`meshwright price problem=k_min_search` measures it).

    Source:
        Lorenz, Panagiotou, Steger: *Optimal algorithms for k-search with application in option
        pricing*, Algorithmica 2009 (k-search); Zhou, Chakrabarty, Lukose: *Budget constrained
        bidding in keyword auctions and online knapsack problems*, WINE 2008 (nothing forced).
    """
    n, low, high = problem.capacity[0], problem.prices[0], problem.prices[-1]
    least, end = (0.0, low) if problem.buys else (low, high)

    def prices(w: float) -> FloatArray:
        factor, found = (1.0 / w if problem.buys else w) / n, list[float]()
        for unit in range(n + 1):
            found.append(max(least, factor * (sum(found) + (n - unit) * problem.salvage)))
        return np.array(found)

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

    def taken(least: Any) -> list[FloatArray]:
        chance = (price >= least * (1.0 - 1e-9)).astype(np.float64)
        return [np.broadcast_to(chance, (len(seen), *tree.fits.shape)) for seen in tree.reachable]

    return {
        "greedy": [taken(low)],
        "fixed": [taken(np.sqrt(low * high))],
        "utilised": [taken(low * (high / low) ** used)],
        "random": [*map(taken, problem.prices)],
    }


def best_sales(problem: PricingProblem) -> tuple[FloatArray, float]:
    """The shares (m,) to sell at each new highest level, and their ratio: the least on this grid.

    To have p_j / w at every level j, as late as possible is best: at the first level that salvage
    is too little for what is missing, then (p_j - p_(j-1)) / (p_j - salvage) / w. All shares make
    one at the largest w = 1 + (1 - salvage / p_i) sum_(j > i) (p_j - p_(j-1)) / (p_j - salvage).

    Guarantees:
        Optimal among all randomised rules for one unit, and for units without end.

    Source:
        Own; the game is that of El-Yaniv, Fiat, Karp, Turpin: *Optimal search and one-way trading
        online algorithms*, Algorithmica 2001.
    """
    prices, salvage = problem.prices, problem.salvage
    share = np.append(0.0, np.diff(prices) / (prices[1:] - salvage))
    ratios = 1.0 + (1.0 - salvage / prices) * (share.sum() - np.cumsum(share))
    first = ratios.argmax()
    share[: first + 1] = 0.0
    share /= ratios[first]
    share[first] = 1.0 - share.sum()
    return share, float(ratios[first])


def best_ratio(tree: RequestTree) -> float:
    """The least ratio of expected values to hindsight of all randomised rules on a tree.

    Guarantees:
        Optimal: values add up along a sequence, so of what a rule did before only its state counts;
        the variables are the chances to come to a node in a state and to take its request.

    Source:
        Sequence form: Koller, Megiddo, von Stengel: *Fast algorithms for finding randomized
        strategies in game trees*, STOC 1994.
    """
    problem, program = tree.problem, LinearProgram()
    q, states = problem.requests, len(tree.wait)
    score = program.add_columns(1, cost=-1.0)
    there = program.add_columns((1, states), upper=np.eye(states)[0], lower=np.eye(states)[0])
    own = program.add_columns(1, lower=problem.closing[0], upper=problem.closing[0])
    for optimum in tree.optimum:
        nodes = len(there)
        yes = program.add_columns((nodes, q, states), upper=tree.fits)
        then = program.add_columns((nodes, q, states))
        after = program.add_columns((nodes, q), lower=-np.inf)
        parent = np.broadcast_to(there[:, None], yes.shape)
        program.add_rows(yes.size, [(yes.ravel(), -1.0), (parent.ravel(), 1.0)], lower=0.0)
        for r in range(q):
            # state by state: what arrives by waiting and by taking
            into = np.hstack([tree.wait.T, (tree.take[r] - tree.wait).T])  # (S, 2 S)
            columns = np.hstack([there, yes[:, r]])  # (nodes, 2 S)
            for s in range(states):
                arrives = [(then[:, r, s], 1.0), (columns, -into[s][None])]
                program.add_rows(nodes, arrives, lower=0.0, upper=0.0)
            earned = [(after[:, r], 1.0), (own, -1.0), (yes[:, r], -tree.gain[r])]
            program.add_rows(nodes, earned, lower=0.0, upper=0.0)
        there, own = then.reshape(-1, states), after.ravel()
        program.add_rows(len(own), [(own, 1.0), (np.repeat(score, len(own)), -optimum)], lower=0.0)
    solver = program.solver(time_limit=120.0)
    solver.run()
    return float(1.0 / solver.getSolution().col_value[score[0]])
