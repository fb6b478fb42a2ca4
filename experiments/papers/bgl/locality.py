"""Nodes that hang together: in which order an epoch visits them, and which store holds which."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import scipy.sparse

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
def near_sequences(
    graph: Graph, training: NodeArray, sequences: Count, reach: Count, rng: np.random.Generator
) -> NodeArray:
    """(sequences, length) of near nodes; batches take from all alike, each `shifted` at random.

    Breadth-first around one random root after another, `reach` nodes each, those that do not train
    among them. The training nodes are a multiple of the sequences.

    Guarantees:
        Let K sequences divide both the training nodes and a batch. Whatever the graph and its
        labels, the expected distribution of labels in a batch is that of the training nodes, and
        the expected distance from it (total variation) is at most `label_bound`. It exceeds its
        expectation by t with a probability of at most exp(-2 K t^2) (McDiarmid).

    Source:
        The order is that of BGL (Liu et al., arXiv 2112.08541), reconstructed from its abstract;
        the guarantee and its proof (page.md) are ours.
    """
    block, step = grow(graph, reach, rng)
    turn = rng.permutation(block.max() + 1)[block[training]]
    ordered: NodeArray = training[np.lexsort((step[training], turn))]
    return ordered.reshape(sequences, -1)


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
    classes = np.arange(graph.label.max() + 1)[:, None, None]
    upto = np.cumsum(label == classes, axis=2)  # (classes, sequences, places)
    share = (upto[..., width : width + length] - upto[..., :length]) / width
    p = share.mean(axis=(1, 2))
    own = np.sqrt(share.var(axis=2).sum(axis=1)) / (2.0 * count)
    return float(own.sum()), float(np.sqrt(p * (1.0 - p) / count).sum() / 2.0)


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
def block_partition(
    graph: Graph, training: NodeArray, stores: Count, block: Count, slack: NonNegative,
    rng: np.random.Generator,
) -> NodeArray:  # fmt: skip
    """(n,) blocks grown around random roots go, the largest first, where most of their edges lead.

    The edges from a block of at most `block` nodes to a store count times what the store has left
    of its nodes and of its training nodes; a store may have `slack` more than an equal part of
    either.

    Guarantees:
        No store has more than the larger of (1 + slack) / stores and 2 / stores + s of the nodes,
        nor of the training nodes, where s is the largest sum of both shares in one block: where a
        block fits into no store it goes to the one with the least sum, which is 2 / stores at most.

    Source:
        BGL (Liu et al., arXiv 2112.08541), reconstructed from its abstract; the score is that of
        Stanton, Kliot: *Streaming Graph Partitioning for Large Distributed Graphs*, KDD 2012, for
        blocks and two balances.
    """
    own, _ = grow(graph, block, rng)
    blocks = int(own.max()) + 1
    ends = np.repeat(own, graph.degree), own[graph.neighbour]
    ones = np.ones(len(graph.neighbour), dtype=np.int32)
    links = scipy.sparse.coo_array((ones, ends), shape=(blocks, blocks)).tocsr()
    counts = [np.bincount(x, minlength=blocks) for x in (own, own[training])]
    share = np.stack([count / count.sum() for count in counts])
    most = (1.0 + slack) / stores + 1e-12
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
    return store[own].astype(np.int32)


class Isolation(NamedTuple):
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
    found = []
    for name, demand in demands.items():
        chosen = np.ones(len(STAGES))
        for (a, b), most in zip(GROUPS, units, strict=True):
            own = np.arange(1, most)
            first = demand.divided[a] / own + demand.serial[a]
            second = demand.divided[b] / (most - own) + demand.serial[b]
            chosen[a] = own[np.maximum(first, second).argmin()]
            chosen[b] = most - chosen[a]
        found.append(Isolation(name, chosen, float(demand.seconds(chosen).max())))
    return min(found, key=lambda one: one.seconds)
