"""`SynchronisationPlan`: trees with shares of the vector, checked, and executed on vectors.

Every algorithm is trees. A ring is n of them: block i is added along a chain that ends in rank i
and travels on along the chain that begins there. Halving and doubling are n binomial trees, a
parameter server is a star, a switch that adds is one too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from itertools import pairwise

import numpy as np

from envs.arrays import BoolArray, FloatArray
from envs.errors import InputError
from envs.synchronisation.link_graph import LinkGraph

ELEMENT = 4  # bytes of an element of a vector
Way = tuple[int, ...]  # vertices from a sender to a receiver, both included


@dataclass(frozen=True)
class Tree:
    """How one share of the vector is summed at `root`, and how the sum leaves it.

    Inner vertices of a `Way` forward. At its ends stand vertices that sum: each one that sends
    towards the root adds what it received to its own first.
    """

    root: int  # vertex where the sum is formed
    share: Fraction  # of the whole vector
    reduce: tuple[Way, ...] = ()  # an in-tree: every vertex on it but the root sends once
    broadcast: tuple[Way, ...] = ()  # an out-tree: every vertex on it but the root receives once

    def longest(self, cost: Callable[[Way], float]) -> float:
        """The costs of ways in a row, from the first sender to the last receiver, at most."""
        total = 0.0
        for ways, towards in ((self.reduce, True), (self.broadcast, False)):
            behind: dict[int, float] = defaultdict(float)
            for way in in_order(self.root, ways, towards=towards):
                behind[way[-1]] = max(behind[way[-1]], behind[way[0]] + cost(way))
            total += max(behind.values(), default=0.0)
        return total


@dataclass(frozen=True)
class SynchronisationPlan:
    """Trees side by side; what each carries is cut into chunks that follow one another.

    The trees of all-reduce divide the vector in their order. Of all-gather and reduce-scatter the
    trees with root `participants[i]` divide block i of n in their order.

    Args:
        chunk: bytes that travel in one piece; inf: a tree's whole share.
    """

    name: str
    trees: tuple[Tree, ...]
    chunk: float = float("inf")  # bytes

    def spans(self, problem: VectorSum) -> list[tuple[Fraction, Fraction]]:
        """(trees,) first and end of what each tree carries, as shares of the vector."""
        every = problem.primitive is Primitive.ALL_REDUCE
        ends: dict[int | None, Fraction] = {None: Fraction(0)}
        for rank, vertex in enumerate(problem.network.participants):
            ends[vertex] = problem.block_of(rank)[0]
        found = []
        for tree in self.trees:
            owner = None if every else tree.root
            first = ends[owner]
            ends[owner] += tree.share
            found.append((first, ends[owner]))
        return found

    @property
    def ways(self) -> list[Way]:
        """Every way of a tree, once."""
        return sorted({way for tree in self.trees for way in (*tree.reduce, *tree.broadcast)})

    def vertices(self, problem: VectorSum) -> list[int]:
        """Those that take part, and all others at an end of a way."""
        ends = {vertex for way in self.ways for vertex in (way[0], way[-1])}
        return sorted(ends | set(problem.network.participants))

    def violations(self, problem: VectorSum) -> list[str]:
        """What is wrong with the plan for this problem; empty where nothing is."""
        network, found = problem.network, list[str]()
        taking, primitive = set(network.participants), problem.primitive
        total: dict[int | None, Fraction] = defaultdict(Fraction)
        for number, tree in enumerate(self.trees):
            wrong = _violations_of(problem, tree)
            found += [f"tree {number}: {fault}" for fault in wrong]
            total[None if primitive is Primitive.ALL_REDUCE else tree.root] += tree.share
        if primitive is Primitive.ALL_REDUCE:
            wanted: dict[int | None, Fraction] = {None: Fraction(1)}
        else:
            wanted = {vertex: Fraction(1, len(taking)) for vertex in taking}
        for root in {**wanted, **total}:
            if total[root] != wanted.get(root, Fraction(0)):
                of = "the trees" if root is None else f"the trees of {network.vertices[root]}"
                found.append(f"{of} carry {total[root]} of the vector, not {wanted.get(root, 0)}")
        if not self.chunk > 0:
            found.append(f"chunks of {self.chunk} bytes")
        return found

    def perform(self, problem: VectorSum, vectors: FloatArray) -> FloatArray:
        """(n, E) what every participant holds at the end, executed message by message.

        What a rank does not own at the end is NaN: under reduce-scatter all but its own block.

        Args:
            vectors: (n, E) what every participant holds at the beginning. A tree carries the
                elements whose first byte lies in its span.
        """
        rank = {vertex: i for i, vertex in enumerate(problem.network.participants)}
        n, elements = vectors.shape
        result = np.full((n, elements), np.nan)
        for tree, (first, end) in zip(self.trees, self.spans(problem), strict=True):
            part = slice(-int(-first * elements // 1), -int(-end * elements // 1))
            held: dict[int, FloatArray] = {}
            for vertex, i in rank.items():
                held[vertex] = vectors[i, part].copy()
            for way in in_order(tree.root, tree.reduce, towards=True):
                arriving = held.pop(way[0])
                held[way[-1]] = held[way[-1]] + arriving if way[-1] in held else arriving
            formed = {tree.root: held[tree.root]}
            for way in in_order(tree.root, tree.broadcast, towards=False):
                formed[way[-1]] = formed[way[0]].copy()
            for vertex, values in formed.items():
                if vertex in rank:
                    result[rank[vertex], part] = values
        return result

    def link_bytes(self, problem: VectorSum) -> FloatArray:
        """(K,) bytes that every link of the network carries."""
        total, (own, union) = np.zeros(problem.network.num_links), self.sizes(problem)
        for tree in self.trees:
            sent = [(way, own[way[0]]) for way in tree.reduce]
            for way, size in (*sent, *((way, union) for way in tree.broadcast)):
                np.add.at(total, problem.network.links_of(way), float(tree.share) * size)
        return total

    def sizes(self, problem: VectorSum) -> tuple[FloatArray, float]:
        """Bytes of the whole vector: (V,) as every vertex sends it to be summed, and of the sum."""
        return np.full(problem.network.num_vertices, problem.size), problem.size

    def own_seconds(self, problem: VectorSum) -> float | None:
        """Seconds by the plan's own model, where ranks send different bytes; None: it is played."""
        return None

    def busiest_seconds(self, problem: VectorSum) -> float:
        """Seconds that the busiest link needs for its bytes: no timing of this plan is below it."""
        return float((self.link_bytes(problem) / problem.network.capacity).max(initial=0.0))


def in_order(root: int, ways: tuple[Way, ...], *, towards: bool) -> list[Way]:
    """The ways of a tree, each after those it waits for; those that never can are left out."""
    near: dict[int, list[Way]] = defaultdict(list)
    for way in ways:
        near[way[-1] if towards else way[0]].append(way)
    found, seen, stack = list[Way](), {root}, [root]
    while stack:
        for way in near[stack.pop()]:
            far = way[0] if towards else way[-1]
            if far not in seen:
                seen.add(far)
                found.append(way)
                stack.append(far)
    return found[::-1] if towards else found


def _violations_of(problem: VectorSum, tree: Tree) -> list[str]:
    network, found = problem.network, list[str]()
    taking = set(network.participants)
    if tree.share <= 0:
        found.append(f"carries {tree.share} of the vector")
    if not 0 <= tree.root < network.num_vertices or not network.sums[tree.root]:
        return [*found, f"root {tree.root} cannot add"]
    for ways, needed, towards, what in (
        (tree.reduce, problem.primitive.reduces, True, "sum"),
        (tree.broadcast, problem.primitive.broadcasts, False, "broadcast"),
    ):
        if not needed:
            found += [f"has a {what} that is not asked for"] if ways else []
            continue
        for way in ways:
            if len(way) < 2 or any(pair not in network.link for pair in pairwise(way)):
                found.append(f"way {way} is no way of the network")
            elif not all(network.forwards[v] for v in way[1:-1]):
                found.append(f"way {way} passes a vertex that does not forward")
            elif not (network.sums[way[0]] and network.sums[way[-1]]):
                found.append(f"way {way} ends at a vertex that cannot add")
        moving = [way[0] if towards else way[-1] for way in ways]
        if len(set(moving)) != len(moving) or tree.root in moving:
            found.append(f"the {what} is no tree")
        if len(in_order(tree.root, ways, towards=towards)) != len(ways):
            found.append(f"the {what} has ways that the root does not reach")
        for vertex in sorted(taking - set(moving) - {tree.root}):
            found.append(f"the {what} leaves out {network.vertices[vertex]}")
    return found


class Primitive(Enum):
    """What is promised to the n participants, ranks 0 to n - 1."""

    ALL_REDUCE = "all_reduce"  # every rank holds the sum of all vectors
    REDUCE_SCATTER = "reduce_scatter"  # rank i holds block i of n of the sum
    ALL_GATHER = "all_gather"  # every rank holds block i of rank i, for all i

    @property
    def reduces(self) -> bool:
        """Whether vectors are added."""
        return self is not Primitive.ALL_GATHER

    @property
    def broadcasts(self) -> bool:
        """Whether results go to all."""
        return self is not Primitive.REDUCE_SCATTER


@dataclass(frozen=True, eq=False)
class VectorSum:
    """What is summed over a network: `size` bytes, by which primitive.

    Attributes:
        blocks: which blocks of whose vector are not zero; None: all.
    """

    network: LinkGraph
    size: float  # bytes
    primitive: Primitive = Primitive.ALL_REDUCE
    blocks: BoolArray | None = None  # (n, B)

    def __post_init__(self) -> None:
        if not 0.0 < self.size < np.inf:
            raise InputError(f"a vector of {self.size} bytes", field="size")

    def block_of(self, rank: int) -> tuple[Fraction, Fraction]:
        """First and end, as shares of the vector, of the block that is `rank`'s own."""
        n = len(self.network.participants)
        return Fraction(rank, n), Fraction(rank + 1, n)
