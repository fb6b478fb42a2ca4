"""Merge the nodes of an acyclic graph into few balanced groups without ever making a cycle."""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np

from envs.arrays import BoolArray, FloatArray, IntArray
from envs.compilation import compiled, compiled_inner
from envs.graphs.op_graph import NONE

BALANCE = 2.0  # a merged node may hold this many times its fair share


@compiled
def linear_order(arcs: IntArray, first: IntArray) -> IntArray:
    """(A,) all nodes, topologically where `arcs` (E, 2) allow it, else by `first` (A,).

    Kahn's algorithm, smallest `first` among the ready ones first. Where only nodes on or
    behind a cycle remain, the one with the smallest `first` is taken: of a co-location group that
    returns later in the graph (tied embeddings) this is the group's first appearance.
    """
    n = len(first)
    ptr, missing = np.zeros(n + 1, np.int64), np.zeros(n, np.int64)
    for e in range(len(arcs)):
        ptr[arcs[e, 0] + 1] += 1
        missing[arcs[e, 1]] += 1
    for u in range(n):
        ptr[u + 1] += ptr[u]
    fill, successor = ptr.copy(), np.empty(len(arcs), dtype=np.int64)
    for e in range(len(arcs)):
        successor[fill[arcs[e, 0]]] = arcs[e, 1]
        fill[arcs[e, 0]] += 1
    ready = [(first[u], u) for u in range(n) if missing[u] == 0]
    heapq.heapify(ready)
    waiting = [(first[u], u) for u in range(n)]
    heapq.heapify(waiting)
    taken, order, count = np.zeros(n, np.bool_), np.empty(n, np.int64), 0
    while count < n:
        node = heapq.heappop(ready if ready else waiting)[1]
        if taken[node]:
            continue
        taken[node] = True
        order[count] = node
        count += 1
        for k in range(ptr[node], ptr[node + 1]):
            missing[successor[k]] -= 1
            if missing[successor[k]] == 0:
                heapq.heappush(ready, (first[successor[k]], successor[k]))
    return order


def merge(
    size: FloatArray,  # (A, 2) compute and state of every atom, any unit
    pairs: IntArray,  # (P, 2) two different atoms, the smaller first, each pair once
    seconds: FloatArray,  # (P,) what they exchange
    arcs: IntArray,  # (E, 2) dependencies between different atoms
    first: IntArray,  # (A,) where each atom first appears
    max_groups: int,
) -> IntArray:
    """(A,) group of every atom, numbered in linear order of the groups; at most `max_groups`.

    Arcs against the linear order are ignored. Arcs are merged first, the most traffic per compute
    before all others, while no cycle arises and no node grows beyond `BALANCE` fair shares of
    compute or state. Should that not suffice, the smallest two neighbours of the linear order:
    nothing lies between them, so no path of two or more arcs leads from one to the other and
    merging them makes no cycle.
    """
    count = len(size)
    share = size / np.maximum(size.sum(axis=0), np.finfo(np.float64).tiny)
    order = linear_order(arcs, first)
    position = np.empty(count, np.int64)
    position[order] = np.arange(count)
    along = np.sort(arcs[position[arcs[:, 0]] < position[arcs[:, 1]]], axis=1)
    codes = np.concatenate([pairs, along]) @ np.array([count, 1])
    known, bond = np.unique(codes, return_inverse=True)
    bonds = len(known)
    weight, arc = np.zeros(bonds), np.zeros(bonds, np.bool_)
    weight[bond[: len(pairs)]] = seconds
    arc[bond[len(pairs) :]] = True
    nodes = _Nodes(
        size=share,
        slot=order,
        position=position,
        stamp=np.zeros(count, np.int64),
        into=np.arange(count),
        head=np.full(count, NONE, dtype=np.int64),
        tail=np.full(count, NONE, dtype=np.int64),
        mark=np.full(count, NONE, dtype=np.int64),
        met=np.zeros(count, np.int64),
        search=np.zeros(1, np.int64),
        stack=np.empty(count, np.int64),
        end=np.stack([known // count, known % count], axis=1).reshape(-1),
        following=np.full(2 * bonds, NONE, dtype=np.int64),
        seconds=weight,
        arc=arc,
        alive=np.ones(bonds, np.bool_),
    )
    group: IntArray = _merge(nodes, max_groups)
    return group


class _Nodes(NamedTuple):
    """Nodes and their bonds: two nodes with traffic or an arc, which leads to the later one.

    The order of the nodes is kept topological at all times. Bond r has two ends, 2 r and 2 r + 1;
    a node lists its own, those of bonds that are no longer alive among them.
    """

    size: FloatArray  # (A, 2) share of all compute and of all state
    slot: IntArray  # (A,) node at each position, NONE: none
    position: IntArray  # (A,)
    stamp: IntArray  # (A,) how often the node changed; NONE: merged into another
    into: IntArray  # (A,) the node it was merged into, or itself
    head: IntArray  # (A,) the first end in its list, or NONE
    tail: IntArray  # (A,) and the last
    mark: IntArray  # (A,) NONE between calls: the bond with the node that absorbs
    met: IntArray  # (A,) the last search that met it
    search: IntArray  # (1,) number of the present search
    stack: IntArray  # (A,) scratch
    end: IntArray  # (2 R,) node at each end
    following: IntArray  # (2 R,) the next end in its node's list, or NONE
    seconds: FloatArray  # (R,) traffic
    arc: BoolArray  # (R,) it is an arc too
    alive: BoolArray  # (R,)


_Candidate = tuple[float, int, int, int, int]


@compiled
def _merge(nodes: _Nodes, target: int) -> IntArray:
    count = len(nodes.size)
    for e in range(len(nodes.end)):
        _append(nodes, nodes.end[e], e)
    count = _merge_arcs(nodes, count, target)
    _merge_neighbours(nodes, count, target)
    group, number = np.empty(len(nodes.size), dtype=np.int64), 0
    for node in nodes.slot:
        if node != NONE:
            group[node] = number
            number += 1
    for node in range(len(group)):
        root = node
        while nodes.into[root] != root:
            nodes.into[root] = nodes.into[nodes.into[root]]
            root = nodes.into[root]
        group[node] = group[root]
    return group


@compiled_inner
def _append(nodes: _Nodes, node: int, end: int) -> None:
    nodes.following[end] = NONE
    if nodes.head[node] == NONE:
        nodes.head[node] = end
    else:
        nodes.following[nodes.tail[node]] = end
    nodes.tail[node] = end


@compiled_inner
def _merge_arcs(nodes: _Nodes, count: int, target: int) -> int:
    cap = BALANCE / target
    heap = [(0.0, NONE, NONE, NONE, NONE)]
    heap.clear()
    for r in range(len(nodes.arc)):
        if nodes.arc[r]:
            _offer(nodes, heap, r, cap)
    while heap and count > target:
        _, u, v, stamp_u, stamp_v = heapq.heappop(heap)
        if nodes.stamp[u] != stamp_u or nodes.stamp[v] != stamp_v or not _bypass(nodes, u, v):
            continue
        _absorb(nodes, u, v)
        count -= 1
        e = nodes.head[u]
        while e != NONE:
            if nodes.alive[e // 2] and nodes.arc[e // 2]:
                _offer(nodes, heap, e // 2, cap)
            e = nodes.following[e]
    return count


@compiled_inner
def _offer(nodes: _Nodes, heap: list[_Candidate], bond: int, cap: float) -> None:
    """Push an arc unless its nodes are too large together."""
    size, u, v = nodes.size, nodes.end[2 * bond], nodes.end[2 * bond + 1]
    if nodes.position[u] > nodes.position[v]:
        u, v = v, u
    for k in range(2):
        if size[u, k] + size[v, k] > cap and min(size[u, k], size[v, k]) != 0.0:
            return
    score = nodes.seconds[bond] / (size[u, 0] + size[v, 0] + 1e-9)
    heapq.heappush(heap, (-score, u, v, nodes.stamp[u], nodes.stamp[v]))


@compiled_inner
def _merge_neighbours(nodes: _Nodes, count: int, target: int) -> None:
    size, stamp, position = nodes.size, nodes.stamp, nodes.position
    left, right = np.full(len(size), NONE), np.full(len(size), NONE)
    heap = [(0.0, NONE, NONE, NONE, NONE, NONE)]
    heap.clear()
    last = NONE
    for node in nodes.slot:
        if node != NONE:
            if last != NONE:
                left[node], right[last] = last, node
                most = max(size[last, 0] + size[node, 0], size[last, 1] + size[node, 1])
                heap.append((most, position[last], last, node, stamp[last], stamp[node]))
            last = node
    heapq.heapify(heap)
    while count > target:
        _, _, u, v, stamp_u, stamp_v = heapq.heappop(heap)
        if stamp[u] != stamp_u or stamp[v] != stamp_v:
            continue
        nodes.search[0] += 1
        _absorb(nodes, u, v)
        count -= 1
        right[u] = right[v]
        if right[u] != NONE:
            left[right[u]] = u
        for a, b in ((u, right[u]), (left[u], u)):
            if NONE not in (a, b):
                most = max(size[a, 0] + size[b, 0], size[a, 1] + size[b, 1])
                heapq.heappush(heap, (most, position[a], a, b, stamp[a], stamp[b]))


@compiled_inner
def _bypass(nodes: _Nodes, u: int, v: int) -> bool:
    """False: some path of two or more arcs leads from u to v.

    Else it has met those between them in the order that u leads to.
    """
    position, met, stack = nodes.position, nodes.met, nodes.stack
    nodes.search[0] += 1
    search = nodes.search[0]
    limit = position[v]
    stack[0] = u
    height = 1
    while height:
        height -= 1
        node = stack[height]
        e = nodes.head[node]
        while e != NONE:
            w, r = nodes.end[e ^ 1], e // 2
            e = nodes.following[e]
            if not (nodes.alive[r] and nodes.arc[r] and position[w] > position[node]):
                continue
            if w == v and node != u:
                return False
            if position[w] < limit and met[w] != search:
                met[w] = search
                stack[height] = w
                height += 1
    return True


@compiled_inner
def _absorb(nodes: _Nodes, u: int, v: int) -> None:
    """Merge v into u. Of those between, what the last search met moves behind, the rest before."""
    position, slot, stack, mark = nodes.position, nodes.slot, nodes.stack, nodes.mark
    low, high = position[u], position[v]
    at, later = low, 0
    for p in range(low + 1, high):
        node = slot[p]
        if node == NONE:
            continue
        if nodes.met[node] == nodes.search[0]:
            stack[later] = node
            later += 1
        else:
            slot[at], position[node] = node, at
            at += 1
    slot[at], position[u] = u, at
    for i in range(later):
        slot[at + 1 + i], position[stack[i]] = stack[i], at + 1 + i
    slot[at + 1 + later : high + 1] = NONE
    e = nodes.head[u]
    nodes.head[u] = nodes.tail[u] = NONE
    while e != NONE:
        after = nodes.following[e]
        if nodes.alive[e // 2]:
            mark[nodes.end[e ^ 1]] = e // 2
            _append(nodes, u, e)
        e = after
    mine = nodes.tail[u]
    e = nodes.head[v]
    while e != NONE:
        after, w, r = nodes.following[e], nodes.end[e ^ 1], e // 2
        if nodes.alive[r]:
            if w == u:
                nodes.alive[r] = False
            elif mark[w] != NONE:
                nodes.seconds[mark[w]] += nodes.seconds[r]
                nodes.arc[mark[w]] |= nodes.arc[r]
                nodes.alive[r] = False
            else:
                nodes.end[e] = u
                _append(nodes, u, e)
        e = after
    e = nodes.head[u]
    while e != NONE:
        mark[nodes.end[e ^ 1]] = NONE
        e = NONE if e == mine else nodes.following[e]
    for k in range(2):
        nodes.size[u, k] += nodes.size[v, k]
    nodes.stamp[u] += 1
    nodes.stamp[v] = NONE
    nodes.into[v] = u
