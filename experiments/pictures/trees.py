"""The picture of a synchronisation plan: trees of sums."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import networkx as nx
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from envs.synchronisation.link_graph import LinkGraph
from envs.synchronisation.plan import SynchronisationPlan, Tree, Way
from envs.synchronisation.problem import SynchronisationProblem
from experiments.pictures.style import (
    BLUE,
    NOTE,
    ORANGE,
    SMALL,
    TEXT,
    mixed_with_white,
    picture,
)

TREES = 3  # shown
_MANY = 80  # vertices from which on they have no names and springs place them


def draw_trees(problem: SynchronisationProblem, plan: SynchronisationPlan, title: str) -> Figure:
    """The load of links over that of the busiest, then trees: sums in orange, results in blue."""
    network, columns = problem.network, 1 + min(TREES, len(plan.trees))
    figure, (first, *others) = picture(title, 4.0 * columns, 4.4, 1, columns)
    graph = nx.DiGraph()
    graph.add_nodes_from(range(network.num_vertices))
    graph.add_edges_from(network.link)
    if len(graph) > _MANY or not nx.is_weakly_connected(graph):
        places = nx.spring_layout(graph.to_undirected(), seed=0)
    else:
        places = nx.kamada_kawai_layout(graph.to_undirected())
    load = plan.link_bytes(problem) / network.capacity
    shares = load / load.max()
    shades = [mixed_with_white("black", 0.9 * (1.0 - share)) for share in shares.tolist()]
    _draw(first, network, graph, places)
    _arrows(first, graph, places, network.link, shades, 0.6 + 1.6 * shares, 0.12)
    first.set_title("load of links: black is the busiest", fontsize=TEXT)
    for axes, tree in zip(others, _chosen(plan), strict=False):
        _draw(axes, network, graph, places, tree.root)
        _arrows(axes, graph, places, _steps(tree.reduce), ORANGE, 1.4, 0.12)
        _arrows(axes, graph, places, _steps(tree.broadcast), BLUE, 1.4, 0.24)
        root = network.vertices[tree.root]
        axes.set_title(f"{tree.share} of the vector, root {root}", fontsize=TEXT)
    figure.supxlabel("orange: sums, blue: results", fontsize=TEXT, color=NOTE)
    return figure


def _chosen(plan: SynchronisationPlan) -> list[Tree]:
    """Trees that show the most links not yet shown, the largest share first."""
    steps = {tree: _steps((*tree.reduce, *tree.broadcast)) for tree in plan.trees}
    shown, seen = list[Tree](), set[tuple[int, int]]()
    while steps and len(shown) < TREES:
        best = max(steps, key=lambda tree: (len(steps[tree] - seen), tree.share))
        shown.append(best)
        seen |= steps.pop(best)
    return shown


def _steps(ways: tuple[Way, ...]) -> set[tuple[int, int]]:
    return {pair for way in ways for pair in pairwise(way)}


def _draw(
    axes: Axes, network: LinkGraph, graph: nx.DiGraph, places: Any, root: int | None = None
) -> None:
    """Participants as numbered circles, the root's in orange, and what else there is as squares."""
    rank = {vertex: str(i) for i, vertex in enumerate(network.participants)}
    between = {v: network.vertices[v].split("/")[-1] for v in graph if v not in rank}
    for names, shape, size in ((rank, "o", 120), (between, "s", 25)):
        nx.draw_networkx_nodes(
            graph, places, [*names], size, "white", shape, ax=axes,
            edgecolors=[ORANGE if vertex == root else NOTE for vertex in names],
        )  # fmt: skip
    if len(graph) <= _MANY:
        nx.draw_networkx_labels(graph, places, rank, SMALL, ax=axes)
        above = {vertex: (x, y + 0.06) for vertex, (x, y) in places.items()}
        nx.draw_networkx_labels(graph, above, between, SMALL - 3, NOTE, ax=axes)
    axes.set_axis_off()


def _arrows(
    axes: Axes, graph: nx.DiGraph, places: Any, links: Any, shade: Any, width: Any, bend: float
) -> None:
    nx.draw_networkx_edges(
        graph, places, list(links), width, shade, arrowstyle="-|>", arrowsize=7, ax=axes,
        node_size=120, connectionstyle=f"arc3,rad={bend}",
    )  # fmt: skip
