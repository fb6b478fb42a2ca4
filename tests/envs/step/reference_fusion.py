"""Fusion step by step in plain Python: what the compiled code must equal, bit for bit."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from itertools import pairwise

import numpy as np

from envs.graphs.op_graph import NONE, BoolArray, FloatArray, IntArray, OpGraph, Phase
from envs.step.fusion import _heaviest_input, _template
from envs.step.merging import BALANCE
from envs.step.problem import StepProblem


def atoms(graph: OpGraph) -> IntArray:
    """(N,) atom of every operator, numbered as they are found."""
    template = _template(graph).tolist()  # always in the same phase
    colocation, mirror = graph.colocation.tolist(), graph.mirror.tolist()
    forward = (graph.phase == Phase.FORWARD).tolist()
    heaviest = _heaviest_input(graph).tolist()
    atom = [NONE] * graph.num_operators
    of_colocation = [NONE] * graph.num_groups
    count = 0
    models_first = sorted(
        range(graph.num_operators),
        key=lambda op: 2 if not forward[op] else int(template[op] != NONE),
    )
    for op in models_first:
        if colocation[op] != NONE:
            found = of_colocation[colocation[op]]
        elif template[op] != NONE and atom[template[op]] != NONE:
            found = atom[template[op]]
        elif forward[op]:
            found = NONE
        elif mirror[op] != NONE and atom[mirror[op]] != NONE:
            found = atom[mirror[op]]
        else:
            found = atom[heaviest[op]] if heaviest[op] != NONE else NONE
        if found == NONE:
            found, count = count, count + 1
        if colocation[op] != NONE:
            of_colocation[colocation[op]] = found
        atom[op] = found
    return np.array(atom, dtype=np.int64)


def arcs_of(graph: OpGraph, atom: IntArray, count: int) -> set[tuple[int, int]]:
    """Dependencies between atoms in the forward pass; atoms without a part in it: in any."""
    forward = graph.phase == Phase.FORWARD
    in_forward = np.zeros(count, dtype=np.bool_)
    in_forward[atom[forward]] = True
    edges = graph.edges
    u, v = edges[:, 0], edges[:, 1]
    kept = (forward[u] & forward[v]) | ~in_forward[atom[u]] | ~in_forward[atom[v]]
    pairs = np.unique(np.stack([atom[u[kept]], atom[v[kept]]], axis=1), axis=0)
    return {(a, b) for a, b in pairs.tolist() if a != b}


def traffic_of(problem: StepProblem, atom: IntArray) -> dict[tuple[int, int], float]:
    """Mean transfer seconds between every two atoms, each tensor once per receiving atom."""
    graph = problem.graph
    classes = problem.transfer_seconds[:, 1:]
    able = np.isfinite(classes)
    seconds = np.where(able, classes, 0.0).sum(axis=1) / np.maximum(able.sum(axis=1), 1)
    traffic: dict[tuple[int, int], float] = {}
    for tensor in range(graph.num_tensors):
        sender = int(atom[graph.producer[tensor]])
        for receiver in sorted({int(atom[op]) for op in graph.consumers(tensor)} - {sender}):
            pair = (min(sender, receiver), max(sender, receiver))
            traffic[pair] = traffic.get(pair, 0.0) + float(seconds[tensor])
    return traffic


def linear_order(num_nodes: int, arcs: set[tuple[int, int]], first: IntArray) -> list[int]:
    """All nodes, topologically where the arcs allow it, else by `first`.

    Kahn's algorithm, smallest `first` (N,) among the ready ones first. Where only nodes on or
    behind a cycle remain, the one with the smallest `first` is taken: of a co-location group that
    returns later in the graph (tied embeddings) this is the group's first appearance.
    """
    successors: list[list[int]] = [[] for _ in range(num_nodes)]
    missing = [0] * num_nodes
    for u, v in arcs:
        successors[u].append(v)
        missing[v] += 1
    key = first.tolist()
    ready = [(key[node], node) for node in range(num_nodes) if missing[node] == 0]
    heapq.heapify(ready)
    waiting = sorted((key[node], node) for node in range(num_nodes))[::-1]
    taken = [False] * num_nodes
    order: list[int] = []
    while len(order) < num_nodes:
        _, node = heapq.heappop(ready) if ready else waiting.pop()
        if taken[node]:
            continue
        taken[node] = True
        order.append(node)
        for successor in successors[node]:
            missing[successor] -= 1
            if missing[successor] == 0:
                heapq.heappush(ready, (key[successor], successor))
    return order


class Merger:
    """Nodes of an acyclic graph that can be merged as long as it stays acyclic.

    `size` (N, 2) holds each node's share of all compute and of all state; `traffic` the seconds
    that two nodes exchange, by pair (smaller node first); `order` is a linear order of the nodes,
    and the arcs against it are ignored. The order is kept topological at all times.
    """

    def __init__(
        self,
        size: FloatArray,
        traffic: Mapping[tuple[int, int], float],
        arcs: set[tuple[int, int]],
        order: list[int],
    ) -> None:
        n = len(order)
        self._size: list[list[float]] = size.tolist()
        self._slot: list[int] = list(order)  # node at each position, -1: none
        self._position = [0] * n
        for position, node in enumerate(order):
            self._position[node] = position
        self._after: list[set[int]] = [set() for _ in range(n)]
        self._before: list[set[int]] = [set() for _ in range(n)]
        for u, v in arcs:
            if self._position[u] < self._position[v]:
                self._after[u].add(v)
                self._before[v].add(u)
        self._traffic: list[dict[int, float]] = [{} for _ in range(n)]
        for (a, b), seconds in traffic.items():
            self._traffic[a][b] = seconds
            self._traffic[b][a] = seconds
        self._stamp = [0] * n  # how often the node changed; -1: merged into another
        self._members: list[list[int]] = [[node] for node in range(n)]
        self.count = n

    def merge_to(self, target: int) -> list[list[int]]:
        """The members of each remaining node, in linear order; at most `target` nodes.

        Arcs first, the most traffic per compute before all others, while no cycle arises and no
        node grows beyond `BALANCE` fair shares of compute or state. Should that not suffice, the
        smallest two neighbours of the linear order: nothing lies between them, so no path of two
        or more arcs leads from one to the other and merging them makes no cycle.
        """
        self._merge_arcs(target)
        self._merge_neighbours(target)
        return [self._members[node] for node in self._slot if node >= 0]

    def _merge_arcs(self, target: int) -> None:
        cap = BALANCE / target
        heap = [
            self._candidate(u, v)
            for u in range(len(self._after))
            for v in self._after[u]
            if self._fits(u, v, cap)
        ]
        heapq.heapify(heap)
        while heap and self.count > target:
            _, u, v, stamp_u, stamp_v = heapq.heappop(heap)
            if self._stamp[u] != stamp_u or self._stamp[v] != stamp_v:
                continue
            behind = self._behind(u, v)
            if behind is None:
                continue
            self._absorb(u, v, behind)
            for w in self._before[u]:
                if self._fits(w, u, cap):
                    heapq.heappush(heap, self._candidate(w, u))
            for w in self._after[u]:
                if self._fits(u, w, cap):
                    heapq.heappush(heap, self._candidate(u, w))

    def _merge_neighbours(self, target: int) -> None:
        chain = [node for node in self._slot if node >= 0]
        right = dict(pairwise(chain))
        left = {v: u for u, v in right.items()}
        heap = [self._neighbours(u, v) for u, v in right.items()]
        heapq.heapify(heap)
        while self.count > target:
            _, _, u, v, stamp_u, stamp_v = heapq.heappop(heap)
            if self._stamp[u] != stamp_u or self._stamp[v] != stamp_v or right.get(u) != v:
                continue
            self._absorb(u, v, set())
            following = right.pop(v, None)
            right.pop(u)
            if following is not None:
                right[u], left[following] = following, u
                heapq.heappush(heap, self._neighbours(u, following))
            if u in left:
                heapq.heappush(heap, self._neighbours(left[u], u))

    def _candidate(self, u: int, v: int) -> tuple[float, int, int, int, int]:
        compute = self._size[u][0] + self._size[v][0] + 1e-9
        score = self._traffic[u].get(v, 0.0) / compute
        return -score, u, v, self._stamp[u], self._stamp[v]

    def _neighbours(self, u: int, v: int) -> tuple[float, int, int, int, int, int]:
        size = max(a + b for a, b in zip(self._size[u], self._size[v], strict=True))
        return size, self._position[u], u, v, self._stamp[u], self._stamp[v]

    def _fits(self, u: int, v: int, cap: float) -> bool:
        pairs = zip(self._size[u], self._size[v], strict=True)
        return all(a + b <= cap or min(a, b) == 0.0 for a, b in pairs)

    def _behind(self, u: int, v: int) -> set[int] | None:
        """The successors of u placed before v, or None when one of them leads to v."""
        limit = self._position[v]
        stack = [w for w in self._after[u] if w != v and self._position[w] < limit]
        seen = set(stack)
        while stack:
            node = stack.pop()
            for w in self._after[node]:
                if w == v:
                    return None
                if self._position[w] < limit and w not in seen:
                    seen.add(w)
                    stack.append(w)
        return seen

    def _absorb(self, u: int, v: int, behind: set[int]) -> None:
        """Merge v into u. Between the two, what does not follow u moves before, `behind` after."""
        low, high = self._position[u], self._position[v]
        window = [node for node in self._slot[low + 1 : high] if node >= 0]
        before = [node for node in window if node not in behind]
        arranged = [*before, u, *(node for node in window if node in behind)]
        self._slot[low : high + 1] = arranged + [-1] * (high + 1 - low - len(arranged))
        for offset, node in enumerate(arranged):
            self._position[node] = low + offset
        for w in self._after[v]:
            self._before[w].discard(v)
            self._before[w].add(u)
        for w in self._before[v]:
            self._after[w].discard(v)
            self._after[w].add(u)
        self._after[u] = (self._after[u] | self._after[v]) - {u, v}
        self._before[u] = (self._before[u] | self._before[v]) - {u, v}
        for w, seconds in self._traffic[v].items():
            del self._traffic[w][v]
            if w != u:
                total = self._traffic[u].get(w, 0.0) + seconds
                self._traffic[u][w] = self._traffic[w][u] = total
        self._size[u] = [a + b for a, b in zip(self._size[u], self._size[v], strict=True)]
        self._members[u] += self._members[v]
        self._members[v] = []
        self._stamp[u] += 1
        self._stamp[v] = -1
        self.count -= 1


def merge(
    size: FloatArray,  # (A, 2) compute and state of every atom, any unit
    traffic: Mapping[tuple[int, int], float],  # seconds between two atoms, smaller first
    arcs: set[tuple[int, int]],
    first: IntArray,  # (A,) where each atom first appears
    max_groups: int,
) -> IntArray:
    """(A,) group of every atom, numbered in linear order of the groups; at most `max_groups`."""
    share = size / np.maximum(size.sum(axis=0), np.finfo(np.float64).tiny)
    order = linear_order(len(size), arcs, first)
    groups = Merger(share, traffic, arcs, order).merge_to(max_groups)
    group = np.empty(len(size), dtype=np.int64)
    for number, members in enumerate(groups):
        group[members] = number
    return group


def levels(graph: OpGraph, rank: IntArray) -> IntArray:
    """(N,) level of each operator; one pass over the dependencies, two with an optimizer."""
    edges = graph.edges
    edges = edges[np.argsort(edges[:, 1], kind="stable")]
    step = (rank[edges[:, 0]] > rank[edges[:, 1]]).astype(np.int64)
    arcs = list(
        zip(edges[:, 0].tolist(), edges[:, 1].tolist(), step.tolist(), strict=True)
    )  # by consumer, so that a producer's level is final when it is read

    def propagate(level: list[int]) -> IntArray:
        for u, v, up in arcs:
            level[v] = max(level[v], level[u] + up)
        return np.array(level, dtype=np.int64)

    level = propagate([0] * graph.num_operators)
    optimizer = np.flatnonzero(graph.phase == Phase.OPTIMIZER)
    if len(optimizer) == 0:
        return level
    highest = np.zeros(int(rank.max()) + 1, dtype=np.int64)
    np.maximum.at(highest, rank[optimizer], level[optimizer])
    base = np.zeros(graph.num_operators, dtype=np.int64)
    base[optimizer] = highest[rank[optimizer]]
    return propagate(base.tolist())


def fused_tensors(
    graph: OpGraph, piece: IntArray
) -> tuple[list[int], list[tuple[int, tuple[int, ...]]]]:
    """(T,) fused tensor or NONE; of every fused tensor its producer and its consumers."""
    signatures: list[tuple[int, tuple[int, ...]] | None] = []
    for tensor in range(graph.num_tensors):
        maker = int(piece[graph.producer[tensor]])
        readers = sorted({int(piece[op]) for op in graph.consumers(tensor)} - {maker})
        signatures.append((maker, tuple(readers)) if readers else None)
    known = sorted({one for one in signatures if one is not None})
    return [NONE if one is None else known.index(one) for one in signatures], known


def weight_gradient(graph: OpGraph) -> BoolArray:
    """(N,) as `OpGraph.weight_gradient`."""
    backward, part = (graph.phase == Phase.BACKWARD).tolist(), graph.micro_batch.tolist()
    mirror, pointer, users = graph.mirror.tolist(), graph.use_ptr.tolist(), graph.use_op.tolist()
    last = list(backward)
    for op in range(graph.num_operators - 1, -1, -1):
        for user in users[pointer[op] : pointer[op + 1]] if last[op] else ():
            own = mirror[op] != NONE and mirror[user] == mirror[op]
            if backward[user] and not (last[user] and (own or part[user] != part[op])):
                last[op] = False
                break
    return np.array(last, dtype=np.bool_)
