"""Packed forests: trees that together pass what the tightest cut of the network allows."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import numpy as np

from agents.solver import Budget, Result
from agents.synchronisation.division import divide
from agents.synchronisation.forest_packing import PackedTree, pack
from agents.synchronisation.optimum import Supply, even_supply, optimum, reverse, supply_of_few
from agents.synchronisation.ways import Synchroniser
from envs.bounds import Count, NonNegative, bounded
from envs.synchronisation.link_graph import LinkGraph
from envs.synchronisation.plan import SynchronisationPlan, Tree, Way, in_order
from envs.synchronisation.problem import Primitive, SynchronisationProblem

_MESSAGES = 60_000
_FEW = (1, 2)  # trees per root

Side = tuple[Fraction, tuple[Way, ...]]  # a share of the vector, and the ways of a tree


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
        twice = primitive is Primitive.ALL_REDUCE and _symmetric(
            network
        )  # the same trees both ways
        supplies = {
            towards: _supply(reverse(network) if towards else network, targets, k)
            for towards, used in (
                (True, primitive.reduces and not twice),
                (False, primitive.broadcasts),
            )
            if used
        }
        if not all(supplies.values()):
            return
        rate = 1 / sum(((1 + twice) / x.rate for x in supplies.values() if x), Fraction(0))
        sides = {towards: _sides(pack(x), towards) for towards, x in supplies.items() if x}
        if twice:
            sides[True] = {
                root: [(share, tuple(way[::-1] for way in ways)) for share, ways in trees]
                for root, trees in sides[False].items()
            }
        if primitive is Primitive.ALL_REDUCE:
            yield rate, _joined(sides[True], sides[False])
            return
        yield (
            rate,
            [
                Tree(root, share, ways, ()) if primitive.reduces else Tree(root, share, (), ways)
                for root, trees in next(iter(sides.values())).items()
                for share, ways in trees
            ],
        )

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
