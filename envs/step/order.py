"""Order rules: from a placement to one topological permutation of the operators.

The orders that a plan may have, by name (`ORDERS`), are pipeline schedules carried over to any
placement of any graph. `Rule` says what each of them is; `envs.step.price` finds the best.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Protocol

import numpy as np

from envs.arrays import IntArray
from envs.compilation import compiled, compiled_inner
from envs.errors import InputError, require_one_of
from envs.graphs.op_graph import OpGraph, Phase


class Rule(IntEnum):
    """How an order is worked out from a placement.

    Stages, depths and micro-batches are those of `OneFOneB`; S is the number of stages, p that of
    devices in use. The first three sort by a key. The others are what a dynamic runtime
    (`envs.step.ready`) makes of a ranking: of that of 1F1B, all weight gradients behind all else,
    or of the longest path to the end of the step; a device begins a micro-batch when it has run all
    backward operators of the one that many before, the window, so that no more are under way.
    """

    GPIPE = 0  # all forward before all backward: m + s, M + S + m + r
    ONE_F_ONE_B = 1
    INTERLEAVED = 2  # in rounds of p micro-batches, the stages of a device in turn
    WINDOW_S = 3  # weight gradients last, S micro-batches under way, as many as in 1F1B
    WINDOW_2S = 4  # likewise, 2 S - 1
    WINDOW_MORE = 5  # likewise, S + 1
    READY = 6  # the ranking of 1F1B, any number under way
    DEFERRED = 7  # weight gradients last, any number under way
    CRITICAL = 8  # the longest path first, any number under way
    WINDOW_HALF = 9  # weight gradients last, half of S under way
    WINDOW_ONE = 10  # the ranking of 1F1B, one under way


_RULES = {
    "gpipe": (Rule.GPIPE,),
    "one_f_one_b": (Rule.ONE_F_ONE_B,),
    "interleaved": (Rule.INTERLEAVED,),
    "zb_h1": (Rule.WINDOW_S,),
    "zb_h2": (Rule.WINDOW_2S,),
    "zb_v": (Rule.WINDOW_S,),  # on placements whose stages come back the way they went
    "dualpipe_v": (Rule.WINDOW_MORE,),  # likewise
    "free": (
        Rule.ONE_F_ONE_B, Rule.READY, Rule.DEFERRED, Rule.CRITICAL, Rule.WINDOW_HALF,
        Rule.WINDOW_ONE,
    ),
}  # fmt: skip
ORDERS = tuple(_RULES)  # with `free` a plan may have any topological order
DEFERRING = ("zb_h1", "zb_h2", "zb_v", "dualpipe_v", "free")  # run weight gradients later


def checked_orders(orders: Sequence[str]) -> tuple[str, ...]:
    """`orders`, each a name of `ORDERS`.

    Raises:
        InputError: it has none, or another name.
    """
    if isinstance(orders, str) or not orders:
        raise InputError(f"a list of at least one of {', '.join(ORDERS)} is needed", field="orders")
    for order in orders:
        require_one_of(order, ORDERS, field="orders")
    return tuple(orders)


def rules_of(orders: Sequence[str], micro_batches: int) -> tuple[Rule, ...]:
    """The rules behind some `ORDERS`, 1F1B first; those that are one with a micro-batch once."""
    same = {Rule.GPIPE: Rule.ONE_F_ONE_B, Rule.INTERLEAVED: Rule.ONE_F_ONE_B}
    same |= {rule: Rule.DEFERRED for rule in Rule if rule.name.startswith("WINDOW")}
    found = [rule for order in orders for rule in _RULES[order]]
    found.sort(key=lambda rule: rule != Rule.ONE_F_ONE_B)  # of equals it needs the least memory
    return tuple(dict.fromkeys(same.get(r, r) if micro_batches == 1 else r for r in found))


class OrderRule(Protocol):
    """Gives agents that only place their order."""

    def __call__(self, graph: OpGraph, device: IntArray) -> IntArray:
        """(N,) operators, first to last, for the placement `device` (N,)."""


class TopologicalOrder:
    """The graph's own numbering, whatever the placement."""

    def __call__(self, graph: OpGraph, device: IntArray) -> IntArray:
        """(N,) 0..N-1."""
        return np.arange(graph.num_operators)


class OneFOneB:
    """The one-forward-one-backward priority of pipeline schedules, for any placement.

    The stage s of a forward operator is the largest number of device changes on a path of forward
    operators that ends in it; S is the number of stages. The depth r of a backward or optimizer
    operator is the same count over backward and optimizer operators. Micro-batch m runs at

        forward: 2 m + s         backward: 2 m + S + r         optimizer: as the last micro-batch

    and operators of equal key run by stage (depth), then in the graph's order. On a chain of S
    stages, r = S - 1 - s on the way back, so forward keys of a stage have the parity of s, backward
    keys the other one: after S - s warm-up forwards a stage alternates, which is 1F1B
    (PipeDream-Flush, Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", 2021,
    section 3.2).

    The result is topological for every graph in which no backward operator feeds a forward one
    of the same or an earlier micro-batch: along an edge within a phase neither m nor s (or r)
    falls, and 2 m + s <= 2 m + S - 1 < 2 m + S + r across. Where a graph breaks the premise, (key,
    depth) is raised along its edges, which changes nothing elsewhere.
    """

    def __call__(self, graph: OpGraph, device: IntArray) -> IntArray:
        """(N,) operators, first to last."""
        key, depth, by_depth, order = np.empty((4, graph.num_operators), dtype=np.int64)
        sort_by_key(
            int(Rule.ONE_F_ONE_B), np.ascontiguousarray(device, dtype=np.int64), graph.phase,
            graph.micro_batch, graph.num_micro_batches, graph.use_ptr, graph.use_op, key, depth,
            by_depth, order,
        )  # fmt: skip
        return order


@compiled
def sort_by_key(
    rule: int,  # one of the first three
    device: IntArray,  # (N,)
    phase: IntArray,  # (N,)
    micro_batch: IntArray,  # (N,)
    num_micro_batches: int,
    use_ptr: IntArray,  # (N + 1,)
    use_op: IntArray,  # (C,)
    key: IntArray,  # (N,) scratch
    depth: IntArray,  # (N,) scratch
    by_depth: IntArray,  # (N,) scratch
    order: IntArray,  # (N,) out
) -> int:
    """The order of a `Rule` that sorts by a key, and the number of stages.

    Two passes over the uses and two counting sorts.

    Interleaved: in rounds of p micro-batches a device runs its first stage for all of them, then
    its second one, and so on (Narayanan et al., "Efficient large-scale language model training on
    GPU clusters using Megatron-LM", SC 2021, section 2.2). Micro-batch m of stage s is number
    k = (m // p) S + (s // p) p + m % p on its device, with S rounded up to whole rounds; the keys
    are 2 k + s % p, and for backward operators as much more as makes the first of them follow
    the last stage's first forward one.
    """
    n = len(device)
    depth[:] = 0
    stages = 1
    highest = 0
    for i in range(n):
        forward = phase[i] == Phase.FORWARD
        here = device[i]
        highest = max(highest, here)
        if forward:
            stages = max(stages, depth[i] + 1)
        for k in range(use_ptr[i], use_ptr[i + 1]):
            c = use_op[k]
            if (phase[c] == Phase.FORWARD) == forward:
                reach = depth[i] + (1 if device[c] != here else 0)
                depth[c] = max(depth[c], reach)
    last = num_micro_batches - 1
    if rule == Rule.INTERLEAVED:
        used = np.zeros(highest + 1, np.bool_)
        for i in range(n):
            used[device[i]] = True
        width = used.sum()
        rounds = -(-stages // width)
        behind = 2 * (rounds - 1) * width + width
        for i in range(n):
            m = micro_batch[i] if micro_batch[i] >= 0 else last
            s = depth[i]
            number = m // width * (rounds * width) + s // width * width + m % width
            key[i] = 2 * number + s % width + (0 if phase[i] == Phase.FORWARD else behind)
    else:
        twice = 2 if rule == Rule.ONE_F_ONE_B else 1
        behind = stages if rule == Rule.ONE_F_ONE_B else last + stages
        for i in range(n):
            m = micro_batch[i] if micro_batch[i] >= 0 else last
            key[i] = twice * m + depth[i] + (0 if phase[i] == Phase.FORWARD else behind)
    for i in range(n):  # where the premise is broken, raise (key, depth) along the edges
        mine, deep = key[i], depth[i]
        for k in range(use_ptr[i], use_ptr[i + 1]):
            c = use_op[k]
            if key[c] < mine:
                key[c], depth[c] = mine, deep
            elif key[c] == mine and depth[c] < deep:
                depth[c] = deep
    _counting_sort(depth, order, by_depth, True)
    _counting_sort(key, by_depth, order, False)
    return stages


@compiled_inner
def _counting_sort(key: IntArray, items: IntArray, result: IntArray, natural: bool) -> None:
    """`result` = `items`, or 0..N-1 if `natural`, stably sorted by their non-negative `key`."""
    top = 0
    for i in range(len(key)):
        top = max(top, key[i])
    count = np.zeros(top + 2, np.int64)
    for i in range(len(key)):
        count[key[i] + 1] += 1
    for j in range(top + 1):
        count[j + 1] += count[j]
    for i in range(len(key)):
        item = i if natural else items[i]
        result[count[key[item]]] = item
        count[key[item]] += 1
