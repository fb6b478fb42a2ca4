"""Packed forests against all cuts, against published optima, and against what links can carry."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from agents.synchronisation.forest import Forest, best_bandwidth
from agents.synchronisation.optimum import (
    FlowNetwork,
    capacities,
    even_supply,
    optimum,
    reverse,
    supply_of_few,
)
from envs.synchronisation.link_graph import LinkGraph, VertexSpec, graph_of, residual
from envs.synchronisation.plan import Primitive, SynchronisationPlan
from envs.synchronisation.playing import play
from envs.synchronisation.problem import SynchronisationProblem
from envs.synchronisation.published import Rate, switched
from experiments.config.config_source import SHIPPED_CONFIGS
from experiments.config.targets import build
from tests.refusal import refusal
from tests.strength import SEEDS, examples


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


@examples(300, 10)
@given(SEEDS, st.sampled_from(Primitive))
def test_a_forest_reaches_the_worst_cut(seed: int, primitive: Primitive) -> None:
    network = random_graph(seed)
    problem = SynchronisationProblem(network, 1e9, primitive)
    found = Forest(exact=True).solve(problem)
    if found.solution is None:
        assert least_cut(network) == 0
        return
    held_right(problem, found.solution)
    seconds = found.solution.busiest_seconds(problem)
    assert seconds <= problem.size / found.figures["bandwidth"] * (1 + 1e-9)
    if not any(network.sums & ~network.participant):
        assert seconds >= found.bound
        assert found.figures["bandwidth"] == pytest.approx(problem.size / found.bound, 1e-8)


@examples(200, 8)
@given(SEEDS)
def test_the_optimum_is_the_worst_of_all_cuts(seed: int) -> None:
    network = random_graph(seed, 7)
    assert optimum(SynchronisationProblem(network, 1.0, Primitive.ALL_GATHER)) == least_cut(network)
    scatter = optimum(SynchronisationProblem(network, 1.0, Primitive.REDUCE_SCATTER))
    assert scatter == least_cut(reverse(network))
    both = optimum(SynchronisationProblem(network, 1.0))
    assert both == (1 / (1 / scatter + 1 / least_cut(network)) if scatter else 0)


@examples(60)
@given(SEEDS)
def test_no_all_reduce_over_trees_passes_more(seed: int) -> None:
    """The linear program with the rows of all cuts at once, without switches."""
    network = random_graph(seed, 5)
    network = replace(network, participant=np.ones_like(network.sums), sums=network.sums | True)
    n, links = network.num_vertices, network.num_links
    rows = []
    for side in product([False, True], repeat=n):
        inside = np.array(side)
        if inside.any() and not inside.all():
            out = inside[network.source] & ~inside[network.destination]
            into = ~inside[network.source] & inside[network.destination]
            rows.append([*(-1.0 * into), *np.zeros(links), *(1.0 * inside)])
            rows.append([*np.zeros(links), *(-1.0 * out), *(1.0 * inside)])
    shared = np.hstack([np.eye(links), np.eye(links), np.zeros((links, n))])
    best = linprog(
        [*np.zeros(2 * links), *-np.ones(n)],
        np.vstack([np.array(rows), shared]),
        [*np.zeros(len(rows)), *(network.capacity / 1e9)],
    )
    assert best_bandwidth(network, Primitive.ALL_REDUCE) == pytest.approx(-best.fun * 1e9, 1e-7)


PUBLISHED = {  # GB/s of all-gather, trees per root, and the same with one tree: the table
    "dgx1_v100": (1200 / 7, 6, 400 / 3),
    "dgx1_p100": (640 / 7, 4, 80.0),
    "ndv2_2": (25.0, 1, 25.0),
    "dgx2_2": (4000 / 31, 10, 4000 / 31),
    "dgx_a100_1": (2400 / 7, 1, 2400 / 7),
    "dgx_a100_2": (1040 / 3, 13, 2400 / 7),
}


def published(name: str) -> LinkGraph:
    network = build(SHIPPED_CONFIGS.node(f"topology/published/{name}"))
    assert isinstance(network, LinkGraph)
    return network


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_optima(name: str) -> None:
    network = published(name)
    rate, trees, _ = PUBLISHED[name]
    supply = even_supply(network)
    assert supply is not None
    assert supply.weight[0] == trees
    gather = SynchronisationProblem(network, 1e9, Primitive.ALL_GATHER)
    assert float(optimum(gather)) == pytest.approx(rate * 1e9, rel=1e-12)
    assert float(optimum(SynchronisationProblem(network, 1e9))) == pytest.approx(rate * 5e8)


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=pytest.mark.proof if "_2" in x else ()) for x in PUBLISHED]
)
def test_forests_reach_published_optima(name: str) -> None:
    network = published(name)
    rate, _, with_one = PUBLISHED[name]
    gather = SynchronisationProblem(network, 1e9, Primitive.ALL_GATHER)
    for forest, expected in ((Forest(exact=True), rate), (Forest(k=1), with_one)):
        plan = forest.solve(gather).solution
        assert plan is not None
        held_right(gather, plan)
        assert plan.busiest_seconds(gather) == pytest.approx(1 / expected, rel=1e-9)
        assert forest.k is None or len({t.root for t in plan.trees}) == len(network.participants)


@examples(40, 4)
@given(SEEDS, st.integers(1, 3))
def test_no_equal_trees_pass_more_than_the_best_few(seed: int, most: int) -> None:
    """Against every bandwidth of a tree at which a link carries another number of them."""
    network = random_graph(seed, 5)
    found = supply_of_few(network, most)
    if found is None:
        assert least_cut(network) == 0
        return
    links = capacities(network)
    best = Fraction(0)
    for trees, (_, capacity), j in product(range(1, most + 1), links.items(), range(1, 40)):
        few = replace(
            found,
            link={pair: int(c * j / capacity) for pair, c in links.items()},
            weight=dict.fromkeys(network.participants, trees),
        )
        if trees * capacity / j > best and few.suffices():
            best = trees * capacity / j
    assert found.suffices()
    assert found.weight[0] <= most
    assert found.rate >= best * len(network.participants)


@pytest.mark.proof
def test_the_optimum_of_64_gpus_takes_one_or_two_flows_for_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = switched("8 boxes", 8, 8, Rate(3e11, 1e-6), Rate(2.5e10, 1e-6))
    problem = SynchronisationProblem(network, 1e9, Primitive.ALL_GATHER)
    flows = []
    cut = FlowNetwork.cut
    monkeypatch.setattr(FlowNetwork, "cut", lambda *of: flows.append(of) or cut(*of))
    assert float(optimum(problem)) == pytest.approx(1600e9 / 7)
    assert len(flows) < 2 * 64
    found = Forest(exact=True).solve(problem)
    assert found.solution is not None
    held_right(problem, found.solution)


def test_a_forest_packs_what_other_jobs_leave() -> None:
    network = switched("a box", 1, 4, Rate(4e9, 1e-6))
    problem = SynchronisationProblem(network, 1e9, Primitive.ALL_GATHER)
    other = Forest(exact=True).solve(replace(problem, size=5e8)).solution
    assert other is not None
    left = residual(network, other.link_bytes(problem) / 1.0)  # 1e9 bytes a second of another job
    beside = replace(problem, network=left)
    plan = Forest(exact=True).solve(beside).solution
    assert plan is not None
    held_right(beside, plan)
    assert plan.busiest_seconds(beside) == pytest.approx(1e9 / (4 / 3 * 4e9 - 1e9))
    with refusal("others take"):
        residual(network, np.full(network.num_links, 5e9))


@pytest.mark.parametrize("latency", [1e-6, 1e-5])
def test_chunks_are_of_the_best_size(latency: float) -> None:
    """Played with chunks half and twice as large, where a chunk costs its sender the latency."""
    names = [f"n{i}" for i in range(5)]
    links = [(a, b, 1e9, 0.0) for pair in pairwise(names) for a, b in (pair, pair[::-1])]
    network = graph_of("line", [VertexSpec(x, True, True, True) for x in names], links)
    problem = SynchronisationProblem(network, 1e7)
    plan = Forest(latency=latency).solve(problem).solution
    assert plan is not None
    taken = [
        play(problem, replace(plan, chunk=plan.chunk * factor), overhead=latency).seconds
        for factor in (0.5, 1.0, 2.0)
    ]
    assert taken[1] < min(taken[0], taken[2])
