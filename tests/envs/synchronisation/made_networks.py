"""Random networks and plans for the tests of synchronisation."""

from __future__ import annotations

import random
from collections import deque
from fractions import Fraction
from itertools import pairwise

from hypothesis import strategies as st

from envs.synchronisation.link_graph import LinkGraph, VertexSpec, graph_of
from envs.synchronisation.plan import SynchronisationPlan, Tree, Way
from envs.synchronisation.problem import SynchronisationProblem
from tests.strength import SEEDS


def star(n: int, servers: int = 0, rate: float = 1e9, aggregation: bool = False) -> LinkGraph:
    """n participants, then servers, around one switch, `rate` bytes/s and 1 us each way."""
    names = [f"w{i}" for i in range(n)] + [f"server{i}" for i in range(servers)]
    vertices = [VertexSpec(name, name[0] == "w", True, False) for name in names]
    vertices.append(VertexSpec("switch", False, aggregation, True))
    links = [(a, b, rate, 1e-6) for x in names for a, b in ((x, "switch"), ("switch", x))]
    return graph_of("star", vertices, links)


def ring(n: int) -> SynchronisationPlan:
    """Chains through the switch of `star`."""
    trees = []
    for i in range(n):
        order = [(i + k) % n for k in range(1, n + 1)]  # ends in i
        trees.append(
            Tree(
                i,
                Fraction(1, n),
                tuple((a, n, b) for a, b in pairwise(order)),
                tuple((a, n, b) for a, b in pairwise([i, *order[:-1]])),
            )
        )
    return SynchronisationPlan("ring", tuple(trees))


@st.composite
def networks(
    draw: st.DrawFn, most: int = 5, symmetric: bool = False, latencies: bool = True
) -> LinkGraph:
    """Strongly connected: participants, some of which relay, switches, and links of all speeds."""
    rng = random.Random(draw(SEEDS))
    n, switches = draw(st.integers(2, most)), draw(st.integers(0, 2))
    names = [f"w{i}" for i in range(n)] + [f"s{i}" for i in range(switches)]
    relays = rng.random() < 0.5
    links: dict[tuple[str, str], tuple[float, float]] = {}

    def join(a: str, b: str) -> None:
        facts = [(float(rng.randint(1, 8)), rng.randint(0, 4) / 4 * latencies) for _ in range(2)]
        links.setdefault((a, b), facts[0])
        links.setdefault((b, a), facts[0] if symmetric else facts[1])

    hub = rng.choice(names[n:] or names)  # a star of all the others keeps every pair reachable
    relays |= not switches
    for name in names:
        if name != hub:
            join(name, hub)
    for _ in range(rng.randint(0, 2 * n)):
        a, b = rng.sample(names, 2)
        join(a, b)
    vertices = [VertexSpec(x, x[0] == "w", x[0] == "w", x[0] == "s" or relays) for x in names]
    return graph_of("random", vertices, [(a, b, *facts) for (a, b), facts in links.items()])


@st.composite
def plans(draw: st.DrawFn, problem: SynchronisationProblem) -> SynchronisationPlan:
    """Random trees with random shares; ways of fewest links."""
    rng = random.Random(draw(SEEDS))
    network = problem.network
    parts = [rng.randint(1, 4) for _ in range(draw(st.integers(1, 3)))]
    trees = []
    for part in parts:
        members = list(network.participants)
        rng.shuffle(members)
        parents = [(v, rng.choice(members[:i])) for i, v in enumerate(members) if i]
        others = [(v, rng.choice(members[:i])) for i, v in enumerate(members) if i]
        reduce = tuple(fewest_links(network, v, u) for v, u in parents)
        broadcast = tuple(fewest_links(network, u, v) for v, u in others)
        trees.append(Tree(members[0], Fraction(part, sum(parts)), reduce, broadcast))
    chunk = draw(st.sampled_from([problem.size / 7, problem.size / 2, float("inf")]))
    return SynchronisationPlan("random", tuple(trees), chunk)


def fewest_links(network: LinkGraph, source: int, destination: int) -> Way:
    before, queue = {source: source}, deque([source])
    while queue:
        at = queue.popleft()
        for a, b in network.link:
            if a == at and b not in before and (a == source or network.forwards[a]):
                before[b] = a
                queue.append(b)
    way = [destination]
    while way[-1] != source:
        way.append(before[way[-1]])
    return tuple(reversed(way))
