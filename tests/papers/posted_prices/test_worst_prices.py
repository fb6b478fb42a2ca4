"""Closed forms, hindsight and worst cases against every sequence of small problems."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs import PARALLEL, make_parallel
from experiments.config.papers import register_environments
from experiments.papers.posted_prices.env import ADVERSARY, REFUSE, RULE, TAKE, WAIT
from experiments.papers.posted_prices.problem import (
    Kind,
    PricingProblem,
    RequestTree,
    fractional_knapsack,
    k_search,
    one_way_trading,
    price_search,
    rentals,
    worst_reserve_ratio,
    worst_sales_ratio,
)
from tests.refusal import refusal
from tests.strength import examples


def test_closed_forms_have_the_published_figures() -> None:
    """Of phi = 5, 20, 50."""
    for form, published in (
        (lambda x: k_search(x, 1), (2.236, 4.472, 7.071)),  # its root
        (lambda x: k_search(x, 1, buys=True), (2.236, 4.472, 7.071)),
        (lambda x: k_search(x, 2), (2.000, 3.506, 5.000)),
        (lambda x: k_search(x, 5), (1.837, 2.913, 3.839)),
        (lambda x: k_search(x, 10**7), (1.718, 2.523, 3.134)),
        (one_way_trading, (1.718, 2.523, 3.134)),
        (fractional_knapsack, (2.609, 3.996, 4.912)),
    ):
        assert [form(x) for x in (5.0, 20.0, 50.0)] == pytest.approx(published, abs=5.1e-4)


def optimum(problem: PricingProblem, requests: Sequence[int]) -> float:
    """By hindsight, request by request."""
    best = problem.nothing_known
    for request in requests:
        best = problem.hindsight(best, request)
    return float((best + problem.closing).max())


def best_by_hand(problem: PricingProblem, requests: Sequence[int]) -> float:
    """The optimum over all subsets, from how many units are in use in every round."""
    m, rounds, found = len(problem.prices), len(requests), -np.inf
    for taken in itertools.product((False, True), repeat=rounds):
        used = np.zeros((rounds, len(problem.capacity)))
        sold, value = np.zeros(len(problem.capacity)), 0.0
        for now, request in enumerate(requests):
            kind, price = problem.kinds[request // m], problem.prices[request % m]
            if taken[now]:
                used[now : now + (kind.duration or rounds)] += kind.need
                sold += np.array(kind.need) * (kind.duration == 0)
                value += price * sum(kind.need) * max(kind.duration, 1)
        if (used <= problem.capacity).all():
            left = problem.salvage * float((np.array(problem.capacity) - sold).sum())
            found = max(found, -(value + left) if problem.buys else value + left)
    return found


KINDS = (Kind((1, 2), 2), Kind((1, 0)), Kind((0, 1), 1))
PROBLEMS = [
    price_search(4.0, 3, 2),
    price_search(4.0, 3, 2, buys=True),
    price_search(9.0, 3, 3, forced=False, sizes=(1, 2)),
    rentals(4.0, 2),
    PricingProblem(np.array([1.0, 3.0]), KINDS, (2, 3), 0.5, 4),
]


@examples(60)
@given(st.sampled_from(PROBLEMS), st.lists(st.integers(0, 10**6), max_size=6))
def test_hindsight_is_the_best_of_all_subsets(problem: PricingProblem, drawn: list[int]) -> None:
    requests = [one % problem.requests for one in drawn]
    assert optimum(problem, requests) == pytest.approx(best_by_hand(problem, requests))


def worst_by_trial(
    problem: PricingProblem, length: int, takes: Callable[[int, int, int], float]
) -> float:
    """Over all sequences; `takes(state, highest so far, request)` is a chance."""
    _, wait, follow = problem.states
    m, worst = len(problem.prices), np.inf

    def extend(there: dict[int, float], value: float, top: int, requests: tuple[int, ...]) -> None:
        nonlocal worst
        closing = sum(chance * problem.closing[state] for state, chance in there.items())
        worst = min(worst, problem.score(value + closing, optimum(problem, requests)))
        for r in range(problem.requests) if len(requests) < length else ():
            then: dict[int, float] = {}
            more = value
            for state, chance in there.items():
                fits = follow[r // m, state] >= 0
                yes = chance * takes(state, top, r) if fits else 0.0
                more += yes * problem.value[r]
                for where, share in ((wait[state], chance - yes), (follow[r // m, state], yes)):
                    if share > 0.0:
                        then[int(where)] = then.get(int(where), 0.0) + share
            extend(then, more, max(top, r % m), (*requests, r))

    extend({0: 1.0}, 0.0, -1, ())
    return 1.0 / worst if worst > 0.0 else np.inf


@examples(40, daily=6)
@given(st.booleans(), st.booleans(), st.lists(st.integers(-1, 3), min_size=2, max_size=2))
def test_the_worst_case_of_reserves_is_that_of_all_sequences(
    buys: bool, forced: bool, reserve: list[int]
) -> None:
    problem = price_search(7.0, 3, 2, buys=buys, forced=forced or buys)
    levels = np.clip(reserve, -1 if buys else 0, 2 if buys else 3)

    def takes(state: int, _: int, request: int) -> float:
        return float(request <= levels[state] if buys else request >= levels[state])

    expected = worst_by_trial(problem, 4, takes)
    assert worst_reserve_ratio(problem, levels) == pytest.approx(expected, rel=1e-9)


def test_with_items_of_several_sizes_it_is_exact_where_they_fill_the_capacity() -> None:
    problem = price_search(6.0, 2, 4, forced=False, sizes=(1, 2))
    reserve = np.array([0, 1, 1, 1])
    tried = worst_by_trial(problem, 5, lambda state, _, request: request % 2 >= reserve[state])
    assert worst_reserve_ratio(problem, reserve) == pytest.approx(tried)


@examples(20, daily=4)
@given(st.lists(st.floats(0.05, 1.0), min_size=4, max_size=4), st.booleans())
def test_the_worst_case_of_a_random_reserve_is_that_of_all_sequences(
    weights: list[float], forced: bool
) -> None:
    problem = price_search(5.0, 4, 1, forced=forced)
    sales = np.array(weights) / sum(weights)
    left = np.append(np.cumsum(sales[::-1])[::-1], 0.0)

    def takes(state: int, top: int, request: int) -> float:
        """Given that it has not been sold, its reserve lies above the highest price so far."""
        return 1.0 - left[request + 1] / left[top + 1] if request > top else 0.0

    assert worst_sales_ratio(problem, sales) == pytest.approx(worst_by_trial(problem, 4, takes))


def test_a_tree_has_the_values_and_scores_that_playing_has() -> None:
    tree, rng = RequestTree(rentals(4.0, 2, rounds=2)), np.random.default_rng(0)
    problem = tree.problem
    register_environments()
    env: Any = make_parallel(PARALLEL["meshwright/Pricing-v0"], problem=problem)
    taken = [rng.integers(0, 2, (len(x), *tree.fits.shape)).astype(float) for x in tree.reachable]
    values, q = tree.values(taken), problem.requests
    for requests in itertools.product(range(q), repeat=2):
        env.reset()
        node, score = 0, 1.0
        for played, request in enumerate(requests):
            env.step({RULE: WAIT, ADVERSARY: request + 1})
            state = env._state
            take = tree.fits[request, state] and taken[played][node, request, state] == 1.0
            _, rewards, *_ = env.step({RULE: TAKE if take else REFUSE, ADVERSARY: WAIT})
            node = node * q + request
            score = problem.score(values[played][node], tree.optimum[played][node])
        assert rewards == {RULE: pytest.approx(score), ADVERSARY: pytest.approx(-score)}
        assert optimum(problem, requests) == pytest.approx(tree.optimum[-1][node])


def test_bad_problems_name_their_field() -> None:
    two = np.array([1.0, 2.0])
    for field, make in {
        "spread": lambda: price_search(1.0, 3, 1),
        "units": lambda: price_search(4.0, 3, 0),
        "prices": lambda: PricingProblem(two[::-1], (Kind((1,)),), (1,), 0.0, 3),
        "kinds": lambda: PricingProblem(two, (Kind((0,)),), (1,), 0.0, 3),
        "rounds": lambda: RequestTree(rentals(4.0, 9, rounds=9)),
    }.items():
        with refusal(f"'{field}'"):
            make()
