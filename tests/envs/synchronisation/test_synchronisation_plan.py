"""Plans of synchronisation: what is checked, and what their execution leaves on every rank."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from numpy.random import default_rng
from numpy.testing import assert_allclose, assert_array_equal

from envs.synchronisation.plan import Primitive, SynchronisationPlan, Tree
from envs.synchronisation.problem import SynchronisationProblem
from tests.envs.synchronisation.made_networks import ring, star


@pytest.mark.parametrize("n", [2, 3, 5])
def test_a_ring_sums_and_sends_what_patarasuk_and_yuan_count(n: int) -> None:
    problem = SynchronisationProblem(star(n), 1e6)
    plan = ring(n)
    assert plan.violations(problem) == []
    vectors = default_rng(n).normal(size=(n, 4 * n + 1))
    assert_allclose(plan.perform(problem, vectors), np.tile(vectors.sum(0), (n, 1)))
    assert_allclose(plan.link_bytes(problem), 2 * (n - 1) / n * 1e6)


def test_a_switch_that_adds_halves_the_bytes() -> None:
    problem = SynchronisationProblem(star(4, aggregation=True), 1e6)
    tree = Tree(4, Fraction(1), tuple((i, 4) for i in range(4)), tuple((4, i) for i in range(4)))
    plan = SynchronisationPlan("switch", (tree,))
    assert plan.violations(problem) == []
    vectors = default_rng(0).normal(size=(4, 7))
    assert_allclose(plan.perform(problem, vectors), np.tile(vectors.sum(0), (4, 1)))
    assert_allclose(plan.link_bytes(problem), 1e6)
    assert (
        "cannot add"
        in SynchronisationPlan("x", (tree,)).violations(SynchronisationProblem(star(4), 1e6))[0]
    )


def test_halves_of_an_all_reduce() -> None:
    n = 3
    vectors = default_rng(1).normal(size=(n, 6))
    gather = SynchronisationProblem(star(n), 1e6, Primitive.ALL_GATHER)
    out = tuple(Tree(t.root, t.share, (), t.broadcast) for t in ring(n).trees)
    plan = SynchronisationPlan("gather", out)
    assert plan.violations(gather) == []
    own = np.concatenate([vectors[i, 2 * i : 2 * i + 2] for i in range(n)])
    assert_array_equal(plan.perform(gather, vectors), np.tile(own, (n, 1)))
    scatter = SynchronisationProblem(star(n), 1e6, Primitive.REDUCE_SCATTER)
    into = tuple(Tree(t.root, t.share, t.reduce) for t in ring(n).trees)
    held = SynchronisationPlan("scatter", into).perform(scatter, vectors)
    for i in range(n):
        own = slice(2 * i, 2 * i + 2)
        assert_allclose(held[i, own], vectors.sum(0)[own])
    assert np.isnan(held).sum() == 12


def test_what_is_wrong_is_named() -> None:
    problem = SynchronisationProblem(star(3), 1e6)
    whole = ring(3).trees
    short = Tree(whole[0].root, whole[0].share, whole[0].reduce[:1], whole[0].broadcast)
    faults = SynchronisationPlan("x", (short, *whole[1:])).violations(problem)
    assert any("leaves out" in fault or "does not reach" in fault for fault in faults)
    faults = SynchronisationPlan("x", whole[:2]).violations(problem)
    assert faults == ["the trees carry 2/3 of the vector, not 1"]
    direct = Tree(0, Fraction(1), ((1, 0), (2, 3, 0)), whole[0].broadcast)
    assert "no way of the network" in SynchronisationPlan("x", (direct,)).violations(problem)[0]
