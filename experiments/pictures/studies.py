"""Pictures of one study each: workers of jobs, changing workers, packing, trees of sums."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import networkx as nx
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from agents.hybrid.lyapunov import Played
from envs.arrays import BoolArray, FloatArray, IntArray
from envs.hybrid.batch_time import COSTS
from envs.synchronisation.link_graph import LinkGraph
from envs.synchronisation.plan import SynchronisationPlan, SynchronisationProblem, Tree, Way
from experiments.pictures.style import (
    BLUE,
    LIMIT,
    NOTE,
    ORANGE,
    SMALL,
    TEXT,
    Panel,
    colour,
    draw_curves,
    mixed_with_white,
    picture,
)


def draw_workers(workers: IntArray, done: BoolArray, capacity: float, title: str) -> Figure:
    """(J, T) workers of every job over slots, one above the other; light: (J,) those not done."""
    figure, (axes,) = picture(title, 8.0, 3.6, grid="y")
    base = np.zeros(workers.shape[1])
    for job, row in enumerate(workers):
        shade = mixed_with_white(colour(job), 0.0 if done[job] else 0.6)
        axes.stairs(base + row, baseline=base, fill=True, color=shade)
        base = base + row
    axes.axhline(capacity, **LIMIT)
    axes.set(xlabel="slot", ylabel="workers", xlim=(0, len(base)))
    return figure


def draw_dynamic(played: Mapping[str, Played], title: str) -> Figure:
    """Three panels over the slots, a line per policy: time, rent so far, the queue of rent."""
    rent, slots = COSTS.index("rent"), np.arange(1, 1 + len(next(iter(played.values())).seconds))
    seconds = {name: (slots, own.seconds) for name, own in played.items()}
    spent = {name: (slots, np.cumsum(own.spent[:, rent]) / slots) for name, own in played.items()}
    queue = {name: (slots, own.queue[:, rent]) for name, own in played.items()}
    below = {"yscale": "symlog", "ylim": (0.0, None), "xlabel": "slot"}
    panels = [
        Panel(seconds, {"yscale": "log", "ylabel": "batch time, s"}),
        Panel(spent, {"ylabel": "mean rent so far / budget"}, level=1.0),
        Panel(queue, {"ylabel": "queue of rent, budgets", **below}),
    ]
    return draw_curves(title, panels, 9.0, 7.0, drawstyle="steps-mid")


NEAR_FULL = 80.0  # percent of the GPUs from which the second panel shows the curves


def draw_packing(demand: FloatArray, rules: Mapping[str, FloatArray], title: str) -> Figure:
    """The whole curves on the left, where the rules part on the right.

    Args:
        demand: (P,) percent of the cluster's GPUs asked for so far.
        rules: by rule, (R, P) percent allocated in R runs; drawn are mean, least and most.
        title: of the figure.
    """
    series = {
        f"{rule}  {runs[:, -1].mean():.1f} %": (
            demand, runs.mean(axis=0), runs.min(axis=0), runs.max(axis=0)
        )
        for rule, runs in rules.items()
    }  # fmt: skip
    near = NEAR_FULL if demand[-1] > NEAR_FULL else 0.0
    panels = [
        Panel(
            series,
            {
                "xlim": (low, demand[-1]), "ylim": (low, 100.5),
                "xlabel": "GPUs asked for so far (% of the cluster)",
                "ylabel": "GPUs allocated (% of the cluster)",
            },
        )
        for low in (0, near)
    ]  # fmt: skip
    figure = draw_curves(title, panels, 11, 5.0, 2)
    for axes in figure.axes:
        axes.plot(demand, np.minimum(demand, 100.0), **LIMIT)
    return figure


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
