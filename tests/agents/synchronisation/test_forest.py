"""Packed forests against all cuts, against published optima, and against what links can carry."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.synchronisation.forest import Forest
from envs.synchronisation.link_graph import LinkGraph, VertexSpec, graph_of
from envs.synchronisation.plan import SynchronisationPlan
from envs.synchronisation.problem import Primitive, SynchronisationProblem
from tests.strength import examples


def random_graph(seed: int, most: int = 8) -> LinkGraph:
    """Participants that may relay, switches and vertices that add, on links uneven or not."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(2, most + 1))
    taking = int(rng.integers(2, size + 1))
    symmetric, adding, ugly = rng.random() < 0.5, rng.random() < 0.3, rng.random() < 0.2
    vertices = [VertexSpec(f"p{i}", True, True, bool(rng.random() < 0.5)) for i in range(taking)]
    for i in range(taking, size):
        sums = bool(adding and rng.random() < 0.5)
        vertices.append(VertexSpec(f"s{i}", False, sums, not sums or bool(rng.random() < 0.7)))
    names, links = [v.name for v in vertices], []
    for i in range(size):
        for j in [*range(i), *([] if symmetric else range(i + 1, size))]:
            rate = float(rng.integers(1, 9)) * 1e9
            if ugly:
                rate *= float(rng.random() + 0.1)
            if rng.random() < 0.6 or j == i - 1:
                links.append((names[i], names[j], rate, 1e-6))
                if symmetric:
                    links.append((names[j], names[i], rate, 1e-6))
    return graph_of(f"random {seed}", vertices, links)


def least_cut(network: LinkGraph) -> Fraction:
    """Bytes/s that all-gather has over the worst of all cuts."""
    n, worst = len(network.participants), Fraction(0)
    for side in product([False, True], repeat=network.num_vertices):
        inside = sum(side[p] for p in network.participants)
        if 0 < inside < n:
            leaving = sum(
                Fraction(float(network.capacity[k]))
                for (u, v), k in network.link.items()
                if side[u] and not side[v]
            )
            if not leaving:
                return Fraction(0)
            worst = max(worst, Fraction(inside) / leaving)
    return n / worst


def held_right(problem: SynchronisationProblem, plan: SynchronisationPlan) -> None:
    """The plan has no violations, and every rank ends with what it is promised."""
    assert plan.violations(problem) == []
    n = len(problem.network.participants)
    vectors = np.random.default_rng(0).normal(size=(n, 3 * n))
    held = plan.perform(problem, vectors)
    if problem.primitive is Primitive.ALL_REDUCE:
        np.testing.assert_allclose(held, np.tile(vectors.sum(0), (n, 1)))
        return
    for i in range(n):
        block = slice(3 * i, 3 * i + 3)
        if problem.primitive is Primitive.ALL_GATHER:
            np.testing.assert_array_equal(held[:, block], np.tile(vectors[i, block], (n, 1)))
        else:
            np.testing.assert_allclose(held[i, block], vectors.sum(0)[block])


@examples(300)
@given(st.integers(0, 2**32), st.sampled_from(Primitive))
def test_a_forest_reaches_the_worst_cut(seed: int, primitive: Primitive) -> None:
    network = random_graph(seed)
    problem = SynchronisationProblem(network, 1e9, primitive)
    found = Forest().synchronise(problem)
    if found.plan is None:
        assert least_cut(network) == 0
        return
    held_right(problem, found.plan)
    seconds = found.plan.busiest_seconds(problem)
    assert seconds <= problem.size / found.figures["bandwidth"] * (1 + 1e-9)
    if not any(network.sums & ~network.participant):
        assert seconds >= found.lower_bound
        assert found.figures["bandwidth"] == pytest.approx(problem.size / found.lower_bound, 1e-8)
