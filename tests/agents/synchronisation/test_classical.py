"""Rings against all rings there are, and classical plans against what is known of them."""

from __future__ import annotations

from itertools import pairwise, permutations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from agents.synchronisation.classical import (
    DoubleTree,
    HalvingDoubling,
    Hierarchical,
    ParameterServer,
    Ring,
    cheapest_cycle,
)
from agents.synchronisation.ways import Ways
from envs.synchronisation.link_graph import LinkGraph, VertexSpec, graph_of, links_of_topology
from envs.synchronisation.plan import Primitive
from envs.synchronisation.playing import play
from envs.synchronisation.problem import SynchronisationProblem
from tests.envs.synchronisation.made_networks import networks, star
from tests.envs.topologies import topology_named
from tests.strength import SEEDS, examples


@given(networks(most=4, latencies=False))
@examples(60, daily=6)
def test_no_rings_over_the_same_ways_keep_the_busiest_link_less_busy(network: LinkGraph) -> None:
    """All cycles with all choices of ways, and the best shares of all of them together."""
    problem = SynchronisationProblem(network, 1.0, Primitive.ALL_GATHER)
    ends, tables = network.participants, Ways(network, network.participants).tables
    columns = []
    for tail in permutations(ends[1:]):
        pairs = list(pairwise([ends[0], *tail, ends[0]]))
        for ways in product(*({table[pair] for table in tables} for pair in pairs)):
            load = np.zeros(network.num_links)
            for step in (step for way in ways for step in pairwise(way)):
                load[network.link[step]] += (len(ends) - 1) / len(ends)
            columns.append(load / network.capacity)
    a = np.column_stack([*columns, np.full(network.num_links, -1.0)])
    ones = [[1.0] * len(columns) + [0.0]]
    best = linprog([0.0] * len(columns) + [1.0], a, np.zeros(len(a)), ones, [1.0]).fun
    found = Ring().solve(problem).solution
    assert found is not None
    assert found.busiest_seconds(problem) == pytest.approx(best, rel=1e-3)


@given(st.integers(2, 7), SEEDS)
@examples(100, daily=8)
def test_the_cheapest_cycle_is_the_best_of_all_orders(n: int, seed: int) -> None:
    cost = np.random.default_rng(seed).random((n, n))

    def total(order: list[int]) -> float:
        return float(sum(cost[pair] for pair in pairwise([*order, order[0]])))

    found = cheapest_cycle(cost)
    assert sorted(found) == list(range(n))
    best = min(total([0, *tail]) for tail in permutations(range(1, n)))
    assert total(found) == pytest.approx(best)


def test_rings_of_a_dgx1_use_every_nvlink_fully() -> None:
    """171.43 GB/s of all-gather is the optimum of all trees; of all-reduce, half of it."""
    topology = topology_named("dgx1")
    problem = SynchronisationProblem(links_of_topology(topology, media=["NVLink"]), 1e9)
    plan = Ring().solve(problem).solution
    assert plan is not None
    assert 1.0 / plan.busiest_seconds(problem) == pytest.approx(600.0 / 7.0, rel=1e-4)


@pytest.mark.parametrize("n", [2, 5, 8])
def test_plans_on_a_star_send_the_bytes_that_are_known_of_them(n: int) -> None:
    """2 S pass each link of double trees, 2 (n - 1) / n S of the others, where n is 2^k."""
    problem = SynchronisationProblem(star(n), 1e6)
    even = 2e6 * (n - 1) / n
    fold = n & (n - 1) and 1e6 + even  # whoever stands for two also sends the sum of both on
    for planner, most in (
        (Ring(), even), (DoubleTree(), 2e6), (HalvingDoubling(), fold or even),
        (Hierarchical(), even), (ParameterServer(False), even),
    ):  # fmt: skip
        plan = planner.solve(problem).solution
        assert plan is not None
        assert plan.link_bytes(problem).max() <= most * (1.0 + 1e-9)


def test_dedicated_servers_sum_what_others_bring() -> None:
    network = star(3, servers=1)
    problem = SynchronisationProblem(network, 1e6)
    found = ParameterServer(dedicated=True).solve(problem)
    assert found.solution is not None
    assert found.solution.trees[0].root == 3
    # Cut finely, results leave while sums come in.
    assert play(problem, found.solution).seconds == pytest.approx(3e-3, rel=0.02)
    for primitive, graph in ((Primitive.ALL_GATHER, network), (Primitive.ALL_REDUCE, star(3))):
        refused = ParameterServer(True).solve(SynchronisationProblem(graph, 1e6, primitive))
        assert refused.solution is None
        assert "servers do not" in refused.reason or "no vertex sums" in refused.reason
    ends = [VertexSpec(name, True, True, False) for name in "ab"]
    apart = graph_of("one way", ends, [("a", "b", 1e9, 0.0)])
    found = Ring().solve(SynchronisationProblem(apart, 1e6))
    assert (found.solution, found.reason) == (None, "no way from b to a")
