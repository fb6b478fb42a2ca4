"""Packed forests: trees that together pass what the tightest cut of the network allows."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import pairwise
from math import sqrt

import numpy as np

from agents.base import SynchronisationResult
from agents.synchronisation.division import divide
from agents.synchronisation.forest_packing import PackedTree, pack
from agents.synchronisation.optimum import Supply, even_supply, optimum, reverse, supply_of_few
from envs.bounds import Count, NonNegative, bounded
from envs.synchronisation.link_graph import LinkGraph
from envs.synchronisation.plan import SynchronisationPlan, Tree, Way, in_order
from envs.synchronisation.problem import Primitive, SynchronisationProblem

_MESSAGES = 40_000

Side = tuple[Fraction, tuple[Way, ...]]  # a share of the vector, and the ways of a tree


@bounded
class Forest:
    """Trees for the network at hand, from exact cuts, without a search.

    Vertices that add without taking part are in all trees, or only pass on, whichever is faster. A
    tree that comes through one of them twice anyway passes it once.

    Args:
        k: trees per root at most, all equal; None: as many as the optimum needs.
        overlap: all-reduce sums and sends results over links divided by a linear program, and a
            root forms as much as suits the network. Otherwise, and with `k`, every participant
            forms one n-th, and the trees are those of reduce-scatter and of all-gather.
        latency: seconds that every chunk costs its sender, from which its size follows; None: the
            largest latency of the links.

    Guarantees:
        Without `k`, the busiest link needs `size` over `optimum` for all-gather and reduce-scatter
        where as much leads into every switch as out of it, and elsewhere what the linear program
        proves to be least. With `overlap`, no all-reduce over trees without sums inside the network
        has a less busy link.

    Source:
        Zhang, Wu and Li, INFOCOM 2021; Zhao et al., ForestColl, NSDI 2025.
    """

    def __init__(
        self, k: Count | None = None, overlap: bool = True, latency: NonNegative | None = None
    ) -> None:
        self.k = k
        self.overlap = overlap
        self.latency = latency

    def synchronise(self, problem: SynchronisationProblem) -> SynchronisationResult:
        """See `SynchronisationPlanner`."""
        start = time.perf_counter()
        network, primitive = problem.network, problem.primitive
        adding = tuple(np.flatnonzero(network.sums & ~network.participant).tolist())
        spanned = [network.participants]
        if adding:
            spanned.append(tuple(sorted((*network.participants, *adding))))
        found = [forest for targets in spanned if (forest := self._trees(problem, targets))]
        if not found:
            seconds, reason = time.perf_counter() - start, "the network does not join them all"
            return SynchronisationResult(None, "infeasible", seconds, reason=reason)
        bandwidth, trees = max(found, key=lambda forest: forest[0])
        trees = [_once(network, tree) for tree in trees]
        size = self._chunk(problem, trees)
        plan = SynchronisationPlan("forest", tuple(trees), size)
        roots = Counter(tree.root for tree in trees)
        bound = best_bandwidth(network, primitive)
        figures = {
            "bandwidth": float(bandwidth),
            "optimum": float(optimum(problem)),
            "best": bound,
            "trees": float(len(trees)),
            "trees_per_root": float(max(roots.values())),
        }
        return SynchronisationResult(
            plan,
            "feasible" if self.k else "optimal",
            time.perf_counter() - start,
            problem.size / bound * (1.0 - 1e-9),  # the linear program's rounding
            figures=figures,
        )

    def _trees(
        self, problem: SynchronisationProblem, targets: tuple[int, ...]
    ) -> tuple[Fraction, list[Tree]] | None:
        """Bytes/s of the whole vector, and trees with them; None: a target is out of reach."""
        network, primitive = problem.network, problem.primitive
        if primitive is Primitive.ALL_REDUCE and self.overlap and self.k is None:
            division = divide(network, True, True, targets)
            if division is None or division.reduce is None or division.broadcast is None:
                return None
            into, out = pack(division.reduce), pack(division.broadcast)
            return division.broadcast.rate, _joined(_sides(into, True), _sides(out, False))
        supplies = {
            towards: self._supply(reverse(network) if towards else network, targets)
            for towards, used in ((True, primitive.reduces), (False, primitive.broadcasts))
            if used
        }
        if not all(supplies.values()):
            return None
        rate = 1 / sum((1 / x.rate for x in supplies.values() if x), Fraction(0))
        sides = {towards: _sides(pack(x), towards) for towards, x in supplies.items() if x}
        if primitive is not Primitive.ALL_REDUCE:
            return rate, [
                Tree(root, share, ways, ()) if primitive.reduces else Tree(root, share, (), ways)
                for root, trees in next(iter(sides.values())).items()
                for share, ways in trees
            ]
        if _symmetric(network):  # the same trees both ways
            sides[True] = {
                root: [(share, tuple(way[::-1] for way in ways)) for share, ways in trees]
                for root, trees in sides[False].items()
            }
        return rate, _joined(sides[True], sides[False])

    def _supply(self, network: LinkGraph, targets: tuple[int, ...]) -> Supply | None:
        """What all-gather has on this network."""
        if self.k is not None:
            return supply_of_few(network, self.k, targets)
        supply = even_supply(network, targets)
        if supply is None or supply.balanced():
            return supply
        division = divide(network, False, True, targets, even=True)
        return division.broadcast if division else None

    def _chunk(self, problem: SynchronisationProblem, trees: Sequence[Tree]) -> float:
        """The size with which the last chunk of the slowest tree arrives first.

        A tree with S bytes at x bytes/s and `depth` ways in a row passes chunks of c bytes in
        `S / c + depth` turns of `latency + c / x` seconds: least for sqrt(latency S x / depth).
        Here every tree has the same S / x. No more than 40,000 messages are sent.
        """
        latency = float(problem.network.latency.max()) if self.latency is None else self.latency
        seconds = SynchronisationPlan("", tuple(trees)).busiest_seconds(problem)
        carried = [float(tree.share) * problem.size for tree in trees]
        size = min(
            bytes_ * sqrt(latency / seconds / _depth(tree))
            for bytes_, tree in zip(carried, trees, strict=True)
        )
        ways = [len(tree.reduce) + len(tree.broadcast) for tree in trees]
        return max(size, float(np.dot(carried, ways)) / _MESSAGES)


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
        found[tree.root].append((Fraction(tree.times, total), ways))
    return found


def _joined(into: dict[int, list[Side]], out: dict[int, list[Side]]) -> list[Tree]:
    """Trees that sum and send on: the shares of a root on both sides, cut where either changes."""
    found = []
    for root, trees in into.items():
        first, second = trees[::-1], out[root][::-1]
        while first:
            (a, reduce), (b, broadcast) = first.pop(), second.pop()
            share = min(a, b)
            found.append(Tree(root, share, reduce, broadcast))
            if a > share:
                first.append((a - share, reduce))
            if b > share:
                second.append((b - share, broadcast))
    return found


def _symmetric(network: LinkGraph) -> bool:
    capacity = network.capacity.tolist()
    return all(
        (v, u) in network.link and capacity[network.link[v, u]] == capacity[number]
        for (u, v), number in network.link.items()
    )


def _depth(tree: Tree) -> int:
    """Ways in a row, from the first sender to the last receiver."""
    total = 0
    for ways, towards in ((tree.reduce, True), (tree.broadcast, False)):
        depth = {tree.root: 0}
        ordered = in_order(tree.root, ways, towards=towards)
        for way in ordered[::-1] if towards else ordered:
            near, far = (way[-1], way[0]) if towards else (way[0], way[-1])
            depth[far] = depth[near] + 1
        total += max(depth.values())
    return total


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
