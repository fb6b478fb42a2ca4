"""Blocks of nodes that hang together, grown from random roots."""

from __future__ import annotations

import numpy as np

from envs.data_pipeline.graph import Graph, IntArray

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
            front, own = _reached(graph, block, room, front)
            steps += 1
            block[front], step[front] = own, steps
            room -= np.bincount(own, minlength=len(room))
    free = np.flatnonzero(block < 0)
    block[free] = len(room) + np.arange(len(free)) // most
    return block, step


def _reached(
    graph: Graph, block: IntArray, room: IntArray, front: IntArray
) -> tuple[IntArray, IntArray]:
    """The nodes that blocks take up next, and which does."""
    degree = graph.degree[front]
    before = np.cumsum(degree) - degree
    place = np.repeat(graph.start[front] - before, degree) + np.arange(degree.sum())
    node = graph.neighbour[place].astype(np.int64)
    own = np.repeat(block[front], degree)
    open_to = (block[node] < 0) & (room[own] > 0)
    pairs, links = np.unique(node[open_to] * len(room) + own[open_to], return_counts=True)
    node, own = np.divmod(pairs, len(room))
    best = np.lexsort((-links, node))
    best = best[np.diff(node[best], prepend=-1) > 0]
    best = best[np.lexsort((-links[best], own[best]))]
    node, own = node[best], own[best]
    fits = np.arange(len(own)) - np.searchsorted(own, own) < room[own]
    return node[fits], own[fits]
