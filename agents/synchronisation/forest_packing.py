"""Trees from every root to all targets that together use no more than the capacities.

Two steps, both on integer multiples of one bandwidth. *Edge splitting* replaces pairs of links
u -> switch -> t by links u -> t until no switch has a link, with every target as well supplied as
before (Mader 1982; Bang-Jensen, Frank and Jackson, SIAM J. Discrete Math. 8, 1995; ForestColl,
section 5.2). *Packing* then grows one tree after the other, by links that leave enough for those to
come (Edmonds 1973; Berczi and Frank 2010; ForestColl, section 5.3). What both promise needs as much
capacity into every switch as out of it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from agents.synchronisation.max_flow import FlowNetwork
from agents.synchronisation.optimum import Supply
from envs.synchronisation.plan import Way

_SPREAD = 600  # pairs of links of a switch, up to which every pair is given its part

Pair = tuple[int, int]
Routes = dict[Pair, list[tuple[Way, int]]]


@dataclass(frozen=True)
class PackedTree:
    """An out-tree from `root` to all targets, as often as `times` units."""

    root: int
    times: int
    ways: tuple[Way, ...]  # from one target to another, each after the one it waits for


def pack(supply: Supply) -> list[PackedTree]:
    """Trees of every root, `supply.weight` units of them, within `supply.link`.

    Raises:
        ValueError: the links do not suffice, or lead more into a switch than out of it.
    """
    if not supply.balanced():
        raise ValueError("a switch has more capacity on one side")
    direct, routes = split_off(supply)
    return [part for tree in grow(direct) for part in _routed(tree, routes)]


def split_off(supply: Supply) -> tuple[Supply, Routes]:
    """The same supply with links between targets only, and over which ways these lead."""
    network, needed = supply.flow_network(), supply.total
    capacity, root = network.capacity, supply.size
    routes: Routes = {pair: [(pair, units)] for pair, units in supply.link.items() if units}
    order = list(supply.targets)
    switches = set(range(supply.size)) - set(supply.targets)
    for w in sorted(switches, key=lambda v: (int((capacity[v] > 0).sum()), v)):
        into = np.flatnonzero(capacity[:, w] > 0).tolist()
        out = np.flatnonzero(capacity[w] > 0).tolist()
        pairs = [
            (into[(i + turn) % len(into)], t)
            for turn in range(1, len(into) + 1)
            for i, t in enumerate(out)
        ]
        pairs.sort(key=lambda pair: pair[0] == pair[1])
        # at first each sender's part of each receiver, so that trees become shallow
        most_of = {
            (u, t): -(-int(capacity[u, w]) * int(capacity[w, t]) // int(capacity[w].sum()))
            for u, t in pairs
            if u != t and len(pairs) <= _SPREAD
        }
        for u, t in [*most_of, *pairs]:
            most = int(min(capacity[u, w], capacity[w, t]))
            most = min(most, most_of.pop((u, t), most))
            if most == 0:
                continue
            units = _room(network, (root, u, w, t), order, needed, most)
            if units <= 0:
                continue
            capacity[u, w] -= units
            capacity[w, t] -= units
            first, second = _drawn(routes[u, w], units), _drawn(routes[w, t], units)
            if u != t:
                network.add(u, t, units)
                joined = routes.setdefault((u, t), [])
                for length, a, b in _overlaid(first, second):
                    joined.append((_without_loops(a + b[1:]), length))
        if capacity[w].any() or capacity[:, w].any():
            raise ValueError(f"vertex {w} cannot be split off")
    links = {pair: sum(x for _, x in way) for pair, way in routes.items()}
    kept = {pair: units for pair, units in links.items() if units and switches.isdisjoint(pair)}
    return replace(supply, link=kept), routes


def _room(
    network: FlowNetwork, at: tuple[int, int, int, int], targets: list[int], needed: int, most: int
) -> int:
    """How much of links u -> w -> t may become a link u -> t, at most `most`.

    So much that every target still receives `needed` from s: a set of vertices that loses a link
    holds s, u and t but not w, or s and w but neither u nor t. A target that leaves nothing comes
    to the front, to be asked first next time.
    """
    s, u, w, t = at
    for place, v in enumerate(targets):
        for sources, sinks in (([s, u, t], [v, w]), ([s, w], [v, u, t])):
            if v not in sources:
                most = min(most, network.flow(sources, sinks, needed + most) - needed)
        if most <= 0:
            targets.insert(0, targets.pop(place))
            break
    return most


@dataclass
class _Growing:
    """A tree to which links are still added."""

    root: int
    times: int
    inside: list[int]  # in the order in which they joined
    links: list[Pair] = field(default_factory=list)
    refused: set[Pair] = field(default_factory=set)  # whoever grows further stays refused
    vertex: int | None = None  # behind the hub, while it is put aside


def grow(supply: Supply) -> list[tuple[int, int, list[Pair]]]:
    """(root, units, links) of trees that span all targets, which no vertex but them is joined to.

    Trees not begun and trees put aside wait behind one vertex; what a new link leaves is the flow
    from it and the link's source to the link's end, less all that they still carry.

    Raises:
        ValueError: the links do not suffice.
    """
    targets, hub = supply.targets, supply.size
    begun = sorted(supply.weight.items(), reverse=True)
    waiting = [_Growing(root, units, [root]) for root, units in begun if units]
    behind = supply.total
    network, spare = supply.flow_network(), list[int]()
    done: list[tuple[int, int, list[Pair]]] = []
    while waiting:
        tree = waiting.pop()
        behind -= tree.times
        if tree.vertex is None:
            network.capacity[hub, tree.root] -= tree.times
        else:
            network.capacity[hub, tree.vertex] = 0
            network.capacity[tree.vertex] = 0
            spare.append(tree.vertex)
        while len(tree.inside) < len(targets):
            pair, units = _next_link(network, tree, hub, behind, targets)
            if units < tree.times:
                vertex = spare.pop() if spare else network.add_vertex()
                rest = replace(
                    tree,
                    times=tree.times - units,
                    inside=list(tree.inside),
                    links=list(tree.links),
                    refused=set(tree.refused),
                    vertex=vertex,
                )
                for a, b in ((hub, vertex), *((vertex, v) for v in rest.inside)):
                    network.add(a, b, rest.times)
                behind += rest.times
                waiting.append(rest)
                tree.times = units
            network.capacity[pair] -= units
            tree.links.append(pair)
            tree.inside.append(pair[1])
        done.append((tree.root, tree.times, tree.links))
    return done


def _next_link(
    network: FlowNetwork, tree: _Growing, hub: int, behind: int, targets: tuple[int, ...]
) -> tuple[Pair, int]:
    """The first link out of a tree that all its units may take; else the one most may take."""
    best, most = (-1, -1), 0
    outside = np.setdiff1d(targets, tree.inside)
    left = network.capacity[np.ix_(np.array(tree.inside), outside)]
    row, column = np.nonzero(left)
    for k in np.lexsort((-left[row, column].astype(np.float64), row)):
        x, y = tree.inside[row[k]], int(outside[column[k]])
        wanted = min(int(left[row[k], column[k]]), tree.times)
        if wanted <= most or (x, y) in tree.refused:
            continue
        units = network.flow([x, hub], [y], behind + wanted) - behind
        if units <= 0:
            tree.refused.add((x, y))
        elif units > most:
            best, most = (x, y), units
            if units == tree.times:
                return best, most
    if most == 0:
        raise ValueError("the links do not suffice")
    return best, most


def _routed(tree: tuple[int, int, list[Pair]], routes: Routes) -> list[PackedTree]:
    """A tree's links over the ways that remain, cut where one of them is used up."""
    root, times, links = tree
    cuts = {0, times}
    taken: dict[Pair, list[tuple[int, Way]]] = defaultdict(list)
    for pair in links:
        at = 0
        for way, units in _drawn(routes[pair], times):
            taken[pair].append((at, way))
            at += units
            cuts.add(at)
    edges = sorted(cuts)
    found = []
    for first, end in pairwise(edges):
        ways = tuple(next(w for at, w in reversed(taken[pair]) if at <= first) for pair in links)
        found.append(PackedTree(root, end - first, ways))
    return found


def _drawn(routes: list[tuple[Way, int]], units: int) -> list[tuple[Way, int]]:
    """So many units taken off the end of a list of ways."""
    found = []
    while units:
        way, there = routes.pop()
        taken = min(there, units)
        if there > taken:
            routes.append((way, there - taken))
        found.append((way, taken))
        units -= taken
    return found


def _overlaid(
    first: list[tuple[Way, int]], second: list[tuple[Way, int]]
) -> list[tuple[int, Way, Way]]:
    """Both lists side by side, cut wherever one of them changes."""
    found = []
    first, second = list(first), list(second)
    while first:
        (a, left), (b, right) = first.pop(), second.pop()
        units = min(left, right)
        found.append((units, a, b))
        if left > units:
            first.append((a, left - units))
        if right > units:
            second.append((b, right - units))
    return found


def _without_loops(way: Way) -> Way:
    """A way without what leads back to a vertex it has passed."""
    found: list[int] = []
    for vertex in way:
        if vertex in found:
            del found[found.index(vertex) + 1 :]
        else:
            found.append(vertex)
    return tuple(found)
