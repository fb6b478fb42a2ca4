"""Graphs, neighbourhoods and caches against slow twins; files of edges."""

from __future__ import annotations

import gzip
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.random import default_rng

from experiments.papers.bgl.pipeline import (
    GeneratedGraph,
    Graph,
    graph_of,
    hits,
    read_graph,
    sample,
)
from tests.refusal import refusal
from tests.strength import examples


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    nodes = draw(st.integers(8, 40))
    ends = default_rng(draw(st.integers(0, 99))).integers(0, nodes, (2, 2 * nodes))
    return graph_of(ends, np.zeros(nodes, dtype=np.int32))


def slow_sample(
    graph: Graph, seeds: list[int], fanouts: list[int], state: int
) -> list[tuple[int, int, int, int]]:
    """(node, parent, hop, sampled edges) with Floyd's samples of the same generator."""
    found = {v: [v, 0, 0] for v in seeds}
    front = seeds
    for hop, fanout in enumerate(fanouts):
        following = []
        for v in front:
            near = graph.neighbour[graph.start[v] : graph.start[v + 1]].tolist()
            picks = list(range(len(near)))
            if len(near) > fanout:
                picks = []
                for top in range(len(near) - fanout, len(near)):
                    state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
                    pick = (state >> 33) % (top + 1)
                    picks.append(top if pick in picks else pick)
            found[v][2] = len(picks)
            for u in (near[pick] for pick in picks):
                if u not in found:
                    found[u] = [v, hop + 1, 0]
                    following.append(u)
        front = following
    return [(v, *own) for v, own in found.items()]  # type: ignore[misc]


@examples(60)
@given(graphs(), st.lists(st.integers(1, 4), min_size=1, max_size=3), st.integers(1, 5))
def test_neighbourhoods_are_those_of_a_slow_twin(
    graph: Graph, fanouts: list[int], batch: int
) -> None:
    order = default_rng(1).permutation(graph.nodes)[:11].astype(np.int32)
    found = sample(graph, order, batch, fanouts, 7)
    states = default_rng(7)
    for number, first in enumerate(range(0, len(order), batch)):
        state = int(states.integers(0, 2**63, dtype=np.uint64))
        own = slice(*found.offset[number : number + 2])
        rows = np.stack((found.node, found.parent, found.hop, found.sampled), axis=1)[own]
        seeds = order[first : first + batch].tolist()
        assert [tuple(row) for row in rows.tolist()] == slow_sample(graph, seeds, fanouts, state)


def slow_hits(policy: str, requested: list[int], capacity: int, degree: list[int]) -> list[bool]:
    if policy == "static":
        best = sorted(range(len(degree)), key=lambda v: (-degree[v], v))[:capacity]
        return [v in best for v in requested]
    held: OrderedDict[int, int] = OrderedDict()
    found = []
    for v in requested:
        found.append(v in held)
        if v in held:
            if policy != "fifo":
                held.move_to_end(v)
            held[v] += policy == "lfu"
        elif capacity and policy != "none":
            if len(held) == capacity:
                del held[min(held, key=held.__getitem__)]
            held[v] = 0
    return found


@examples(200)
@given(
    graphs(),
    st.sampled_from(["none", "static", "fifo", "lru", "lfu"]),
    st.integers(0, 12),
    st.lists(st.integers(0, 7), max_size=80),
)
@example(graph_of(np.zeros((2, 1), dtype=np.int64), np.zeros(8, dtype=np.int32)), "lfu", 1, [])
def test_caches_hit_what_slow_twins_hit(
    graph: Graph, policy: str, capacity: int, requested: list[int]
) -> None:
    found = hits(policy, graph, np.array(requested, dtype=np.int32), capacity)
    assert found.tolist() == slow_hits(policy, requested, capacity, graph.degree.tolist())


def test_generated_graphs_have_the_edges_degrees_and_communities_asked_for() -> None:
    graph = GeneratedGraph(5_000, 50_000, 2.5, 10, 0.1, 10).draw(default_rng(0))
    ends = np.repeat(np.arange(graph.nodes), graph.degree)
    edges = set(zip(ends.tolist(), graph.neighbour.tolist(), strict=True))
    assert len(edges) == len(ends) == 100_000  # no repeats
    assert all(a != b and (b, a) in edges for a, b in edges)
    # edges between classes: those that lead anywhere, 9 of 10 of them to another of ten classes
    between = (graph.label[ends] != graph.label[graph.neighbour]).mean()
    assert between == pytest.approx(0.1 * 0.9, abs=0.02)
    assert graph.degree.max() > 5 * graph.degree.mean()  # a heavy tail
    with refusal("no room for 100 edges"):
        GeneratedGraph(9, 100, 2.5, 1, 1.0, 1).draw(default_rng(0))


def test_a_file_of_edges_is_read(tmp_path: Path) -> None:
    """Both directions, a loop and a comment; nodes are numbered in their order."""
    (tmp_path / "edges.gz").write_bytes(
        gzip.compress(b"# from to\n30 7\n7 30\n7\t900\n7 7 % own\n")
    )
    (tmp_path / "labels").write_text("900 2\n7 0\n30 1\n")
    graph = read_graph(tmp_path / "edges.gz", tmp_path / "labels")
    assert graph.start.tolist() == [0, 2, 3, 4]
    assert graph.neighbour.tolist() == [1, 2, 0, 0]
    assert graph.label.tolist() == [0, 1, 2]


BAD = {
    "": "holds no line of two whole numbers",
    "# 1 2\n": "holds no line",
    "1 2\n3\n": "record line 2: has 1 words, not node node",
    "1 2 3\n": "record line 1: has 3 words",
    "1 2\n\n1 -2\n": "record line 3: field 'node': '-2' is no whole number",
    "1 x\n": "'x' is no whole number",
    "1 1.5\n": "'1.5' is no whole number",
    "1 2147483648\n": "'2147483648' is no whole number below 2^31",
    "1 \u0661\n": "is no whole number",
}


@pytest.mark.parametrize("text", BAD)
def test_a_wrong_file_of_edges_is_told_by_line_and_field(text: str, tmp_path: Path) -> None:
    path = tmp_path / "edges.txt"
    path.write_text(text, encoding="utf-8")
    with refusal() as raised:
        read_graph(path, None)
    assert BAD[text] in str(raised.value)
    assert str(path) in str(raised.value)
