"""Which store holds which node: by a hash, by METIS, or block after block."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse

from agents.data_pipeline.blocks import grow
from envs.bounds import Count, NonNegative, bounded
from envs.data_pipeline.graph import Graph, NodeArray


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
        share = np.stack((
            np.bincount(block, minlength=blocks) / graph.nodes,
            np.bincount(block[training], minlength=blocks) / len(training),
        ))  # fmt: skip
        most = (1.0 + self.slack) / stores + 1e-12
        store, held = np.full(blocks, -1), np.zeros((2, stores))
        for b in np.argsort(-share[0], kind="stable"):
            near = store[links.indices[links.indptr[b] : links.indptr[b + 1]]]
            weight = links.data[links.indptr[b] : links.indptr[b + 1]]
            led = np.bincount(near[near >= 0], weight[near >= 0], minlength=stores)
            after = held + share[:, b, None]
            fits = (after <= most).all(axis=0)
            if fits.any():
                # where no edge leads anywhere, to the emptiest
                score = (led + 1e-6) * np.prod(1.0 - held / most, axis=0)
                store[b] = np.where(fits, score, -1.0).argmax()
            else:
                store[b] = held.sum(axis=0).argmin()
            held[:, store[b]] += share[:, b]
        return store[block].astype(np.int32)
