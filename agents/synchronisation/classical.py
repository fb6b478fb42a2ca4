"""Rings, double trees, hierarchical rings, halving and doubling, parameter servers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise, product
from typing import ClassVar

import numpy as np

from agents.solver import Budget, Result
from agents.synchronisation.ways import (
    Edges,
    Pair,
    Pattern,
    Synchroniser,
    Table,
    Ways,
    blended,
    in_chunks,
    realised,
)
from envs.arrays import FloatArray
from envs.synchronisation.link_graph import LinkGraph
from envs.synchronisation.plan import Primitive, SynchronisationPlan
from envs.synchronisation.problem import SynchronisationProblem

_EXACT = 10  # participants up to which the cheapest ring is found by dynamic programming
_TURNS = 8  # places of a server at which rings and trees enter it, at most


class _Blend(Synchroniser):
    """Patterns over the tables of ways, blended; without one, why there is none."""

    name: ClassVar[str]
    cut: ClassVar[bool] = True  # whether chunks overlap what follows one another

    def _solve(
        self, problem: SynchronisationProblem, budget: Budget
    ) -> Result[SynchronisationPlan]:
        if reason := self._refused(problem):
            return Result(None, "infeasible", reason=reason)
        ways, patterns = Ways(problem.network, self._ends(problem)), list[Pattern]()
        for table in ways.tables:
            for edges in self._trees(problem, ways, table):
                found = realised(problem.primitive, edges, table)
                patterns += [found] if found else []
        if not patterns:
            reason = ways.missing() or "no ring passes all participants"
            return Result(None, "infeasible", reason=reason)
        return self._planned(problem, ways, patterns)

    def _planned(
        self, problem: SynchronisationProblem, ways: Ways, patterns: list[Pattern]
    ) -> Result[SynchronisationPlan]:
        trees, used = self._blended(problem, ways, patterns)
        plan = SynchronisationPlan(self.name, trees)
        if self.cut:
            plan = in_chunks(problem, plan)
        figures = {"patterns": float(used), "busiest_s": plan.busiest_seconds(problem)}
        return Result(plan, "feasible", figures=figures)

    def _refused(self, problem: SynchronisationProblem) -> str:
        return ""

    def _ends(self, problem: SynchronisationProblem) -> tuple[int, ...]:
        return problem.network.participants

    def _blended(
        self, problem: SynchronisationProblem, ways: Ways, patterns: list[Pattern]
    ) -> tuple[Pattern, int]:
        return blended(problem, patterns)

    @abstractmethod
    def _trees(
        self, problem: SynchronisationProblem, ways: Ways, table: Table
    ) -> Iterator[list[Edges]]:
        """What is looked at over one table."""


class Ring(_Blend):
    """Rings side by side, through the participants in the orders that suit the network.

    Which rings, with which shares: a linear program over the load of all links, to which rings are
    added while one is cheaper under its prices. Up to 10 participants the cheapest is exact, so
    that no rings over these ways are better together; beyond, it is a tour improved by moving up to
    three neighbours, and rings that enter the servers at other places are there from the start. On
    one ring the vector is cut into n blocks, and block i is summed along the chain that ends in
    rank i.

    Guarantees:
        Up to 10 participants, over the ways looked at: the least seconds of the busiest link plus
        mean latency, to 1e-4.

    Source:
        Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations,
        JPDC 69(2), 2009; several rings: NCCL.
    """

    name = "ring"
    cut = False

    def _trees(
        self, problem: SynchronisationProblem, ways: Ways, table: Table
    ) -> Iterator[list[Edges]]:
        for order in _orders(ways, table):
            yield _ring(order)
            yield _ring(order[::-1])

    def _blended(
        self, problem: SynchronisationProblem, ways: Ways, patterns: list[Pattern]
    ) -> tuple[Pattern, int]:
        network = problem.network
        ends, n = network.participants, len(network.participants)
        passes = problem.primitive.reduces + problem.primitive.broadcasts
        sent = passes * (n - 1) / n * problem.size

        def price(prices: FloatArray) -> Pattern | None:
            each = prices * sent / network.capacity + passes * network.latency
            cost, cheapest = _cheapest_ways(network, ends, ways.tables, each)
            order = [ends[i] for i in cheapest_cycle(cost)]
            return realised(problem.primitive, _ring(order), cheapest)

        return blended(problem, patterns, price)


class DoubleTree(_Blend):
    """Two binary trees, each with half the vector; who is inside one is a leaf of the other.

    Ranks stand server by server. Pairs of trees that enter servers at other places and over other
    ways share the vector as the links like best; chunks are of the size that plays fastest.

    Guarantees:
        None.

    Source:
        Sanders, Speck and Träff, Two-tree algorithms for full bandwidth broadcast, reduction and
        scan, Parallel Computing 35(12), 2009.
    """

    name = "double trees"

    def _refused(self, problem: SynchronisationProblem) -> str:
        every = problem.primitive is Primitive.ALL_REDUCE
        return "" if every else f"double trees do not {problem.primitive.value}"

    def _trees(
        self, problem: SynchronisationProblem, ways: Ways, table: Table
    ) -> Iterator[list[Edges]]:
        for order in _orders(ways, table):
            m, trees = len(order), []
            first = list(_binary(1, m))
            shift = {x: m + 1 - x if m % 2 == 0 else (x - 2) % m + 1 for x in range(1, m + 1)}
            for edges in (first, [(shift[a], shift[b]) for a, b in first]):
                up = [(order[child - 1], order[parent - 1]) for child, parent in edges]
                root = ({parent for _, parent in up} - {child for child, _ in up}).pop()
                trees.append(Edges(root, Fraction(1, 2), up))
            yield trees


class Hierarchical(_Blend):
    """Summed inside every server, block by block between servers, and spread inside again.

    In every server one participant stands for block i, in turn; all send between servers, each its
    blocks, so that a server with a NIC for each participant uses all of them. Inside and between it
    goes along chains of a ring or directly, whatever the links like best, in chunks of the size
    that plays fastest. Servers may have different numbers of participants.

    Guarantees:
        None.

    Source:
        Cho et al., BlueConnect: decomposing all-reduce for deep learning on heterogeneous network
        hierarchy, MLSys 2019; Jia et al., arXiv:1807.11205, 2018.
    """

    name = "hierarchical rings"

    def _trees(
        self, problem: SynchronisationProblem, ways: Ways, table: Table
    ) -> Iterator[list[Edges]]:
        share = Fraction(1, len(problem.network.participants))
        groups = [_toured(group, table, ways) for group in ways.groups()]
        for inside, between in product((True, False), repeat=2):
            trees = []
            for s, group in enumerate(groups):
                for j, root in enumerate(group):
                    heads = [other[j % len(other)] for other in groups]
                    out = _star_or_chain(heads[s:] + heads[:s], between)
                    for head, other in zip(heads, groups, strict=True):
                        at = other.index(head)
                        out += _star_or_chain(other[at:] + other[:at], inside)
                    trees.append(Edges(root, share, [(b, a) for a, b in out], out))
            yield trees


class HalvingDoubling(_Blend):
    """Blocks summed by recursive vector halving, sent back by recursive doubling.

    Distances are 1, 2, 4, ... on the way there, so that the longest messages go to neighbours.
    Where n is no power of two, p is the next lower one: of the first 2 (n - p) ranks the odd ones
    send what they have to their left neighbours and get the result from them.

    Guarantees:
        None.

    Source:
        Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in
        MPICH, IJHPCA 19(1), 2005; Rabenseifner, ICCS 2004.
    """

    name = "halving and doubling"
    cut = False

    def _trees(
        self, problem: SynchronisationProblem, ways: Ways, table: Table
    ) -> Iterator[list[Edges]]:
        ranks = [vertex for group in ways.groups() for vertex in group]
        n = len(ranks)
        p = 1 << (n.bit_length() - 1)
        active = [*ranks[: 2 * (n - p) : 2], *ranks[2 * (n - p) :]]
        partner = {ranks[2 * i + 1]: ranks[2 * i] for i in range(n - p)}
        roots, trees = active if problem.primitive is Primitive.ALL_REDUCE else ranks, []
        for root in roots:
            middle = active.index(partner.get(root, root))
            up = [(active[v], active[v ^ ((v ^ middle) & -(v ^ middle))])
                  for v in range(p) if v != middle]  # fmt: skip
            up += [pair for pair in partner.items() if pair[0] != root]
            up += [(partner[root], root)] if root in partner else []
            trees.append(Edges(root, Fraction(1, len(roots)), up))
        yield trees


@dataclass(frozen=True)
class ParameterServer(_Blend):
    """Every participant sends every shard to its server, which sends the sum back.

    Args:
        dedicated: whether the servers are vertices that sum and neither take part nor forward;
            else every participant is the server of one shard.

    Guarantees:
        None.

    Source:
        Li et al., Scaling distributed machine learning with the parameter server, OSDI 2014.
    """

    dedicated: bool = False

    name = "parameter servers"

    def _refused(self, problem: SynchronisationProblem) -> str:
        if not self._servers(problem):
            return "no vertex sums that neither takes part nor forwards"
        every = not self.dedicated or problem.primitive is Primitive.ALL_REDUCE
        return "" if every else f"dedicated servers do not {problem.primitive.value}"

    def _servers(self, problem: SynchronisationProblem) -> tuple[int, ...]:
        network = problem.network
        if not self.dedicated:
            return network.participants
        apart = network.sums & ~network.participant & ~network.forwards
        return tuple(np.flatnonzero(apart).tolist())

    def _ends(self, problem: SynchronisationProblem) -> tuple[int, ...]:
        return tuple({*problem.network.participants, *self._servers(problem)})

    def _trees(
        self, problem: SynchronisationProblem, ways: Ways, table: Table
    ) -> Iterator[list[Edges]]:
        servers, ranks = self._servers(problem), problem.network.participants
        share = Fraction(1, len(servers))
        yield [Edges(s, share, [(v, s) for v in ranks if v != s]) for s in servers]


def cheapest_cycle(cost: FloatArray) -> list[int]:
    """A cycle through all of n places; the cheapest up to 10 (Held and Karp, 1962).

    Args:
        cost: (n, n) from place to place, not negative; inf where there is no way.
    """
    n = len(cost)
    if n > _EXACT:
        return _toured_places(cost)
    best = np.full((1 << n, n), np.inf)  # of a path from 0 over a set of places to its last
    best[1, 0] = 0.0
    before = np.zeros((1 << n, n), dtype=np.int64)
    for places in range(1, 1 << n, 2):
        through = best[places][:, None] + cost
        for to in range(1, n):
            if not places >> to & 1:
                last = int(through[:, to].argmin())
                best[places | 1 << to, to] = through[last, to]
                before[places | 1 << to, to] = last
    places, last = (1 << n) - 1, int((best[-1] + cost[:, 0]).argmin())
    if np.isinf(best[-1, last] + cost[last, 0]):
        return list(range(n))
    order = [last]
    while len(order) < n:
        places, last = places ^ 1 << last, int(before[places, last])
        order.append(last)
    return order[::-1]


def _toured_places(cost: FloatArray) -> list[int]:
    """The nearest place next, then up to three neighbours moved to where they cost least."""
    n, worst = len(cost), 1e6 * (1.0 + cost[np.isfinite(cost)].max(initial=0.0))
    c = np.where(np.isfinite(cost), cost, worst)
    order, left = [0], set(range(1, n))
    while left:
        order.append(min(left, key=lambda place: (c[order[-1], place], place)))
        left.remove(order[-1])
    moved = True
    while moved:
        moved = False
        for length, at in product((1, 2, 3), range(n)):
            turned = np.array(order[at:] + order[:at])
            part, rest = turned[:length], turned[length:]
            nxt = np.roll(rest, -1)
            gain = c[rest[-1], part[0]] + c[part[-1], rest[0]] - c[rest[-1], rest[0]]
            more = c[rest, part[0]] + c[part[-1], nxt] - c[rest, nxt]
            where = int(more.argmin())
            if more[where] < gain - 1e-9 * abs(gain) - 1e-300:
                order = [*rest[: where + 1].tolist(), *part.tolist(), *rest[where + 1 :].tolist()]
                moved = True
    return order


def _ring(order: Sequence[int]) -> list[Edges]:
    """A chain to every participant, and one from it, the same way round."""
    trees = []
    for i, root in enumerate(order):
        turned = [*order[i + 1 :], *order[: i + 1]]  # ends in the root
        down = list(pairwise([root, *turned[:-1]]))
        trees.append(Edges(root, Fraction(1, len(order)), list(pairwise(turned)), down))
    return trees


def _orders(ways: Ways, table: Table) -> Iterator[list[int]]:
    """Server by server, each begun at several places."""
    groups = [_toured(group, table, ways) for group in ways.groups()]
    most = max(len(group) for group in groups)
    for turn in range(min(most, _TURNS)):
        yield [group[(i + turn) % len(group)] for group in groups for i in range(len(group))]


def _toured(group: list[int], table: Table, ways: Ways) -> list[int]:
    """The participants of a server along a cycle of wide ways."""
    network = ways.network
    each = network.latency + 1e6 / network.capacity  # seconds of a megabyte
    cost, _ = _cheapest_ways(network, group, [table], each)
    return [group[i] for i in cheapest_cycle(cost)] if len(group) > 2 else group


def _cheapest_ways(
    network: LinkGraph, ends: Sequence[int], tables: list[Table], each: FloatArray
) -> tuple[FloatArray, Table]:
    """(n, n) the costs of the cheapest ways of tables at (K,) `each` link's, and those ways."""
    cost, cheapest = np.full((len(ends), len(ends)), np.inf), Table()
    for table, (i, a), (j, b) in product(tables, enumerate(ends), enumerate(ends)):
        way = table.get((a, b), ())
        total = sum(each[network.links_of(way)])
        if way and total < cost[i, j]:
            cost[i, j], cheapest[a, b] = total, way
    return cost, cheapest


def _star_or_chain(members: list[int], chain: bool) -> list[Pair]:
    """From the first to all others, each by the one before or all by the first."""
    return list(pairwise(members)) if chain else [(members[0], v) for v in members[1:]]


def _binary(first: int, last: int) -> Iterator[Pair]:
    """Edges (child, parent) of a binary tree over places in order, whose leaves are odd."""
    if first < last:
        root = _middle(first, last)
        for low, high in ((first, root - 1), (root + 1, last)):
            if low <= high:
                yield _middle(low, high), root
                yield from _binary(low, high)


def _middle(first: int, last: int) -> int:
    return first - 1 + (1 << ((last - first + 1).bit_length() - 1))
