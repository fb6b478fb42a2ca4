"""Orders of coflows and the bound: against every order there is, and the published averages."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.papers.coinnetflow.orders import ORDERS, bssi, lower_bound
from experiments.papers.coinnetflow.simulation import (
    CoflowProblem,
    FloatArray,
    IntArray,
    simulate,
    simulate_fair,
)
from experiments.papers.coinnetflow.trace import read_coflows
from tests.papers.coinnetflow.test_coflow_simulation import problems
from tests.strength import examples


def fixed(rank: tuple[int, ...]):  # type: ignore[no-untyped-def]
    def order(_: CoflowProblem, active: IntArray, load: FloatArray) -> IntArray:
        return active[np.argsort(np.array(rank)[active])]

    return order


@examples(60)
@given(problems(most=4), st.booleans())
def test_no_order_beats_the_bound_and_bssi_is_near_the_best(
    problem: CoflowProblem, offline: bool
) -> None:
    problem = problem.offline() if offline else problem
    bound = lower_bound(problem)
    costs = [
        simulate(problem, fixed(rank), rates).completion.sum()  # type: ignore[arg-type]
        for rank in itertools.permutations(range(problem.num_coflows))
        for rates in ("greedy", "madd")
    ]
    assert bound <= min(*costs, simulate_fair(problem).completion.sum()) * (1 + 1e-9) + 1e-9
    if offline:
        found = simulate(problem, ORDERS["bssi"], "greedy").completion.sum()
        assert found <= 4 * min(costs) + 1e-9
        assert found <= 4 * bound + 1e-9


@examples(60)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=6),
    st.lists(st.integers(1, 5), min_size=6, max_size=6),
)
def test_one_port_is_served_as_smith_says(times: list[tuple[int, int]], weight: list[int]) -> None:
    """On one port the order is optimal and the dual its cost; on two it is below every order's."""
    d, w = np.array(times, dtype=np.float64), np.array(weight[: len(times)], dtype=np.float64)

    def cost(order: IntArray, d: FloatArray) -> float:
        return float((np.cumsum(d[order], axis=0).max(axis=1) * w[order]).sum())

    order, bound = bssi(d[:, :1].copy(), w)
    assert bound == pytest.approx(cost(order, d[:, :1]))
    _, bound = bssi(d, w)
    orders = map(np.array, itertools.permutations(range(len(d))))
    best = min(
        sum(
            w[c] * max(d[order[: k + 1], p].sum() * (d[c, p] > 0) for p in (0, 1))
            for k, c in enumerate(order)
        )
        for order in orders
    )
    assert bound <= best + 1e-9


def test_the_published_averages_and_their_bounds(data: Path) -> None:
    for file, low, high, dual in (
        ("10-0.9-FB-UPWS", 8.1, 8.1, 7.575),
        ("200-0.9-FB-UPWS", 97.3, 97.9, 88.475),
        ("400-0.9-FB-UPWS", 143.2, 144.0, 133.064),
        ("2000-0.7-FB-UPWS-CHUNKS", 0.0, 717.1, 669.570),
    ):
        problem = read_coflows(data / "network" / "coflow" / f"{file}.txt.gz").problem.offline()
        found = simulate(problem, ORDERS["bssi"], "greedy").completion.mean()
        bound = lower_bound(problem) / problem.num_coflows
        assert low <= round(found, 9) <= high
        assert bound == pytest.approx(dual, abs=6e-4)
        assert found <= 1.12 * bound
