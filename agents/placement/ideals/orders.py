"""Topological orders of the items: chains of ideals that are quick to search."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from agents.placement.ideals.items import FloatArray, IntArray, Items, Rows, topological


def orders(items: Items) -> Iterator[IntArray]:
    """Orders in which a split is likely to be good: (n,) items each, no two alike.

    As numbered; depth first, which finishes a branch before it begins the next one, from the front
    and from the back; and by the seconds before each item, which takes branches side by side.
    """
    n, arcs = items.count, items.arcs
    seen = set()
    for order in (
        np.arange(n),
        _depth_first(n, arcs),
        _depth_first(n, arcs[:, ::-1])[::-1],
        topological(n, arcs, np.argsort(np.argsort(_head(items), kind="stable"))),
    ):
        if order.tobytes() not in seen:
            seen.add(order.tobytes())
            yield np.ascontiguousarray(order, dtype=np.int64)


def _depth_first(count: int, arcs: IntArray) -> IntArray:
    """Of the items that are ready, the one that became ready last."""
    following = Rows.of(arcs[:, 0], arcs[:, 1], count)
    ptr, value = following.ptr.tolist(), following.value.tolist()
    waiting = np.bincount(arcs[:, 1], minlength=count).tolist()
    ready = [v for v in range(count - 1, -1, -1) if not waiting[v]]
    order = []
    while ready:
        v = ready.pop()
        order.append(v)
        for w in value[ptr[v] : ptr[v + 1]]:
            waiting[w] -= 1
            if not waiting[w]:
                ready.append(w)
    return np.array(order, dtype=np.int64)


def _head(items: Items) -> FloatArray:
    """(n,) the longest path, in seconds of the fastest class, that ends before each item."""
    fastest = items.seconds.min(axis=1, initial=np.inf)
    fastest = np.where(np.isfinite(fastest), fastest, 0.0)
    head = np.zeros(items.count)
    for u, v in items.arcs[np.lexsort((items.arcs[:, 1], items.arcs[:, 0]))].tolist():
        head[v] = max(head[v], head[u] + fastest[u])  # items are in topological order
    return head
