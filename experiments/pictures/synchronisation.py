"""Trees of a plan on the network: how busy every link is, and the trees with the largest shares."""

from __future__ import annotations

from itertools import pairwise

import networkx as nx
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from envs.synchronisation.link_graph import LinkGraph
from envs.synchronisation.plan import SynchronisationPlan, Way
from envs.synchronisation.problem import SynchronisationProblem
from experiments.pictures.style import (
    BLUE,
    GRID,
    NOTE,
    ORANGE,
    SMALL,
    TEXT,
    mixed_with_white,
    new_figure,
    titled,
)

TREES = 3  # shown
_MANY = 80  # vertices from which on they have no names and springs place them
Places = dict[int, tuple[float, float]]


def draw_trees(problem: SynchronisationProblem, plan: SynchronisationPlan, title: str) -> Figure:
    """The load of links over that of the busiest, then trees: sums in orange, results in blue."""
    network = problem.network
    figure = new_figure(4.0 * (1 + min(TREES, len(plan.trees))), 4.4)
    axes = figure.subplots(1, 1 + min(TREES, len(plan.trees)), squeeze=False)[0]
    places = _places(network)
    load = plan.link_bytes(problem) / network.capacity
    _vertices(axes[0], network, places)
    for (a, b), share in zip(network.link, load / load.max(), strict=True):
        shade = mixed_with_white("black", 0.9 * (1.0 - float(share)))
        _arrow(axes[0], places, a, b, shade, 0.6 + 1.6 * float(share))
    axes[0].set_title("load of links: black is the busiest", fontsize=TEXT)
    roots = dict.fromkeys(sorted(plan.trees, key=lambda tree: -tree.share))
    for axis, tree in zip(axes[1:], roots, strict=False):
        _vertices(axis, network, places, tree.root)
        for ways, shade in ((tree.reduce, ORANGE), (tree.broadcast, BLUE)):
            for a, b in sorted(_steps(ways)):
                _arrow(axis, places, a, b, shade, 1.4)
        name = network.vertices[tree.root]
        axis.set_title(f"{tree.share} of the vector, root {name}", fontsize=TEXT)
    return titled(figure, title)


def _steps(ways: tuple[Way, ...]) -> set[tuple[int, int]]:
    return {pair for way in ways for pair in pairwise(way)}


def _places(network: LinkGraph) -> Places:
    graph = nx.Graph()
    graph.add_nodes_from(range(network.num_vertices))
    graph.add_edges_from(network.link)
    alike = network.num_vertices > _MANY or not nx.is_connected(graph)
    found = nx.spring_layout(graph, seed=0) if alike else nx.kamada_kawai_layout(graph)
    return {vertex: (float(x), float(y)) for vertex, (x, y) in found.items()}


def _vertices(axes: Axes, network: LinkGraph, places: Places, root: int | None = None) -> None:
    rank = {vertex: str(i) for i, vertex in enumerate(network.participants)}
    small = network.num_vertices > _MANY
    for vertex, (x, y) in places.items():
        takes = vertex in rank
        edge = ORANGE if vertex == root else NOTE
        axes.plot(x, y, marker="o" if takes else "s", markersize=11 if takes else 5, color="white",
                  markeredgecolor=edge, markeredgewidth=2.0 if vertex == root else 0.8,
                  zorder=3)  # fmt: skip
        if takes and not small:
            axes.annotate(rank[vertex], (x, y), ha="center", va="center", fontsize=SMALL, zorder=4)
        elif not small:
            short = network.vertices[vertex].split("/")[-1]
            axes.annotate(short, (x, y), (0, 4), textcoords="offset points", ha="center",
                          fontsize=SMALL - 3, color=NOTE, zorder=4)  # fmt: skip
    axes.set_axis_off()
    axes.margins(0.08)


def _arrow(axes: Axes, places: Places, a: int, b: int, shade: str, width: float) -> None:
    arrow = {"arrowstyle": "-|>", "color": shade, "linewidth": width, "mutation_scale": 7.0,
             "shrinkA": 5.0, "shrinkB": 6.0, "connectionstyle": "arc3,rad=0.12"}  # fmt: skip
    axes.annotate("", places[b], places[a], arrowprops=arrow, zorder=2 if shade != GRID else 1)
