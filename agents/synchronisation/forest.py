"""Packed forests: trees that together pass what the tightest cut of the network allows.

Trees from every root to all targets that together use no more than the capacities.

Two steps, both on integer multiples of one bandwidth. *Edge splitting* replaces pairs of links
u -> switch -> t by links u -> t until no switch has a link, with every target as well supplied as
before (Mader 1982; Bang-Jensen, Frank and Jackson, SIAM J. Discrete Math. 8, 1995; ForestColl,
section 5.2). *Packing* then grows one tree after the other, by links that leave enough for those to
come (Edmonds 1973; Berczi and Frank 2010; ForestColl, section 5.3). What both promise needs as much
capacity into every switch as out of it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from typing import TypeVar

import numpy as np

from agents.solver import Budget, Result
from agents.synchronisation.division import divide
from agents.synchronisation.optimum import (
    FlowNetwork,
    Supply,
    even_supply,
    optimum,
    reverse,
    supply_of_few,
)
from agents.synchronisation.ways import Pair, Synchroniser
from envs.bounds import Count, NonNegative, bounded
from envs.synchronisation.link_graph import LinkGraph
from envs.synchronisation.plan import Primitive, SynchronisationPlan, Tree, Way, in_order
from envs.synchronisation.problem import SynchronisationProblem

_SPREAD = 600  # pairs of links of a switch, up to which every pair is given its part

Routes = dict[Pair, list[tuple[Way, int]]]
Item = TypeVar("Item")
Amount = TypeVar("Amount", int, Fraction)


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
                for length, (a, b) in _overlaid(first, second):
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
    taken = [_drawn(routes[pair], times)[::-1] for pair in links]
    return [PackedTree(root, units, ways) for units, ways in _overlaid(*taken)]


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


def _overlaid(*sides: list[tuple[Item, Amount]]) -> Iterator[tuple[Amount, tuple[Item, ...]]]:
    """Lists side by side from their ends on, cut wherever one of them changes."""
    left = [list(side) for side in sides]
    while left[0]:
        units = min(side[-1][1] for side in left)
        yield units, tuple(side[-1][0] for side in left)
        for side in left:
            item, amount = side.pop()
            if amount > units:
                side.append((item, amount - units))


def _without_loops(way: Way) -> Way:
    """A way without what leads back to a vertex it has passed."""
    found: list[int] = []
    for vertex in way:
        if vertex in found:
            del found[found.index(vertex) + 1 :]
        else:
            found.append(vertex)
    return tuple(found)


_MESSAGES = 60_000
_FEW = (1, 2)  # trees per root

Side = tuple[tuple[Way, ...], Fraction]  # the ways of a tree, and its share of the vector


@bounded
@dataclass(frozen=True, eq=False)
class Forest(Synchroniser):
    """Trees for the network at hand, from exact cuts, without a search.

    Vertices that add without taking part are in all trees, or only pass on, whichever is faster. A
    tree that comes through one of them twice anyway passes it once.

    Args:
        k: trees per root at most, all equal; None: as many as the optimum needs.
        overlap: all-reduce sums and sends results over links divided by a linear program, and a
            root forms as much as suits the network. Otherwise, and with `k`, every participant
            forms one n-th, and the trees are those of reduce-scatter and of all-gather.
        exact: only forests with the highest bandwidth; otherwise also those with few trees per
            root, of which the one is taken that takes least time in its chunks.
        latency: seconds that every chunk costs its sender, from which its size follows.

    Guarantees:
        With `exact` and without `k`, the busiest link needs `size` over `optimum` for all-gather
        and reduce-scatter where as much leads into every switch as out of it, and elsewhere what
        the linear program proves to be least. With `overlap` too, no all-reduce over trees without
        sums inside the network has a less busy link.

    Source:
        Zhang, Wu and Li, INFOCOM 2021; Zhao et al., ForestColl, NSDI 2025.
    """

    k: Count | None = None
    overlap: bool = True
    exact: bool = False
    latency: NonNegative = 0.0

    def _solve(
        self, problem: SynchronisationProblem, budget: Budget
    ) -> Result[SynchronisationPlan]:
        network, primitive = problem.network, problem.primitive
        adding = tuple(np.flatnonzero(network.sums & ~network.participant).tolist())
        spanned = [network.participants]
        if adding:
            spanned.append(tuple(sorted((*network.participants, *adding))))
        found = [
            (rate, [_once(network, tree) for tree in trees])
            for targets in spanned
            for rate, trees in self._forests(problem, targets)
        ]
        if not found:
            return Result(None, "infeasible", reason="the network does not join them all")
        highest = max(rate for rate, _ in found) * (1 - Fraction(1, 10**9) if self.exact else 0)
        paced = [(*self._pace(problem, trees), rate, trees) for rate, trees in found
                 if rate >= highest]  # fmt: skip
        predicted, chunk, bandwidth, trees = min(paced, key=lambda one: one[0])
        plan = SynchronisationPlan("forest", tuple(trees), chunk)
        roots = Counter(tree.root for tree in trees)
        bound = best_bandwidth(network, primitive)
        figures = {
            "bandwidth": float(bandwidth),
            "predicted_s": predicted,
            "optimum": float(optimum(problem)),
            "best": bound,
            "trees": float(len(trees)),
            "trees_per_root": float(max(roots.values())),
        }
        return Result(
            plan,
            "optimal" if self.exact and self.k is None else "feasible",
            bound=problem.size / bound * (1.0 - 1e-9),  # the linear program's rounding
            figures=figures,
        )

    def _forests(
        self, problem: SynchronisationProblem, targets: tuple[int, ...]
    ) -> Iterator[tuple[Fraction, list[Tree]]]:
        """Bytes/s of the whole vector, and trees with them; none where a target is out of reach."""
        if self.k is None:
            if problem.primitive is Primitive.ALL_REDUCE and self.overlap:
                division = divide(problem.network, True, True, targets)
                if division is not None and division.reduce and division.broadcast:
                    into, out = pack(division.reduce), pack(division.broadcast)
                    yield division.broadcast.rate, _joined(_sides(into, True), _sides(out, False))
            yield from self._even(problem, targets, None)
        for k in (self.k,) if self.k else () if self.exact else _FEW:
            yield from self._even(problem, targets, k)

    def _even(
        self, problem: SynchronisationProblem, targets: tuple[int, ...], k: int | None
    ) -> Iterator[tuple[Fraction, list[Tree]]]:
        """The forest whose roots own equal parts, with at most k trees of each."""
        network, primitive = problem.network, problem.primitive
        every = primitive is Primitive.ALL_REDUCE
        twice = every and _symmetric(network)  # the same trees both ways
        used = [True] * (primitive.reduces and not twice) + [False] * primitive.broadcasts
        supplies = {
            towards: _supply(reverse(network) if towards else network, targets, k)
            for towards in used
        }
        if not all(supplies.values()):
            return
        rate = 1 / sum(((1 + twice) / x.rate for x in supplies.values() if x), Fraction(0))
        sides = {towards: _sides(pack(x), towards) for towards, x in supplies.items() if x}
        for towards in {True, False} - sides.keys():
            sides[towards] = {
                root: [
                    (tuple(way[::-1] for way in ways) if twice else (), share)
                    for ways, share in trees
                ]
                for root, trees in sides[not towards].items()
            }
        yield rate, _joined(sides[True], sides[False])

    def _pace(self, problem: SynchronisationProblem, trees: list[Tree]) -> tuple[float, float]:
        """Seconds in chunks of the best size, and the size.

        A tree with S bytes at x bytes/s and `depth` ways in a row passes chunks of c bytes in
        `S / c + depth` turns of `latency + c / x` seconds: least for sqrt(latency S x / depth).
        Every tree has the same S / x here. No more than 60,000 messages are sent.
        """
        seconds = SynchronisationPlan("", tuple(trees)).busiest_seconds(problem)
        carried = np.array([float(tree.share) for tree in trees]) * problem.size
        depth = np.array([tree.longest(lambda way: 1.0) for tree in trees])
        ways = np.array([len(tree.reduce) + len(tree.broadcast) for tree in trees])
        best = float((carried * np.sqrt(self.latency / seconds / depth)).min())
        chunk = max(best, float(carried @ ways) / _MESSAGES)
        pieces = np.ceil(carried / chunk)
        paced = (pieces + depth - 1) * (self.latency + seconds / pieces)
        return float(paced.max()), chunk


def _supply(network: LinkGraph, targets: tuple[int, ...], k: int | None) -> Supply | None:
    """What all-gather has on this network, with at most k trees per root."""
    supply = even_supply(network, targets) if k is None else supply_of_few(network, k, targets)
    if supply is None or supply.balanced():
        return supply
    if k is not None:  # rounded down, switches lose more on one side
        return None
    division = divide(network, False, True, targets, even=True)
    return division.broadcast if division else None


def best_bandwidth(network: LinkGraph, primitive: Primitive) -> float:
    """Bytes/s that no trees exceed where nothing is added inside the network, but for rounding."""
    if primitive is Primitive.ALL_REDUCE:
        division = divide(network, True, True)
        return division.bound if division else 0.0
    links = reverse(network) if primitive.reduces else network
    supply = even_supply(links)
    if supply is None or supply.balanced():
        return float(supply.rate) if supply else 0.0
    division = divide(links, False, True, even=True)
    return division.bound if division else 0.0


def _sides(forest: Iterable[PackedTree], towards: bool) -> dict[int, list[Side]]:
    """The trees of each root, with shares of the vector; in-trees come on reversed links."""
    found: dict[int, list[Side]] = defaultdict(list)
    trees = list(forest)
    total = sum(tree.times for tree in trees)
    for tree in trees:
        ways = tuple(way[::-1] for way in tree.ways) if towards else tree.ways
        found[tree.root].append((ways, Fraction(tree.times, total)))
    return found


def _joined(into: dict[int, list[Side]], out: dict[int, list[Side]]) -> list[Tree]:
    """Trees that sum and send on: the shares of a root on both sides, cut where either changes."""
    return [
        Tree(root, share, reduce, broadcast)
        for root, trees in into.items()
        for share, (reduce, broadcast) in _overlaid(trees[::-1], out[root][::-1])
    ]


def _symmetric(network: LinkGraph) -> bool:
    capacity = network.capacity.tolist()
    return all(
        (v, u) in network.link and capacity[network.link[v, u]] == capacity[number]
        for (u, v), number in network.link.items()
    )


def _once(network: LinkGraph, tree: Tree) -> Tree:
    """The tree, through a vertex that adds without taking part once: there it branches.

    It does not end at one.
    """
    adds = set(np.flatnonzero(network.sums & ~network.participant).tolist())

    def cut(ways: tuple[Way, ...], towards: bool) -> tuple[Way, ...]:
        found, seen = list[Way](), {tree.root}
        ordered = in_order(tree.root, ways, towards=towards)
        for way in ordered[::-1] if towards else ordered:
            outward = way[::-1] if towards else way
            last = max(i for i, v in enumerate(outward) if v in seen)
            at = [last, *(i for i in range(last + 1, len(outward) - 1) if outward[i] in adds)]
            for i, j in pairwise([*at, len(outward) - 1]):
                found.append(outward[i : j + 1])
                seen.add(outward[j])
        while idle := {way[-1] for way in found} & adds - {way[0] for way in found}:
            found = [way for way in found if way[-1] not in idle]
        return tuple(way[::-1] for way in found) if towards else tuple(found)

    return Tree(tree.root, tree.share, cut(tree.reduce, True), cut(tree.broadcast, False))
