"""Eight stages that bring sampled neighbourhoods to GPUs: what each takes for a batch.

Stores hold the graph and the features, a partition each; one machine of GPUs trains, with a cache
of features that they share. Stages work on different batches at the same time, so a batch comes out
whenever the slowest stage has done one: throughput is the least over the stages.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated

import numpy as np
import scipy.sparse
from annotated_types import Ge, Gt
from numpy.typing import NDArray

from envs.arrays import BoolArray, FloatArray, IntArray, sums_before
from envs.bounds import Count, NonNegative, Positive, Share, bounded
from envs.compilation import unchecked
from envs.errors import InputError
from envs.files import read_content
from envs.heap import pop, push
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
        upto = sums_before(np.minimum(weight, most))
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
        for word, name in zip(words, fields, strict=False):
            if not (word.isascii() and word.isdigit()) or int(word[:18]) > _LARGEST:
                fault = f"{word[:40]!r} is no whole number below 2^31"
                raise InputError(fault, file=path, record=where, field=name)
    raise InputError("holds no line of two whole numbers", file=path)


POLICIES = ("none", "static", "fifo", "lru", "lfu")


@dataclass(frozen=True, eq=False)
class Requests:
    """Every node that a batch needs, once, in the order in which it was found."""

    node: NodeArray  # (R,)
    parent: NodeArray  # (R,) of whose neighbours it was; of seeds themselves
    hop: NodeArray  # (R,) 0 for seeds
    sampled: NodeArray  # (R,) edges sampled from it
    offset: IntArray  # (batches + 1,) where each batch begins


def sample(
    graph: Graph, order: NodeArray, batch: int, fanouts: Sequence[int], seed: int
) -> Requests:
    """Batches of `batch` seeds in a row; of each node found at hop h, fanouts[h] neighbours."""
    rng, fan = np.random.default_rng(seed), np.asarray(fanouts, dtype=np.int64)
    seen = np.full(graph.nodes, -1, dtype=np.int32)
    rows = np.empty((3, graph.nodes), dtype=np.int32)  # node, parent, hop
    found: list[NodeArray] = []
    for number, first in enumerate(range(0, len(order), batch)):
        seeds = order[first : first + batch]
        rows[:, : len(seeds)] = seeds, seeds, np.zeros_like(seeds)
        state = rng.integers(0, 2**63, dtype=np.uint64)
        end = _expand(graph.start, graph.neighbour, fan, number, seen, rows, len(seeds), state)
        found.append(rows[:, :end].copy())
    node, parent, hop = np.concatenate(found, axis=1)
    sampled = np.minimum(graph.degree[node], np.append(fan, 0)[hop]).astype(np.int32)
    return Requests(node, parent, hop, sampled, np.cumsum([0, *(x.shape[1] for x in found)]))


@unchecked
def _expand(
    start: IntArray, neighbour: NodeArray, fanouts: IntArray, batch: int, seen: NodeArray,
    rows: NodeArray, count: int, state: np.uint64,
) -> int:  # fmt: skip
    """How many `rows` there are in the end, of which `count` are there.

    Distinct neighbours by Floyd's method, from a linear congruential generator of 64 bits.
    """
    for v in rows[0, :count]:
        seen[v] = batch
    chosen = np.empty(fanouts.max(), dtype=np.int64)
    at = 0
    while at < count and rows[2, at] < len(fanouts):
        v, hop = rows[0, at], rows[2, at]
        degree = start[v + 1] - start[v]
        take = min(degree, fanouts[hop])
        for j in range(take):
            pick = np.int64(j)
            if take < degree:
                top = degree - take + j
                state = state * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
                pick = np.int64((state >> np.uint64(33)) % np.uint64(top + 1))
                for earlier in chosen[:j]:
                    if earlier == pick:
                        pick = top
                        break
                chosen[j] = pick
            u = neighbour[start[v] + pick]
            if seen[u] != batch:
                seen[u] = batch
                rows[0, count], rows[1, count], rows[2, count] = u, v, hop + 1
                count += 1
        at += 1
    return count


def hits(policy: str, graph: Graph, requested: NodeArray, capacity: int) -> BoolArray:
    """(R,) whether each request is a hit, in a cache of `capacity` rows that begins empty.

    `static` holds the nodes of highest degree from the start, of equals the first. The others take
    up every row that is missed; when full they drop the row that came first (`fifo`), was not used
    for longest (`lru`), or was used least often since it came, of equals the one not used for
    longest (`lfu`).
    """
    if policy == "static":
        cached = np.zeros(graph.nodes, dtype=np.bool_)
        cached[np.argsort(-graph.degree, kind="stable")[:capacity]] = True
        return cached[requested]
    if policy == "none" or capacity == 0:
        return np.zeros(len(requested), dtype=np.bool_)
    found: BoolArray = _replay(requested, graph.nodes, capacity, policy != "fifo", policy == "lfu")
    return found


@unchecked
def _replay(
    requested: NodeArray, nodes: int, capacity: int, renews: bool, counts: bool
) -> BoolArray:
    """The row of least rank goes: when it came, or what a hit `renews` it to, its last use.

    What `counts` uses ranks by them first. The heap has every row by the rank that it had when it
    was last looked at.
    """
    found = np.zeros(len(requested), dtype=np.bool_)
    rank = np.full(nodes, -1.0)  # -1: not cached
    known, row, size = np.empty(capacity), np.empty(capacity, dtype=np.int64), 0
    for at in range(len(requested)):
        v = requested[at]
        found[at] = rank[v] >= 0.0
        if found[at]:
            if renews:
                rank[v] = at + (rank[v] // len(requested) + counts) * len(requested)
            continue
        while size == capacity:
            rank_known, first = known[0], row[0]
            size = pop(known, row, size)
            if rank[first] == rank_known:
                rank[first] = -1.0
            else:
                size = push(known, row, size, rank[first], first)
        rank[v] = at
        size = push(known, row, size, at, v)
    return found


STAGES = (
    "sample", "gather", "network", "convert", "copy structure", "cache", "copy features", "train",
)  # fmt: skip
# Stages that share a resource, in the order of `Machines.units`: cores of a store, cores of the
# machine that trains, shares of its PCIe.
GROUPS = ((0, 1), (3, 5), (4, 6))
_ID = 8  # bytes of a node's number; an edge has two


@bounded
@dataclass(frozen=True)
class Machines:
    """What there is, and what work costs; seconds are those of one core."""

    gpus: Count = 8
    train_s: Positive = 2.2e-08  # of one GPU, for each sampled edge
    store_cores: Annotated[int, Ge(2)] = 4  # of each store
    worker_cores: Annotated[int, Ge(2)] = 32  # of the machine of GPUs
    pcie_shares: Annotated[int, Ge(2)] = 16  # that PCIe is divided into
    pcie: Positive = 50000000000.0  # bytes/s, all GPUs together
    nic: Positive = 12500000000.0  # bytes/s, of a store and of the machine that trains
    feature_bytes: Count = 512  # of a node
    edge_s: NonNegative = 1e-07  # sampling an edge
    request_s: NonNegative = 1e-05  # answering another store that asks for the neighbours of a node
    row_s: NonNegative = 5e-07  # gathering the features of a node
    convert_s: NonNegative = 1e-07  # numbering the nodes of an edge anew
    lookup_s: NonNegative = 1e-07  # looking up a row in the cache, on any core
    # giving a row its place in the cache, one row after another
    update_s: Mapping[str, NonNegative] = field(
        default_factory=lambda: {"fifo": 1e-08, "lru": 1e-07, "lfu": 1e-07}
    )  # by policy: the row's place in line, one after another

    @property
    def units(self) -> tuple[int, int, int]:
        return self.store_cores, self.worker_cores, self.pcie_shares


@dataclass(frozen=True, eq=False)
class Demand:
    """Seconds of each stage for a batch: divided[s] / units of s + serial[s].

    The figures are the `hit_ratio`, `crossing`, the share of the nodes found by sampling that
    another store has to expand, `crossing_bytes` between stores and `missed_bytes` of features.
    """

    divided: FloatArray  # (8,)
    serial: FloatArray  # (8,)
    figures: Mapping[str, float]

    def seconds(self, units: FloatArray) -> FloatArray:
        """(8,) of every stage, with so many units of its resource (8,)."""
        found: FloatArray = self.divided / units + self.serial
        return found


def demand(
    machines: Machines, requests: Requests, policy: str, hit: BoolArray, part: NodeArray
) -> Demand:
    """What the batches of `requests` ask of the stages, where store part[v] holds node v.

    A node that was found at a node of another store is expanded there: a request, and an answer
    with the neighbours. GPUs train on as many batches at a time, a round; the stores' work of a
    round is that of the busiest store.
    """
    m, batches, stores = machines, len(requests.offset) - 1, int(part.max()) + 1
    home = part[requests.node]
    turn = np.repeat(np.arange(batches) // m.gpus, np.diff(requests.offset))

    def by_store(weight: NDArray[np.generic]) -> FloatArray:
        """(rounds, stores)"""
        found = np.bincount(turn * stores + home, weight, (turn[-1] + 1) * stores)
        return found.reshape(-1, stores).astype(np.float64)

    def busiest(load: FloatArray) -> float:
        return float(load.max(axis=1).sum() / batches)

    inner = (requests.hop > 0) & (requests.hop < requests.hop.max())
    crossing = inner & (home != part[requests.parent])
    edges, rows = by_store(requests.sampled), by_store(~hit)
    answers = _ID * by_store((requests.sampled + 1) * crossing)
    all_edges, missed = edges.sum() / batches, rows.sum() / batches
    structure, features = 2.0 * _ID * all_edges, m.feature_bytes * missed
    sent = busiest(2.0 * _ID * edges + m.feature_bytes * rows + answers)
    copied = m.pcie_shares / m.pcie  # seconds of a byte, on one share
    looked_up = len(hit) / batches if policy != "none" else 0.0
    touched = missed if policy == "fifo" else looked_up  # a hit leaves the order of FIFO alone
    divided = [
        busiest(m.edge_s * edges + m.request_s * by_store(crossing)), busiest(m.row_s * rows), 0.0,
        m.convert_s * all_edges, copied * structure, m.lookup_s * looked_up, copied * features, 0.0,
    ]  # fmt: skip
    network = max(sent, structure + features) / m.nic
    update = m.update_s.get(policy, 0.0) * touched
    serial = [0.0, 0.0, network, 0.0, 0.0, update, 0.0, m.train_s * all_edges / m.gpus]
    figures = {
        "hit_ratio": hit.mean(),
        "crossing": crossing.sum() / max(inner.sum(), 1),
        "crossing_bytes": answers.sum() / batches,
        "missed_bytes": features,
    }
    return Demand(np.array(divided), np.array(serial), figures)


def equal_shares(machines: Machines) -> FloatArray:
    """(8,) units of each stage where the two that share a resource have a half, the first more."""
    units = np.ones(len(STAGES))
    for (a, b), most in zip(GROUPS, machines.units, strict=True):
        units[a], units[b] = (most + 1) // 2, most // 2
    return units
