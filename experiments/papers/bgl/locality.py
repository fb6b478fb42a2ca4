"""Nodes that hang together: in which order an epoch visits them, and which store holds which."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import scipy.sparse

from agents.linear_program import LinearProgram
from envs.arrays import FloatArray, IntArray
from envs.bounds import Count, NonNegative, bounded
from experiments.papers.bgl.pipeline import GROUPS, STAGES, Demand, Graph, NodeArray

_ROUNDS = 8  # of roots, until what is left has no room beside it


def grow(graph: Graph, most: int, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
    """(n,) the block of each node, at most `most` nodes each, and at which step it was reached.

    Breadth-first from all roots at once: a node goes to the block with the most edges to it, of
    those that reach it and have room. What no block with room reaches gets roots of its own, and
    what is left after some rounds of that is divided as it is numbered.
    """
    block, step = np.full(graph.nodes, -1), np.zeros(graph.nodes, dtype=np.int64)
    room = np.zeros(0, dtype=np.int64)
    steps = 0
    for _ in range(_ROUNDS):
        free = np.flatnonzero(block < 0)
        front = rng.choice(free, -(-len(free) // most), replace=False)
        block[front] = len(room) + np.arange(len(front))
        room = np.append(room, np.full(len(front), most - 1))
        while len(front):
            degree = graph.degree[front]
            begin = np.repeat(graph.start[front] - np.cumsum(degree) + degree, degree)
            node = graph.neighbour[begin + np.arange(degree.sum())].astype(np.int64)
            own = np.repeat(block[front], degree)
            open_to = (block[node] < 0) & (room[own] > 0)
            pairs, links = np.unique(node[open_to] * len(room) + own[open_to], return_counts=True)
            node, own = np.divmod(pairs, len(room))
            best = np.lexsort((-links, node))
            best = best[np.diff(node[best], prepend=-1) > 0]
            best = best[np.lexsort((-links[best], own[best]))]
            node, own = node[best], own[best]
            fits = np.arange(len(own)) - np.searchsorted(own, own) < room[own]
            front, own = node[fits], own[fits]
            steps += 1
            block[front], step[front] = own, steps
            room -= np.bincount(own, minlength=len(room))
    free = np.flatnonzero(block < 0)
    block[free] = len(room) + np.arange(len(free)) // most
    return block, step


@bounded
@dataclass(frozen=True)
class ProximityOrder:
    """Sequences of near nodes; batches take from all alike, each `shifted` by a random number.

    Guarantees:
        Let K sequences divide both the training nodes and a batch. Whatever the graph and its
        labels, the expected distribution of labels in a batch is that of the training nodes, and
        the expected distance from it (total variation) is at most `label_bound`. It exceeds its
        expectation by t with a probability of at most exp(-2 K t^2) (McDiarmid).

    Source:
        The order is that of BGL (Liu et al., arXiv 2112.08541), reconstructed from its abstract;
        the guarantee and its proof (page.md) are ours.
    """

    sequences: Count
    reach: Count  # nodes around one root, those that do not train among them

    def near(self, graph: Graph, training: NodeArray, rng: np.random.Generator) -> NodeArray:
        """(sequences, length) breadth-first around one random root after another.

        The training nodes are a multiple of the sequences.
        """
        block, step = grow(graph, self.reach, rng)
        turn = rng.permutation(block.max() + 1)[block[training]]
        ordered: NodeArray = training[np.lexsort((step[training], turn))]
        return ordered.reshape(self.sequences, -1)


def shifted(sequences: NodeArray, shift: IntArray) -> NodeArray:
    """The first of every sequence, then the second, ..., where each begins at its `shift`."""
    places = (np.arange(sequences.shape[1]) + shift[:, None]) % sequences.shape[1]
    return np.take_along_axis(sequences, places, axis=1).T.ravel()


def label_distance(graph: Graph, order: NodeArray, batch: int) -> FloatArray:
    """(batches,) total variation between the labels of a batch and those of all of `order`."""
    label = graph.label[order].reshape(-1, batch, 1) == np.arange(graph.label.max() + 1)
    found: FloatArray = np.abs(label.mean(axis=1) - label.mean(axis=(0, 1))).sum(axis=1) / 2.0
    return found


def label_bound(graph: Graph, sequences: NodeArray, batch: int) -> tuple[float, float]:
    """What the expected distance of a batch is at most: of these sequences, and of any.

    Windows of sequence k that begin at a random place have the variance var_kc <= p_kc (1 - p_kc)
    in the share of class c. By Jensen's inequality E TV <= sum_c sqrt(sum_k var_kc) / 2K, and by
    another of Jensen's that is at most sum_c sqrt(p_c (1 - p_c) / K) / 2.
    """
    count, length = sequences.shape
    width, label = batch // count, np.pad(graph.label[sequences], ((0, 0), (1, batch)), "wrap")
    own = any_order = 0.0
    for c in range(int(graph.label.max()) + 1):
        upto = np.cumsum(label == c, axis=1)
        share = (upto[:, width : width + length] - upto[:, :length]) / width
        own += float(np.sqrt(share.var(axis=1).sum())) / (2.0 * count)
        p = float(share.mean())
        any_order += float(np.sqrt(p * (1.0 - p) / count)) / 2.0
    return own, any_order


def hash_partition(graph: Graph, stores: int) -> NodeArray:
    """(n,) by the node's number alone, mixed (Knuth's multiplicative hash)."""
    mixed = np.arange(graph.nodes, dtype=np.uint64) * np.uint64(2654435761) % np.uint64(2**32)
    return (mixed * np.uint64(stores) >> np.uint64(32)).astype(np.int32)


def metis_partition(graph: Graph, stores: int) -> NodeArray:
    """(n,) few edges cut between stores with about equally many nodes: METIS, k-way.

    Raises:
        ModuleNotFoundError: pymetis is not installed.
    """
    import pymetis

    whole = pymetis.CSRAdjacency(graph.start, graph.neighbour)
    return np.asarray(pymetis.part_graph(stores, whole, recursive=False)[1], dtype=np.int32)


@bounded
@dataclass(frozen=True)
class BlockPartition:
    """Blocks grown around random roots go, the largest first, where most of their edges lead.

    The edges from a block to a store count times what the store has left of its nodes and of its
    training nodes; a store may have `slack` more than an equal part of either.

    Guarantees:
        No store has more than the larger of (1 + slack) / stores and 2 / stores + s of the nodes,
        nor of the training nodes, where s is the largest sum of both shares in one block: where a
        block fits into no store it goes to the one with the least sum, which is 2 / stores at most.

    Source:
        BGL (Liu et al., arXiv 2112.08541), reconstructed from its abstract; the score is that of
        Stanton, Kliot: *Streaming Graph Partitioning for Large Distributed Graphs*, KDD 2012, for
        blocks and two balances.
    """

    block: Count  # nodes
    slack: NonNegative

    def __call__(
        self, graph: Graph, training: NodeArray, stores: int, rng: np.random.Generator
    ) -> NodeArray:
        """(n,) the store of each node."""
        block, _ = grow(graph, self.block, rng)
        blocks = int(block.max()) + 1
        ends = np.repeat(block, graph.degree), block[graph.neighbour]
        ones = np.ones(len(graph.neighbour), dtype=np.int32)
        links = scipy.sparse.coo_array((ones, ends), shape=(blocks, blocks)).tocsr()
        counts = [np.bincount(x, minlength=blocks) for x in (block, block[training])]
        share = np.stack([count / count.sum() for count in counts])
        most = (1.0 + self.slack) / stores + 1e-12
        store, held = np.full(blocks, -1), np.zeros((2, stores))
        for b in np.argsort(-share[0], kind="stable"):
            row = slice(links.indptr[b], links.indptr[b + 1])
            near, weight = store[links.indices[row]], links.data[row]
            led = np.bincount(near[near >= 0], weight[near >= 0], minlength=stores)
            fits = (held + share[:, b, None] <= most).all(axis=0)
            # where no edge leads to any, to the emptiest
            score = np.where(fits, (led + 1e-6) * np.prod(1.0 - held / most, axis=0), -1.0)
            store[b] = score.argmax() if fits.any() else held.sum(axis=0).argmin()
            held[:, store[b]] += share[:, b]
        return store[block].astype(np.int32)


@dataclass(frozen=True, eq=False)
class Isolation:
    """The cache that was chosen, the units of every stage (8,), and the seconds of the slowest."""

    cache: str
    units: FloatArray
    seconds: float


def enumerated(demands: Mapping[str, Demand], units: tuple[int, ...]) -> Isolation:
    """The least time of the slowest stage over the caches and all ways to divide what is shared.

    Guarantees:
        Optimal: resources are independent of one another once the cache is chosen, so that every
        way to divide one resource is looked at by itself.

    Source:
        BGL (Liu et al., arXiv 2112.08541) isolates resources by such a program; its stages and
        formulas are reconstructed.
    """
    best = Isolation("", np.ones(len(STAGES)), np.inf)
    for name, demand in demands.items():
        chosen = np.ones(len(STAGES))
        for (a, b), most in zip(GROUPS, units, strict=True):
            own = np.arange(1, most)
            first = demand.divided[a] / own + demand.serial[a]
            second = demand.divided[b] / (most - own) + demand.serial[b]
            chosen[a] = own[np.maximum(first, second).argmin()]
            chosen[b] = most - chosen[a]
        seconds = float(demand.seconds(chosen).max())
        if seconds < best.seconds:
            best = Isolation(name, chosen, seconds)
    return best


def integer_program(demands: Mapping[str, Demand], units: tuple[int, ...]) -> Isolation:
    """What `enumerated` finds, by HiGHS: a binary for every cache, stage and number of units.

    min t subject to t >= sum time z for every stage, one z of every stage for the cache chosen,
    and sum units z <= all units for every resource.
    """
    most = [1] * len(STAGES)
    for group, all_of_it in zip(GROUPS, units, strict=True):
        most[group[0]] = most[group[1]] = all_of_it - 1
    program = LinearProgram()
    slowest = program.add_columns(1, cost=1.0)
    cache = program.add_columns(len(demands), upper=1.0, integer=True)
    program.add_row([(cache, 1.0)], lower=1.0, upper=1.0)
    z = [[program.add_columns(n, upper=1.0, integer=True) for n in most] for _ in demands]
    for s in range(len(STAGES)):
        own = np.arange(1, most[s] + 1)
        terms = [
            (z[o][s], demand.divided[s] / own + demand.serial[s])
            for o, demand in enumerate(demands.values())
        ]
        program.add_row([*terms, (slowest, -1.0)], upper=0.0)
        for o in range(len(demands)):
            program.add_row([(z[o][s], 1.0), (cache[o], -1.0)], lower=0.0, upper=0.0)
    for group, all_of_it in zip(GROUPS, units, strict=True):
        used = [(row[s], np.arange(1, most[s] + 1)) for row in z for s in group]
        program.add_row(used, upper=float(all_of_it))
    solver = program.solver(time_limit=60.0)
    solver.setOptionValue("mip_rel_gap", 0.0)
    solver.run()
    value = np.array(solver.getSolution().col_value)
    chosen = int(value[cache].argmax())
    found = np.array([value[z[chosen][s]].argmax() + 1.0 for s in range(len(STAGES))])
    name = list(demands)[chosen]
    return Isolation(name, found, float(demands[name].seconds(found).max()))
