"""The best contiguous splits and lines of calls: chains first, then the whole lattice."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from agents.partition.ideals.items import Items, orders
from agents.partition.ideals.kernel import Line, Work, next_above
from agents.partition.ideals.lattice import Ideals, all_ideals, prefixes
from agents.partition.ideals.search import ROUNDING, Effort, LoadSearch, Split, Supply, supplies
from envs.arrays import BoolArray, FloatArray, IntArray
from envs.compilation import compiled, compiled_inner
from envs.graphs.op_graph import NONE
from envs.partition.problem import HostTraffic, MaxLoadProblem
from envs.placement.generator import toy_pipeline

_SOURCES = 64  # ideals made sources between two looks at the clock
_ROUNDING = 1e-9  # relative: sums this close are the same
_ON_HOST = -2  # in the place of a class


def _smallest_sum(
    items: Items, host: FloatArray, ideals: Ideals, upper: float, effort: Effort
) -> tuple[IntArray | None, float, int]:
    """(n,) accelerator of each item, NONE on the host, of the line with the smallest sum.

    A call is a stage on an accelerator and lasts as long as its load; between calls the host runs
    items one by one. A call waits only for those it reads from, and the host runs items at the same
    time: the sum is at least the latency.

    Args:
        items: what is divided, for accelerators alone.
        host: (n,) seconds of each item on the host, inf where it cannot be.
        ideals: the lattice of all ideals, or the chain of one order.
        upper: what the sum is to be smaller than.
        effort: when to stop.

    Returns:
        Also that sum, and the pairs looked at; None, and `upper`, when none is smaller than `upper`
        or the effort is spent.
    """
    fastest = np.minimum(items.seconds.min(axis=1), host)
    least = Supply(
        need=np.where(np.isfinite(fastest), fastest, 0.0)[None, :],
        price=np.full((1, len(items.devices)), np.inf),
        bound=0.0,
    )
    search = LoadSearch(items, ideals, least)
    line, work = search.line, search.fresh()
    rest = line.need[0]  # (P,) seconds that what is outside takes at least
    value = np.full(work.source.shape, np.inf)
    value[0, 0] = 0.0
    limit = upper * (1.0 - _ROUNDING)
    for begin in range(0, len(value), _SOURCES):
        if effort.spent(int(work.tally[1])):
            return None, upper, int(work.tally[1])
        end = min(begin + _SOURCES, len(value))
        _advance(line, work, search.vectors.following, host, rest, value, limit, begin, end)
    pairs, best = int(work.tally[1]), float(value[-1].min())
    if best > limit:
        return None, upper, pairs
    chosen = np.full(items.count, NONE, dtype=np.int64)
    unused = [iter(members.tolist()) for members in items.devices]
    ideal, vector = ideals.count - 1, int(value[-1].argmin())
    while ideal:  # follow the line back
        before, k = int(work.source[ideal, vector]), int(work.last[ideal, vector])
        if k != _ON_HOST:
            inside = ideals.holds(ideal, items.count) & ~ideals.holds(before, items.count)
            chosen[inside] = next(unused[k])
            vector -= int(line.stride[k])
        ideal = before
    return chosen, best, pairs


@compiled
def _advance(
    line: Line,
    work: Work,
    following: BoolArray,  # (K, S) whether a device of the class may come next
    host: FloatArray,  # (n,) seconds
    rest: FloatArray,  # (P,) seconds
    value: FloatArray,  # (P, S) in and out: the smallest sum that holds the ideal
    limit: float,
    begin: int,
    end: int,
) -> None:
    """Make the ideals begin..end-1 sources, in turn."""
    classes, vectors = following.shape
    least = np.empty(classes)
    for i in range(begin, end):
        useful = False
        for k in range(classes):
            least[k] = np.inf
            for s in range(vectors):
                if following[k, s]:
                    least[k] = min(least[k], value[i, s])
            useful |= least[k] + rest[i] <= limit
        for c in range(line.ptr[i], line.ptr[i + 1]):
            for s in range(vectors):
                total = value[i, s] + host[line.item[c]]
                if total < value[line.upper[c], s]:
                    value[line.upper[c], s] = total
                    work.source[line.upper[c], s], work.last[line.upper[c], s] = i, _ON_HOST
        if useful:
            _push(line, work, following, rest, value, limit, i, least)


@compiled_inner
def _push(
    line: Line,
    work: Work,
    following: BoolArray,
    rest: FloatArray,
    value: FloatArray,
    limit: float,
    i: int,
    least: FloatArray,  # (K,) the smallest sum from which a device of the class may come next
) -> None:
    """Reach from ideal i all that one call leads to, unless the sum must exceed the limit."""
    depth = next_above(line, work, i, len(rest), -1, False)
    while depth >= 0:
        j = work.node[depth + 1]
        alive = False
        for k in range(len(least)):
            floor = line.compute[j, k] - line.compute[i, k] + work.path_in[depth + 1, k]
            too_large = line.held[j] - line.held[i] > line.capacity[k]
            if too_large or least[k] + floor + rest[j] > limit:
                continue
            alive = True
            load = floor + line.cut[j, k] - line.cut[i, k] + work.path_done[depth + 1, k]
            if least[k] + load + rest[j] > limit:
                continue
            for s in range(following.shape[1]):
                if following[k, s] and value[i, s] + load < value[j, s + line.stride[k]]:
                    value[j, s + line.stride[k]] = value[i, s] + load
                    work.source[j, s + line.stride[k]], work.last[j, s + line.stride[k]] = i, k
        depth = next_above(line, work, i, len(rest), depth, alive)


@dataclass(frozen=True, eq=False)
class LoadResult:
    """The best split found, and what is known about all others."""

    split: Split | None
    lower: float  # seconds: no split has a smaller largest load; inf: there is none
    pairs: int  # pairs of ideals looked at
    whole: bool  # whether the whole lattice was searched, not only chains


def best_split(items: Items, ideals: int, effort: Effort) -> LoadResult:
    """The split of `items` with the smallest largest load.

    Splits along four orders give an upper bound. If there are at most `ideals` ideals, and devices
    need not come in a fixed order, the search of the lattice then ends with the optimum, unless
    `effort` ends it earlier; the bound holds in any case.
    """
    best: Split | None = None
    pairs = 0
    supply = supplies(items)
    lower = supply.bound
    for order in orders(items):
        search = LoadSearch(items, prefixes(order), supply)
        best, _ = search.improve(best, lower, effort.after(pairs))
        pairs += search.pairs
    lattice = None if search.vectors.fixed else all_ideals(items, ideals)
    if lattice is None:
        return LoadResult(best, lower, pairs, whole=False)
    search = LoadSearch(items, lattice, supply)
    best, lower = search.improve(best, lower, effort.after(pairs))
    return LoadResult(best, lower * (1.0 - ROUNDING), pairs + search.pairs, whole=True)


def shortest_calls(
    items: Items, host: FloatArray, ideals: int, effort: Effort
) -> tuple[IntArray | None, int]:
    """(n,) accelerator of each item, NONE on the host, of the line of calls with the smallest sum.

    As `best_split`; also the pairs of ideals looked at.

    `host` (n,) are the seconds of the items on the host, which is none of the items' devices.
    """
    best: IntArray | None = None
    upper, pairs = np.inf, 0
    for lattice in (*map(prefixes, orders(items)), all_ideals(items, ideals)):
        if lattice is not None:
            left = effort.after(pairs)
            found, upper, more = _smallest_sum(items, host, lattice, upper, left)
            best = best if found is None else found
            pairs += more
    return best, pairs


@cache
def compile_kernels() -> None:
    """Have the kernels compiled, once on a machine, before a clock starts."""
    step = toy_pipeline()
    arcs = MaxLoadProblem(step, contiguous=True).precedence
    items = Items.build(step, arcs, HostTraffic.of(step, NONE), np.arange(len(step.capacity)))
    best_split(items, 8, Effort(np.inf, None))
    shortest_calls(items, np.ones(items.count), 8, Effort(np.inf, None))
