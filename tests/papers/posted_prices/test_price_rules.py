"""Rules, programs and networks against what is proved."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from experiments.papers.posted_prices.env import TOY_RATIO, toy_environment
from experiments.papers.posted_prices.learned import (
    PlaySettings,
    RentalGame,
    ReserveGame,
    SalesGame,
    play,
)
from experiments.papers.posted_prices.problem import (
    RequestTree,
    fractional_knapsack,
    k_search,
    one_way_trading,
    price_search,
    rentals,
    worst_reserve_ratio,
    worst_sales_ratio,
)
from experiments.papers.posted_prices.rules import (
    RULES,
    best_ratio,
    best_sales,
    rental_rules,
    reservation_prices,
    reserve_levels,
)

SETTINGS = PlaySettings(80, 16, 1e-2, 2e-2, 0.05, 2, 0.05, 5e-3)


def best_deterministic_ratio(tree: RequestTree) -> float:
    """The least ratio of all deterministic rules on a tree, by minimax over every sequence."""
    problem, (_, wait, take) = tree.problem, tree.problem.states
    q, levels = problem.requests, len(problem.prices)

    @cache
    def score(played: int, node: int, state: int, own: float) -> float:
        """The worst score from here on, if the rest is played best; a sequence may end here."""
        ends = 1.0
        if played:
            value = own + float(problem.closing[state])
            ends = problem.score(value, tree.optimum[played - 1][node])
        for r in range(q) if played < problem.rounds and ends > 0.0 else ():
            choices = [score(played + 1, node * q + r, int(wait[state]), own)]
            if (then := int(take[r // levels, state])) >= 0:
                choices.append(score(played + 1, node * q + r, then, own + problem.value[r]))
            ends = min(ends, max(choices))
        return ends

    return 1.0 / score(0, 0, 0, 0.0)


@pytest.mark.slow
def test_reservation_prices_promise_the_closed_forms_and_keep_them_on_a_grid() -> None:
    for spread in (5.0, 50.0):
        for units in (1, 2, 5):
            prices, w = reservation_prices(price_search(spread, 2, units, buys=True))
            assert w == pytest.approx(k_search(spread, units, buys=True))
            problem = price_search(spread, 400, units)
            prices, w = reservation_prices(problem)
            assert w == pytest.approx(k_search(spread, units))
            found = worst_reserve_ratio(problem, reserve_levels(problem, prices))
            assert w * spread ** (-1 / 399) <= found <= w
            for name in ("greedy", "fixed"):
                levels = reserve_levels(problem, RULES[name](problem))
                assert found <= worst_reserve_ratio(problem, levels) * (1 + 1e-12)
        for forced, form in ((True, one_way_trading),
                             (False, fractional_knapsack)):  # fmt: skip
            w = reservation_prices(price_search(spread, 2, 2000, forced=forced))[1]
            assert form(spread) < w < form(spread) * 1.01


def test_to_buy_a_lucky_purchase_breaks_the_promise_of_reservation_prices() -> None:
    problem = price_search(20.0, 1000, 2, buys=True)
    prices, w = reservation_prices(problem)
    levels = reserve_levels(problem, prices)
    refused = int(levels[1]) + 1
    paid = problem.prices[0] + 20.0  # the cheapest at once, then nothing until the end
    best = -problem.prices[0] - problem.prices[refused]
    assert -paid / best == pytest.approx(worst_reserve_ratio(problem, levels))
    assert -paid / best > 1.2 * w


def test_no_deterministic_rule_beats_the_closed_form_or_the_toy() -> None:
    toy = toy_environment().problem
    assert best_deterministic_ratio(RequestTree(toy)) == pytest.approx(TOY_RATIO)
    for buys in (False, True):
        tree = RequestTree(price_search(4.0, 5, 2, buys=buys, rounds=4))
        best, w = best_deterministic_ratio(tree), k_search(4.0, 2, buys=buys)
        assert w / 4.0 ** (1 / 4) <= best <= w


def test_programs_approach_the_closed_forms_from_below() -> None:
    for forced, form in ((True, one_way_trading),
                         (False, fractional_knapsack)):  # fmt: skip
        errors = []
        for levels in (40, 160):
            problem = price_search(20.0, levels, 1, forced=forced)
            sales, ratio = best_sales(problem)
            assert worst_sales_ratio(problem, sales) == pytest.approx(ratio, rel=1e-6)
            errors.append(1.0 - ratio / form(20.0))
        assert 0.0 < errors[1] < errors[0] / 3.0 < 0.01


@pytest.mark.slow
def test_on_a_tree_the_program_is_no_worse_than_any_rule() -> None:
    tree = RequestTree(rentals(5.0, 2, rounds=2, longest=2))
    found = {name: tree.worst_ratio(*rules) for name, rules in rental_rules(tree).items()}
    optimum = best_ratio(tree)
    assert 1.0 < optimum <= min(found.values())
    # every request may be the last, so that no deterministic rule refuses the first
    assert best_deterministic_ratio(tree) == pytest.approx(found["greedy"])
    untrained, learned = play(RentalGame(tree), SETTINGS, 0)
    assert optimum <= learned <= optimum * 1.2 < untrained
    single = RequestTree(price_search(4.0, 3, 1, rounds=3))
    assert best_ratio(single) == pytest.approx(best_sales(single.problem)[1], rel=1e-6)


@pytest.mark.slow
def test_two_networks_come_near_the_optimum_and_repeat_themselves() -> None:
    search = ReserveGame(price_search(20.0, 300, 2))
    untrained, learned = play(search, SETTINGS, 1)
    optimum = k_search(20.0, 2)
    assert 0.99 * optimum < learned < 1.02 * optimum < untrained
    few = replace(SETTINGS, iterations=3)
    assert play(search, few, 1) == play(search, few, 1) != play(search, few, 2)
    trading = SalesGame(price_search(20.0, 100, 1), thresholds=False)
    assert play(trading, SETTINGS, 0)[1] < 1.1 * one_way_trading(20.0)
    knapsack = SalesGame(price_search(5.0, 100, 100, forced=False), thresholds=True)
    assert play(knapsack, few, 0)[1] > fractional_knapsack(5.0)
