"""Fusion by its definition, as slow as that is: what the compiled code must equal, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import networkx as nx
import numpy as np

from envs.graphs.op_graph import NONE, BoolArray, FloatArray, IntArray, OpGraph, Phase
from envs.step.fusion import _heaviest_input, _template
from envs.step.merging import BALANCE
from envs.step.problem import StepProblem


def atoms(graph: OpGraph) -> IntArray:
    """(N,) atom of every operator, numbered as they are found."""
    template, heaviest = _template(graph), _heaviest_input(graph)
    forward = graph.phase == Phase.FORWARD
    atom: dict[int, int] = {}
    of_colocation: dict[int, int] = {}
    for op in np.argsort(np.where(forward, template != NONE, 2), kind="stable").tolist():
        group, new = graph.colocation[op], len(set(atom.values()))
        if group != NONE:
            atom[op] = of_colocation.setdefault(group, new)
        else:
            followed = [template[op], *([] if forward[op] else [graph.mirror[op], heaviest[op]])]
            atom[op] = next((atom[other] for other in followed if other in atom), new)
    return np.array([atom[op] for op in range(graph.num_operators)])


def arcs_of(graph: OpGraph, atom: IntArray) -> set[tuple[int, int]]:
    """Dependencies between atoms in the forward pass; atoms without a part in it: in any."""
    forward = graph.phase == Phase.FORWARD
    within = set(atom[forward].tolist())
    return {
        (atom[u], atom[v])
        for u, v, _ in graph.edges.tolist()
        if atom[u] != atom[v] and ((forward[u] and forward[v]) or not {atom[u], atom[v]} <= within)
    }


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
    """All nodes: of those that none left goes before, or else of all, that of the least `first`.

    Where only nodes on or behind a cycle remain, as where a co-location group returns later in the
    graph (tied embeddings), this is the group's first appearance.
    """
    left, order = set(range(num_nodes)), list[int]()
    while left:
        ready = left - {v for u, v in arcs if u in left}
        order.append(min(ready or left, key=lambda node: first[node]))
        left.remove(order[-1])
    return order


def merge(
    size: FloatArray,  # (A, 2) compute and state of every atom, any unit
    traffic: Mapping[tuple[int, int], float],  # seconds between two atoms, smaller first
    arcs: set[tuple[int, int]],
    first: IntArray,  # (A,) where each atom first appears
    max_groups: int,
) -> IntArray:
    """(A,) group of every atom, numbered in linear order of the groups; at most `max_groups`.

    Arcs first, the most traffic per compute before all others, while no cycle arises and no node
    grows beyond `BALANCE` fair shares of compute or state. Should that not suffice, the smallest
    two neighbours of the linear order: nothing lies between them, so no path of two or more arcs
    leads from one to the other and merging them makes no cycle. Arcs against the order are ignored.
    """
    share = (size / np.maximum(size.sum(axis=0), np.finfo(np.float64).tiny)).tolist()
    order, cap = linear_order(len(size), arcs, first), BALANCE / max_groups
    place = {node: at for at, node in enumerate(order)}
    graph = nx.DiGraph((u, v) for u, v in arcs if place[u] < place[v])
    graph.add_nodes_from(order)
    sent = {frozenset(pair): seconds for pair, seconds in traffic.items()}
    members = {node: [node] for node in order}

    def sums(u: int, v: int) -> list[float]:
        return [a + b for a, b in zip(share[u], share[v], strict=True)]

    def absorb(u: int, v: int) -> None:
        """Of what stands between, all that follows u moves behind it, the rest before."""
        begin, end, after = order.index(u), order.index(v), nx.descendants(graph, u)
        order[begin : end + 1] = sorted(
            order[begin:end], key=lambda node: 1 if node == u else 2 * (node in after)
        )
        for w in graph.nodes - {u, v}:
            if (seconds := sent.pop(frozenset((v, w)), None)) is not None:
                sent[frozenset((u, w))] = sent.get(frozenset((u, w)), 0.0) + seconds
        graph.add_edges_from((u, w) for w in graph[v])
        graph.add_edges_from((w, u) for w in graph.pred[v] if w != u)
        graph.remove_node(v)
        share[u] = sums(u, v)
        members[u] += members.pop(v)

    while len(order) > max_groups:
        behind = {node: nx.descendants(graph, node) for node in graph}
        candidates = [
            (-sent.get(frozenset((u, v)), 0.0) / (share[u][0] + share[v][0] + 1e-9), u, v)
            for u, v in graph.edges
            if not any(v in behind[w] for w in graph[u])
            and all(x <= cap or 0.0 in each
                    for x, *each in zip(sums(u, v), share[u], share[v], strict=True))
        ]  # fmt: skip
        if not candidates:
            break
        absorb(*min(candidates)[1:])
    while len(order) > max_groups:
        pairs = enumerate(pairwise(order))
        absorb(*min((max(sums(*pair)), at, pair) for at, pair in pairs)[2])
    group = np.empty(len(size), dtype=np.int64)
    for number, node in enumerate(order):
        group[members[node]] = number
    return group


def levels(graph: OpGraph, rank: IntArray) -> IntArray:
    """(N,) how often the rank falls on a path to each operator, from its base at least.

    The base of optimizer operators of one rank is the highest that this gives any of them.
    """

    def raised(level: dict[int, int]) -> dict[int, int]:
        for u, v, _ in sorted(graph.edges.tolist(), key=lambda edge: edge[1]):
            level[v] = max(level[v], level[u] + int(rank[u] > rank[v]))
        return level

    nothing = dict.fromkeys(range(graph.num_operators), 0)
    level, last = raised(dict(nothing)), np.flatnonzero(graph.phase == Phase.OPTIMIZER).tolist()
    base = {op: max(level[x] for x in last if rank[x] == rank[op]) for op in last}
    return np.array(list(raised(nothing | base).values()))


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
    backward, part, mirror = graph.phase == Phase.BACKWARD, graph.micro_batch, graph.mirror
    last = backward.copy()
    for op in reversed(range(graph.num_operators)):
        users = graph.use_op[graph.use_ptr[op] : graph.use_ptr[op + 1]]
        last[op] &= all(
            last[c] and (part[c] != part[op] or mirror[c] == mirror[op] != NONE)
            for c in users[backward[users]]
        )
    return last
