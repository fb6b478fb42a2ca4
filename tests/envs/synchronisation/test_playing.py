"""`play` against a slow twin in exact arithmetic, closed forms, and what bounds every timing."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.network.fluid import ring_seconds
from envs.synchronisation.link_graph import VertexSpec, graph_of
from envs.synchronisation.plan import SynchronisationPlan, Tree
from envs.synchronisation.playing import play
from envs.synchronisation.problem import SynchronisationProblem
from tests.envs.network.reference_max_min import exact_max_min
from tests.envs.synchronisation.made_networks import networks, plans, ring, star
from tests.refusal import refusal
from tests.strength import examples


def reference_play(
    problem: SynchronisationProblem, plan: SynchronisationPlan, summing: float, overhead: float
) -> Fraction:
    """Seconds of a plan: every message by itself, all looked at again at every instant."""
    network = problem.network
    ways = [
        (t, way, reduces)
        for t, tree in enumerate(plan.trees)
        for group, reduces in ((tree.reduce, True), (tree.broadcast, False))
        for way in group
    ]
    chunks = [max(math.ceil(t.share * problem.size / plan.chunk), 1) for t in plan.trees]
    messages = [(w, c) for w, (t, _, _) in enumerate(ways) for c in range(chunks[t])]
    route = [[network.link[pair] for pair in pairwise(way)] for _, way, _ in ways]
    size = [plan.trees[t].share * Fraction(problem.size) / chunks[t] for t, _, _ in ways]
    left = {m: size[m[0]] for m in messages}
    begins: dict[tuple[int, int], Fraction] = {}  # when draining may begin
    lands: dict[tuple[int, int], Fraction] = {}
    done: dict[tuple[int, int], Fraction] = {}  # added
    free: dict[int, Fraction] = defaultdict(Fraction)
    now = Fraction(0)

    def needed(w: int, c: int) -> list[tuple[int, int]]:
        t, way, reduces = ways[w]
        whole = reduces or way[0] == plan.trees[t].root
        return [
            (x, c)
            for x, (other, from_, into) in enumerate(ways)
            if other == t and from_[-1] == way[0] and into == whole
        ]

    waits = {m: needed(*m) for m in messages}
    while True:
        for w, c in sorted(messages):
            arrived = lands.get((w, c), now + 1) <= now
            if arrived and (w, c) not in done:
                _, way, reduces = ways[w]
                v = way[-1]
                adds = reduces and not (network.forwards[v] and not network.participant[v])
                took = Fraction(summing) * size[w] if adds else Fraction(0)
                free[v] = max(free[v], lands[w, c]) + took if adds else free[v]
                done[w, c] = free[v] if adds else lands[w, c]
        for w, c in messages:
            if (w, c) in begins or (c and left[w, c - 1] > 0):
                continue
            if all(m in done and done[m] <= now for m in waits[w, c]):
                begins[w, c] = now + Fraction(overhead)
        moving = [m for m in messages if m in begins and begins[m] <= now and left[m] > 0]
        rates = exact_max_min(
            network.capacity.tolist(), [route[w] for w, _ in moving],
            [plan.trees[ways[w][0]].share for w, _ in moving],
        )  # fmt: skip
        steps = [left[m] / rate for m, rate in zip(moving, rates, strict=True)]
        later = (*begins.values(), *lands.values(), *done.values())
        steps += [at - now for at in later if at > now]
        if not steps:
            assert len(done) == len(messages)
            return max(done.values())
        step = min(steps)
        now += step
        for m, rate in zip(moving, rates, strict=True):
            left[m] -= rate * step
            if left[m] == 0:
                lands[m] = now + sum(Fraction(network.latency[k]) for k in route[m[0]])


@given(st.data(), st.sampled_from([0.0, 0.25]), st.sampled_from([0.0, 0.5]))
@examples(200, daily=12)
def test_the_kernel_agrees_with_exact_arithmetic(
    data: st.DataObject, summing: float, overhead: float
) -> None:
    problem = SynchronisationProblem(data.draw(networks(most=4)), 12.0)
    plan = data.draw(plans(problem))
    assert plan.violations(problem) == []
    found = play(problem, plan, summing, overhead)
    assert found.seconds == pytest.approx(
        float(reference_play(problem, plan, summing, overhead)), rel=1e-9
    )
    assert np.all(found.start <= found.drained)
    assert np.all(found.drained <= found.arrived)


@given(st.data())
@examples(200, daily=12)
def test_no_plan_beats_its_busiest_link_nor_waits_for_more_than_it_plans(
    data: st.DataObject,
) -> None:
    problem = SynchronisationProblem(data.draw(networks(most=6)), 30.0)
    plan = data.draw(plans(problem))
    found, busiest = play(problem, plan).seconds, plan.busiest_seconds(problem)
    assert found >= busiest * (1 - 1e-9)
    slowest = 0.0  # every connection drains its tree's share in `busiest` seconds at most
    for tree in plan.trees:
        chunks = max(math.ceil(tree.share * problem.size / plan.chunk), 1)
        ways = (*tree.reduce, *tree.broadcast)
        waiting = sum(problem.network.latency[problem.network.link[p]]
                      for way in ways for p in pairwise(way))  # fmt: skip
        slowest = max(slowest, (len(ways) + chunks - 1) * busiest / chunks + waiting)
    assert found <= slowest * (1 + 1e-9)


def binomial(n: int) -> SynchronisationPlan:
    """Halving and doubling: block b is added at b along the lowest bits that differ."""
    trees = []
    for b in range(n):
        edges = [(v, v ^ ((v ^ b) & -(v ^ b))) for v in range(n) if v != b]
        reduce = tuple((v, n, u) for v, u in edges)
        trees.append(Tree(b, Fraction(1, n), reduce, tuple((u, n, v) for v, u in edges)))
    return SynchronisationPlan("halving and doubling", tuple(trees))


def shards(n: int) -> SynchronisationPlan:
    """A parameter server on every participant."""
    trees = []
    for b in range(n):
        others = [v for v in range(n) if v != b]
        push, pull = tuple((v, n, b) for v in others), tuple((b, n, v) for v in others)
        trees.append(Tree(b, Fraction(1, n), push, pull))
    return SynchronisationPlan("shards", tuple(trees))


@pytest.mark.parametrize(
    ("plan", "closed"),
    [
        (ring, lambda n, s: ring_seconds(n, s, 2e-6, 1e9)),
        (binomial, lambda n, s: 2 * ((n - 1).bit_length() * 2e-6 + (n - 1) / n * s / 1e9)),
        (shards, lambda n, s: 2 * (2e-6 + (n - 1) / n * s / 1e9)),
    ],
)
@pytest.mark.parametrize("n", [2, 8, 16])
def test_plans_on_a_star_take_the_time_of_the_literature(
    plan: Callable[[int], SynchronisationPlan], closed: Callable[[int, float], float], n: int
) -> None:
    """Rings: Patarasuk and Yuan, 2009. Halving and doubling: Thakur, Rabenseifner, Gropp, 2005."""
    problem = SynchronisationProblem(star(n), 3e6)
    assert play(problem, plan(n)).seconds == pytest.approx(closed(n, 3e6), rel=1e-12)


def test_a_chain_in_chunks_is_a_pipeline() -> None:
    """The sum of m chunks through k links takes k + m - 1 chunk times; overheads add to each."""
    names = "abcd"
    vertices = [VertexSpec(x, True, True, False) for x in names]
    links = [(a, b, 1e9, 1e-6) for x, y in pairwise(names) for a, b in ((x, y), (y, x))]
    problem = SynchronisationProblem(graph_of("chain", vertices, links), 8e6)
    plan = SynchronisationPlan(
        "chain", (Tree(3, Fraction(1), ((0, 1), (1, 2), (2, 3)), ((3, 2), (2, 1), (1, 0))),), 1e6
    )
    for overhead in (0.0, 2e-4):
        found = play(problem, plan, overhead=overhead)
        assert found.seconds == pytest.approx((6 + 8 - 1) * (1e-3 + overhead) + 6e-6)
    with refusal("48,000,000 messages"):
        play(problem, SynchronisationPlan("x", plan.trees, 1.0))


def test_a_ring_with_memory_traffic_takes_what_astra_sim_prints() -> None:
    """8 ranks, 100 MiB, 50 * 2^30 bytes/s, 500 ns, three passes of each block added: 3,597,007 ns.

    The ns that differ are its roundings.
    """
    names = [f"npu{i}" for i in range(8)]
    vertices = [VertexSpec(name, True, True, False) for name in names]
    links = [(a, b, 50.0 * 2**30, 500e-9) for a, b in pairwise([*names, names[0]])]
    problem = SynchronisationProblem(graph_of("ring", vertices, links), 100.0 * 2**20)
    trees = []
    for tree in ring(8).trees:
        reduce, broadcast = (
            [(w[0], w[-1]) for w in ways] for ways in (tree.reduce, tree.broadcast)
        )
        trees.append(Tree(tree.root, tree.share, tuple(reduce), tuple(broadcast)))
    found = play(problem, SynchronisationPlan("ring", tuple(trees)), summing=3 / 1.6e12)
    assert found.seconds * 1e9 == pytest.approx(3_597_007, rel=1e-5)
