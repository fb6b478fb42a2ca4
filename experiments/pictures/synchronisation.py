"""Trees of a plan on the network: how busy every link is, and the trees with the largest shares."""

from __future__ import annotations

from itertools import pairwise

import networkx as nx
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from envs.synchronisation.link_graph import LinkGraph
from envs.synchronisation.plan import SynchronisationPlan, SynchronisationProblem, Tree, Way
from experiments.pictures.style import (
    BLUE,
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
    for axis, tree in zip(axes[1:], _chosen(plan), strict=False):
        _vertices(axis, network, places, tree.root)
        for ways, shade, bend in ((tree.reduce, ORANGE, 0.12), (tree.broadcast, BLUE, 0.24)):
            for a, b in sorted(_steps(ways)):
                _arrow(axis, places, a, b, shade, 1.4, bend)
        name = network.vertices[tree.root]
        axis.set_title(f"{tree.share} of the vector, root {name}", fontsize=TEXT)
    figure.supxlabel("orange: sums, blue: results", fontsize=TEXT, color=NOTE)
    return titled(figure, title)


def _chosen(plan: SynchronisationPlan) -> list[Tree]:
    """Trees that show the most links not yet shown, the largest share first."""
    shown, seen = list[Tree](), set[tuple[int, int]]()
    steps = [(tree, _steps((*tree.reduce, *tree.broadcast))) for tree in plan.trees]
    while len(shown) < min(TREES, len(steps)):
        left = [pair for pair in steps if pair[0] not in shown] or steps
        tree, links = max(left, key=lambda pair: (len(pair[1] - seen), pair[0].share))
        shown.append(tree)
        seen |= links
    return shown


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


def _arrow(
    axes: Axes, places: Places, a: int, b: int, shade: str, width: float, bend: float = 0.12
) -> None:
    arrow = {"arrowstyle": "-|>", "color": shade, "linewidth": width, "mutation_scale": 7.0,
             "shrinkA": 5.0, "shrinkB": 6.0, "connectionstyle": f"arc3,rad={bend}"}  # fmt: skip
    axes.annotate("", places[b], places[a], arrowprops=arrow)
