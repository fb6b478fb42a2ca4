"""Ways between participants, and patterns of trees blended so that the busiest link has least.

A *pattern* is trees whose shares add up to all that a plan carries: a ring in some order, say. The
shares of patterns side by side are those of a linear program over the loads of links.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

import networkx as nx
import numpy as np
from scipy.optimize import linprog

from agents.solver import DirectSolver
from envs.arrays import FloatArray
from envs.errors import InputError
from envs.synchronisation.link_graph import LinkGraph
from envs.synchronisation.plan import Primitive, SynchronisationPlan, Tree, Way
from envs.synchronisation.playing import play
from envs.synchronisation.problem import SynchronisationProblem

Pair = tuple[int, int]  # vertices
Table = dict[Pair, Way]
Pattern = tuple[Tree, ...]

MOST_PARTICIPANTS = 512
_MANY = 64  # participants from which on fewer alternatives are tried
_PICO = 1e12  # latencies are compared in whole picoseconds
_ROUNDS = 200  # of column generation
_LEAST = 1e-4  # share of a pattern that is kept
_CHUNKS = (4, 16, 64)  # pieces of the largest tree that are tried
_MESSAGES = 150_000  # of a plan that is played to choose its chunks


class Synchroniser(DirectSolver[SynchronisationProblem, SynchronisationPlan]):
    """Chooses trees over which the vectors of all participants are summed.

    The bound is for every plan without sums inside the network, whatever its latencies.
    """

    solves = (SynchronisationProblem,)


@dataclass(frozen=True, eq=False)
class Ways:
    """Ways between all `ends`, by several rules.

    Raises:
        InputError: more than `MOST_PARTICIPANTS` participants.
    """

    network: LinkGraph
    ends: tuple[int, ...]  # vertices that send and receive

    def __post_init__(self) -> None:
        n = len(self.network.participants)
        if n > MOST_PARTICIPANTS:
            raise InputError(
                f"{n:,} participants, at most {MOST_PARTICIPANTS}", field="participants"
            )

    @cached_property
    def tables(self) -> list[Table]:
        """The shortest ways (latency, then links, then the wider), the widest (then shortest).

        Both twice: the second time apart from the links of before where others are as good, so that
        several NICs or planes are used. Pairs without a way are left out.
        """
        load = np.zeros(self.network.num_links)
        twice = 1 if len(self.ends) > _MANY else 2
        found = [self._table(load, widest) for _ in range(twice) for widest in (False, True)]
        return [table for number, table in enumerate(found) if table not in found[:number]]

    def missing(self) -> str:
        """A pair without a way by name; empty where there is none."""
        names = self.network.vertices
        for a in self.ends:
            for b in self.ends:
                if a != b and (a, b) not in self.tables[0]:
                    return f"no way from {names[a]} to {names[b]}"
        return ""

    def groups(self) -> list[list[int]]:
        """The participants of every server, which is what stands before the first / of a name.

        Where no name has one: those joined by ways as wide as every participant has to some other.
        """
        network = self.network
        if any("/" in network.vertices[v] for v in network.participants):
            found: dict[str, list[int]] = defaultdict(list)
            for vertex in network.participants:
                found[network.vertices[vertex].split("/")[0]].append(vertex)
            return list(found.values())
        width = {
            pair: network.capacity[network.links_of(way)].min()
            for pair, way in self.tables[-1].items()
        }
        ends = network.participants
        needed = min(
            max(min(width.get((a, b), 0.0), width.get((b, a), 0.0)) for b in ends if b != a)
            for a in ends
        )
        near = nx.Graph()
        near.add_nodes_from(ends)
        near.add_edges_from(
            (a, b) for (a, b), wide in width.items()
            if {a, b} <= set(ends) and min(wide, width.get((b, a), 0.0)) >= needed
        )  # fmt: skip
        return sorted(sorted(group) for group in nx.connected_components(near))

    def _table(self, load: FloatArray, widest: bool) -> Table:
        table: Table = {}
        for source in self.ends:
            busy = (1.0 + load) / self.network.capacity
            levels = {np.inf: set(self.ends) - {source}}
            if widest:
                levels = defaultdict(set)
                for vertex, (level, _) in self._search(source, busy, np.inf, True).items():
                    levels[level[0]].add(vertex)
            for most, targets in levels.items():
                before = self._search(source, busy, most, False)
                for target in targets & before.keys() & set(self.ends) - {source}:
                    way = [target]
                    while way[-1] != source:
                        way.append(before[way[-1]][1])
                    table[source, target] = tuple(reversed(way))
            for target in self.ends:
                for link in self.network.links_of(table.get((source, target), ())):
                    load[link] += 1.0 / len(self.ends)
        return table

    def _search(
        self, source: int, busy: FloatArray, most: float, widest: bool
    ) -> dict[int, tuple[tuple[float, ...], int]]:
        """Dijkstra's labels and predecessors over links of at most `most` busyness."""
        found: dict[int, tuple[tuple[float, ...], int]] = {}
        queue: list[tuple[tuple[float, ...], int, int]] = [((0.0, 0.0, 0.0), source, source)]
        while queue:
            label, at, before = heapq.heappop(queue)
            if at in found:
                continue
            found[at] = label, before
            if at != source and not self.network.forwards[at]:
                continue
            for link, to in self._leaving[at]:
                if to not in found and busy[link] <= most:
                    worst = max(label[0 if widest else 2], busy[link])
                    further = label[0] + round(self.network.latency[link] * _PICO)
                    step = (worst, 0.0, 0.0) if widest else (further, label[1] + 1, worst)
                    heapq.heappush(queue, (step, to, at))
        return found

    @cached_property
    def _leaving(self) -> dict[int, list[Pair]]:
        leaving: dict[int, list[Pair]] = defaultdict(list)
        for (a, b), link in self.network.link.items():
            leaving[a].append((link, b))
        return leaving


class Edges(NamedTuple):
    """A tree between vertices that sum, before it has ways; `down` None: as `up`, back."""

    root: int
    share: Fraction
    up: Sequence[Pair]
    down: Sequence[Pair] | None = None


def realised(primitive: Primitive, edges: Iterable[Edges], table: Table) -> Pattern | None:
    """The trees with the ways of a table; None where it has none for some pair."""
    trees = []
    for root, share, up, down in edges:
        back = [(b, a) for a, b in up] if down is None else down
        needed = up if primitive.reduces else (), back if primitive.broadcasts else ()
        if not all(pair in table for pairs in needed for pair in pairs):
            return None
        reduce, broadcast = (tuple(table[pair] for pair in pairs) for pairs in needed)
        trees.append(Tree(root, share, reduce, broadcast))
    return tuple(trees)


def load_of(problem: SynchronisationProblem, pattern: Pattern) -> FloatArray:
    """(K,) seconds that every link of the network needs for a pattern."""
    return SynchronisationPlan("", pattern).link_bytes(problem) / problem.network.capacity


def latency_of(network: LinkGraph, pattern: Pattern) -> float:
    """Seconds of latency from the first message of the slowest tree to its last."""

    def latency(way: Way) -> float:
        return float(sum(network.latency[network.links_of(way)]))

    return max((tree.longest(latency) for tree in pattern), default=0.0)


def blended(
    problem: SynchronisationProblem,
    patterns: Sequence[Pattern],
    price: Callable[[FloatArray], Pattern | None] | None = None,
) -> tuple[Pattern, int]:
    """The patterns side by side, with the shares that minimise seconds; and how many are used.

    Seconds are those of the busiest link, and the mean latency of the patterns.

    Args:
        price: a pattern that is cheap under (K,) prices per second of load, to add to the others
            (column generation): where its answers are the cheapest, the shares are the best of all.
    """
    columns = list(dict.fromkeys(patterns))
    loads = [load_of(problem, pattern) for pattern in columns]
    waits = [latency_of(problem.network, pattern) for pattern in columns]
    for _ in range(_ROUNDS):
        scale = min(float(load.max()) for load in loads)
        over = np.column_stack((np.stack(loads, axis=1) / scale, np.full(len(loads[0]), -1.0)))
        solved = linprog(
            [*(wait / scale for wait in waits), 1.0], over, np.zeros(len(over)),
            [[1.0] * len(columns) + [0.0]], [1.0],
        )  # fmt: skip
        if price is None:
            break
        prices = -np.asarray(solved.ineqlin.marginals)
        found = price(prices)
        if found is None or found in columns:
            break
        load, wait = load_of(problem, found), latency_of(problem.network, found)
        if prices @ load + wait >= solved.eqlin.marginals[0] * scale * (1.0 - 1e-7):
            break
        columns.append(found)
        loads.append(load)
        waits.append(wait)
    kept = {
        number: Fraction(float(share)).limit_denominator(10_000)
        for number, share in enumerate(solved.x[:-1])
        if share >= _LEAST
    }
    total = sum(kept.values())
    trees = tuple(
        replace(tree, share=tree.share * share / total)
        for number, share in kept.items()
        for tree in columns[number]
    )
    return trees, len(kept)


def in_chunks(problem: SynchronisationProblem, plan: SynchronisationPlan) -> SynchronisationPlan:
    """The plan with the chunks that make it fastest, of those tried by playing it."""
    largest = float(max(tree.share for tree in plan.trees)) * problem.size
    ways = sum(len(tree.reduce) + len(tree.broadcast) for tree in plan.trees)
    best, seconds = plan, play(problem, plan).seconds
    for pieces in _CHUNKS:
        tried = replace(plan, chunk=largest / pieces * (1.0 + 1e-12))
        taken = play(problem, tried).seconds if ways * pieces <= _MESSAGES else seconds
        if taken >= seconds:
            break
        best, seconds = tried, taken
    return best
