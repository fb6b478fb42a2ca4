"""Graphs to learn on: generated with power-law degrees and communities, or from a list of edges."""

from __future__ import annotations

import io
import re
import warnings
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

import numpy as np
import scipy.sparse
from annotated_types import Gt
from numpy.typing import NDArray

from envs.arrays import IntArray
from envs.bounds import Count, Share, bounded
from envs.errors import InputError
from envs.files import read_content
from envs.memory import require_memory

NodeArray = NDArray[np.int32]
_BYTES = 80  # in memory, for each edge, while a graph is built
_LARGEST = 2**31 - 1
_DRAWN = 16  # edges drawn for each that there is to be, at most: the others are there already


@dataclass(frozen=True, eq=False)
class Graph:
    """Undirected, without loops and repeats: node v has neighbour[start[v] : start[v + 1]]."""

    start: IntArray  # (n + 1,)
    neighbour: NodeArray  # (2 edges,)
    label: NodeArray  # (n,) the class of each node, from 0

    @property
    def nodes(self) -> int:
        return len(self.start) - 1

    @cached_property
    def degree(self) -> IntArray:
        return np.diff(self.start)


def graph_of(ends: IntArray, label: NodeArray) -> Graph:
    """Of edges (2, m), each in one direction or in both; loops and repeats fall out."""
    ends = ends[:, ends[0] != ends[1]].astype(np.int32)
    pairs = np.concatenate(ends), np.concatenate(ends[::-1])
    ones = np.ones(len(pairs[0]), dtype=np.int8)
    found = scipy.sparse.coo_array((ones, pairs), shape=(len(label), len(label))).tocsr()
    return Graph(found.indptr.astype(np.int64), found.indices, label)


@bounded
@dataclass(frozen=True)
class GeneratedGraph:
    """Chung and Lu's random graph of power-law degrees, with planted communities of equal size.

    Both ends of an edge are drawn by the nodes' weights, the second one with the chance `mixing`
    from all nodes, otherwise from the first one's community. A community has one class; with one
    community every node draws its own. (Chung, Lu, PNAS 2002; Karrer, Newman, PRE 2011.)
    """

    nodes: Count = 200000
    edges: Count = 2000000  # between groups
    exponent: Annotated[float, Gt(1.0)] = 2.5  # of the law of degrees
    communities: Count = 1000  # of equal size, each of one class
    mixing: Share = 0.1  # share of edges that may lead anywhere
    classes: Count = 20  # of links

    def draw(self, rng: np.random.Generator) -> Graph:
        """A graph with exactly so many edges; nodes are numbered at random.

        Raises:
            InputError: there is no room for so many edges, or no memory.
        """
        n = self.nodes
        if self.communities > n:
            raise InputError("there are more communities than nodes", field="communities")
        no_room = InputError(f"{n} nodes have no room for {self.edges} edges", field="edges")
        if self.edges > n * (n - 1) // 4:
            raise no_room
        require_memory(_BYTES * (self.edges + n), f"a graph of {self.edges} edges", field="edges")
        community = np.arange(n) * self.communities // n
        first = np.searchsorted(community, np.arange(self.communities + 1))
        weight = (1.0 - rng.random(n)) ** (-1.0 / (self.exponent - 1.0))
        # cut off where two nodes of a community would expect more than one edge between them
        most = weight.sum() / np.sqrt(2.0 * self.edges * self.communities)
        upto = np.append(0.0, np.cumsum(np.minimum(weight, most)))
        keys, spent = np.zeros(0, dtype=np.int64), 0
        while (left := self.edges - len(keys)) > 0:
            drawn = np.sort(rng.random(left + left // 8 + 8)) * upto[-1]  # in order: found sooner
            a = np.searchsorted(upto, drawn, "right") - 1
            own, anywhere = community[a], rng.random(len(a)) < self.mixing
            low = np.where(anywhere, 0.0, upto[first[own]])
            high = np.where(anywhere, upto[-1], upto[first[own + 1]])
            drawn = low + rng.random(len(a)) * (high - low)
            b = np.minimum(np.searchsorted(upto, drawn, "right") - 1, n - 1)
            keys = np.append(keys, (np.minimum(a, b) * n + np.maximum(a, b))[a != b])
            keys.sort()  # np.unique hashes, which takes ten times as long
            keys = keys[np.diff(keys, prepend=-1) > 0]
            spent += len(drawn)
            if spent > _DRAWN * self.edges + 1000:
                raise no_room
        surplus = rng.choice(len(keys), len(keys) - self.edges, replace=False, shuffle=False)
        keys = np.delete(keys, surplus)
        label = community if self.communities > 1 else rng.integers(0, self.classes, n)
        order = rng.permutation(n)
        ends = np.argsort(order)[np.stack(np.divmod(keys, n))]
        return graph_of(ends, (label % self.classes)[order].astype(np.int32))


def read_graph(edges: str | Path, labels: str | Path | None) -> Graph:
    """A graph of lines `node node`, with the classes of lines `node class`; without: all are 0.

    Plain or gzip; what follows # or % is a comment. Nodes are whole numbers below 2^31, which are
    numbered anew in their order; edges may stand in one direction or in both.

    Raises:
        InputError: naming file, line and field.
    """
    names, ends = np.unique(_pairs(edges, ("node", "node")), return_inverse=True)
    label = np.zeros(len(names), dtype=np.int32)
    if labels is not None:
        node, own = _pairs(labels, ("node", "class"))
        if not np.array_equal(np.sort(node), names):
            fault = "does not name each node of the edges once, and no other"
            raise InputError(fault, file=labels, field="node")
        label[np.searchsorted(names, node)] = own
    return graph_of(ends.reshape(2, -1), label)


def _pairs(path: str | Path, fields: tuple[str, str]) -> IntArray:
    """(2, lines) whole numbers; only a file with a fault is looked at line by line."""
    content = read_content(path)
    try:
        with warnings.catch_warnings(action="error"):  # of a file without numbers
            found = np.loadtxt(io.BytesIO(content), np.int64, comments=["#", "%"], ndmin=2)
        if found.shape[1:] == (2,) and found.min() >= 0 and found.max() <= _LARGEST:
            return np.ascontiguousarray(found.T)
    except (ValueError, OverflowError, UserWarning):
        pass
    for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), start=1):
        words, where = re.split("[#%]", line)[0].split(), f"line {number}"
        if len(words) not in {0, 2}:
            fault = f"has {len(words)} words, not {' '.join(fields)}"
            raise InputError(fault, file=path, record=where)
        for word, field in zip(words, fields, strict=False):
            if not (word.isascii() and word.isdigit()) or int(word[:18]) > _LARGEST:
                fault = f"{word[:40]!r} is no whole number below 2^31"
                raise InputError(fault, file=path, record=where, field=field)
    raise InputError("holds no line of two whole numbers", file=path)
