"""The best contiguous splits and lines of calls: chains first, then the whole lattice."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import cache

import highspy
import numpy as np

from agents.linear_program import LinearProgram
from agents.partition.ideals.items import Items, Rows, orders
from agents.partition.ideals.kernel import ON_HOST, Line, Work, advance, prefix_sums
from agents.partition.ideals.lattice import Ideals, all_ideals, prefixes
from envs.arrays import FloatArray, IntArray
from envs.graphs.op_graph import NONE
from envs.partition.problem import HostTraffic, MaxLoadProblem
from envs.placement.generator import toy_pipeline

_LP_SECONDS = 1.0  # the linear programs only choose prices: any of them give a bound
_PRICE_ROUNDING = 1e-9  # relative
_FREE = 1e300  # price of what can take everything
_SUM_ROUNDING = 1e-9  # relative: sums this close are the same
_ROUNDING = 2.5e-10  # relative: loads this close are the same
_NEAR = 0.005  # relative distance of bound and best at which a search tries to prove the best
_SOURCES, _SUMMED_SOURCES = 256, 64  # ideals made sources between two looks at the clock
_LISTED = 64  # room for sources in each list of `Work`, at first
_MAX_VECTORS = 63  # of counts of devices


def priced(seconds: FloatArray, price: FloatArray) -> FloatArray:
    """(n,) what items cost at least where a second of a device costs `price` (K,).

    With price y_k for a second of a device of class k, item v costs at least
    need_v = min_k y_k `seconds`[v, k], and devices that are busy for T seconds at most pay for
    T sum_k left_k y_k: hence T >= sum of need / sum of the prices of the devices left.
    """
    able = np.isfinite(seconds)
    need: FloatArray = np.where(able, price * np.where(able, seconds, 0.0), np.inf).min(axis=1)
    return need


def class_prices(seconds: FloatArray, sizes: IntArray) -> FloatArray:
    """(K,) prices under which the bound is that of splitting items freely, or equal prices.

    `seconds` (n, K) are those of items, and `sizes` (K,) the numbers of devices.
    """
    scale = float(np.where(np.isfinite(seconds), seconds, 0.0).max(initial=0.0))
    classes = len(sizes)
    if classes == 1 or scale == 0.0:
        return np.ones(classes)
    kinds, inverse = np.unique(seconds, axis=0, return_inverse=True)
    times = np.bincount(inverse.ravel(), minlength=len(kinds))
    work = np.where(np.isfinite(kinds), kinds, 0.0) * times[:, None] / scale
    program = LinearProgram()
    load = program.add_columns(1, cost=1.0)
    share = program.add_columns(kinds.shape, upper=np.where(np.isfinite(kinds), 1.0, 0.0))
    for k in range(classes):
        program.add_row([(load, float(sizes[k])), (share[:, k], -work[:, k])], lower=0.0)
    program.add_rows(len(share), [(share, 1.0)], lower=1.0, upper=1.0)
    solver = program.solver(time_limit=_LP_SECONDS)
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return np.ones(classes)
    dual = np.maximum(np.array(solver.getSolution().row_dual[:classes], dtype=np.float64), 0.0)
    return dual if dual.any() else np.ones(classes)


def price_rules(items: Items) -> tuple[FloatArray, FloatArray]:
    """(R, n) needs and (R, K) prices: of all classes, and with each left out, whose devices can
    take all items; every item must be supported somewhere.
    """
    classes, sizes = len(items.devices), items.class_sizes
    needs, prices = [], []
    for subset in (np.arange(classes), *(np.delete(np.arange(classes), k) for k in range(classes))):
        seconds = items.seconds[:, subset]
        if len(subset) and np.isfinite(seconds).any(axis=1).all():
            price = np.full(classes, _FREE)
            price[subset] = class_prices(seconds, sizes[subset])
            needs.append(priced(seconds, price[subset]))
            prices.append(price)
    return np.array(needs), np.array(prices)


@dataclass(frozen=True)
class Effort:
    """How much a search may cost: it ends at `deadline`, or once it has looked at `pairs`."""

    deadline: float  # of time.perf_counter
    pairs: int | None  # pairs of ideals in all, None: any number

    def spent(self, pairs: int) -> bool:
        """Whether the search must end."""
        if self.pairs is not None and pairs >= self.pairs:
            return True
        return time.perf_counter() >= self.deadline

    def after(self, pairs: int) -> Effort:
        """What is left when that many pairs have been looked at."""
        return self if self.pairs is None else Effort(self.deadline, self.pairs - pairs)


@dataclass(frozen=True, eq=False)
class Split:
    """Stages in a line: item i is in stage `stage[i]`, on a device of class `of_class[stage]`."""

    stage: IntArray  # (n,) NONE: on the host
    of_class: IntArray  # (stages,)
    load: float  # seconds: the largest of a stage, or the sum of the line

    def device(self, items: Items, host: int = NONE) -> IntArray:
        """(N,) device of every operator; devices of a class are taken in their order."""
        unused = [iter(members.tolist()) for members in items.devices]
        chosen = [next(unused[k]) for k in self.of_class.tolist()]
        return np.array([*chosen, host], dtype=np.int64)[self.stage][items.of]


class LineSearch:
    """Searches lines along `ideals`, a lattice or a chain, whose largest load keeps to a limit.

    With `host`, lines of calls: a call is a stage and lasts as long as its load, between calls the
    host runs items one by one, and the sum is to keep to the limit. It is the smallest that does.
    A call waits only for those it reads from, and the host runs items at the same time: the sum is
    at least the latency.

    Where there are too many vectors of counts of devices, these come in a fixed order,
    `Items.line`, the first 63 of them, and a vector says how many of them are behind; for loads,
    each may be left out.

    Args:
        items: what is divided.
        ideals: the lattice of all ideals, or the chain of one order.
        need: (R, n) what items cost at least, as `price_rules`, or (1, n) seconds of a sum.
        price: (R, K) of a second of a device.
        host: (n,) seconds of each item on the host, inf where it cannot be.
    """

    def __init__(
        self,
        items: Items,
        ideals: Ideals,
        need: FloatArray,
        price: FloatArray,
        host: FloatArray | None = None,
    ) -> None:
        self.items = items
        self.ideals = ideals
        self.pairs = 0
        compute = np.where(np.isfinite(items.seconds), items.seconds, 0.0).sum(axis=0)
        most = float((compute + items.weight.sum(axis=0)).max(initial=0.0))
        self.top = most * (1.0 + _ROUNDING)  # seconds that no load exceeds
        self.line = self._line(need, price, host)
        self._listed = _LISTED
        self._work: Work  # of the last search

    def within(self, limit: float, effort: Effort) -> tuple[Split | None, float | None]:
        """A line that keeps to `limit`, or the smallest load larger than `limit` that one may have;
        neither when the effort is spent.
        """
        line, count = self.line, self.ideals.count
        work = self._work = self._fresh()
        sources = _SUMMED_SOURCES if line.summed else _SOURCES
        for begin in range(0, count, sources):
            if effort.spent(self.pairs):
                return None, None
            advance(line, work, limit, begin, min(begin + sources, count))
            self.pairs = int(work.tally[1])
            if work.tally[2]:
                self._listed *= 4
                return self.within(limit, effort)
            if work.tally[3]:
                break
        if work.value[-1].min() < np.inf:
            return self._split(), None
        return None, float(work.above[0])

    def _line(self, need: FloatArray, price: FloatArray, host: FloatArray | None) -> Line:
        items, ideals, sizes = self.items, self.ideals, self.items.class_sizes
        n, classes = items.seconds.shape
        vectors = math.prod((sizes + 1).tolist())
        fixed = vectors > _MAX_VECTORS
        if fixed:
            stride = np.ones(classes, dtype=np.int64)
            following = items.line[None, :_MAX_VECTORS] == np.arange(classes)[:, None]
            following = np.pad(following, ((0, 0), (0, 1)))
            left = np.cumsum(following[:, ::-1], axis=1)[:, ::-1]
        else:
            stride = np.concatenate([[1], np.cumprod(sizes + 1)[:-1]]).astype(np.int64)
            left = sizes[:, None] - np.arange(vectors) // stride[:, None] % (sizes[:, None] + 1)
            following = left > 0
        unsupported = 4.0 * self.top or 1.0  # above every limit
        seconds = np.where(np.isfinite(items.seconds), items.seconds, unsupported)
        owner = np.repeat(np.arange(len(items.weight)), np.diff(items.members.ptr))
        messages = Rows.of(items.members.value, owner, n)
        total, cut, open_ptr, opened = prefix_sums(
            ideals.bits, ideals.parent, ideals.grown,
            np.concatenate([seconds, items.state[:, None], need.T], axis=1),
            messages.ptr, messages.value, items.members.ptr, items.members.value, items.weight,
        )  # fmt: skip
        ahead = (total[-1, classes + 1 :] - total[:, classes + 1 :]).T
        apart, behind = np.full((2, ideals.count), [[ideals.count], [NONE]])
        if host is None:
            apart, behind = _separation(items, ideals)
        return Line(
            ptr=ideals.ptr.astype(np.uint32),
            item=ideals.item.astype(np.uint32),
            upper=ideals.upper.astype(np.uint32),
            bits=ideals.bits,
            compute=np.ascontiguousarray(total[:, :classes]),
            cut=cut,
            held=np.ascontiguousarray(total[:, classes]),
            apart=apart,
            behind=behind,
            open_ptr=open_ptr,
            open=opened,
            capacity=items.capacity,
            member_ptr=items.members.ptr,
            member=items.members.value,
            weight=items.weight,
            stride=stride,
            following=following,
            skip=fixed and host is None,
            summed=host is not None,
            host=np.full(n, np.inf) if host is None else host,
            need=np.where(ahead > ahead[:, :1] * _PRICE_ROUNDING, ahead, 0.0).copy(order="C"),
            supply=np.maximum(price @ left, 1.0 / _FREE) / (1.0 - _PRICE_ROUNDING)
            if host is None
            else np.ones((1, left.shape[1])),
        )

    def _fresh(self) -> Work:
        """What a search writes, before it begins at the empty ideal."""
        line = self.line
        p, classes = line.compute.shape
        n, vectors = self.items.count, line.supply.shape[1]
        lists = classes, vectors, self._listed
        value = np.full((p, vectors), np.inf)
        value[0, 0] = 0.0
        outside, missing = np.zeros((2, len(line.weight)), dtype=np.int64)
        link_message, link_next = np.zeros((2, len(line.member)), dtype=np.int64)
        node, cursor, added = np.zeros((3, n + 1), dtype=np.uint32)
        path_in, path_done = np.zeros((2, n + 2, classes))
        best_value, best_state = np.zeros((2, *lists))
        return Work(
            value,
            np.zeros((p, vectors), dtype=np.int32),
            np.zeros((p, vectors), dtype=np.int8),
            np.full(p, -1, dtype=np.int32),
            outside,
            missing,
            np.full(n, -1, dtype=np.int64),
            link_message,
            link_next,
            node,
            cursor,
            added,
            path_in,
            path_done,
            best_value,
            best_state,
            np.zeros(lists, np.int64),
            np.zeros(lists[:2], np.int64),
            np.array([0, self.pairs, 0, 0]),
            np.full(1, np.inf),
        )

    def _split(self) -> Split:
        """The line that led to the ideal of all items, and its true load."""
        work, line, n = self._work, self.line, self.items.count
        ideal, vector = self.ideals.count - 1, int(self._work.value[-1].argmin())
        stage = np.full(n, NONE, dtype=np.int64)
        classes: list[int] = []
        while ideal:
            before, k = int(work.source[ideal, vector]), int(work.last[ideal, vector])
            if k >= 0:
                inside = self.ideals.holds(ideal, n) & ~self.ideals.holds(before, n)
                stage[inside] = len(classes)
                classes.append(k)
            if k != ON_HOST:  # where devices are left out, all strides are 1
                vector -= int(line.stride[max(k, 0)])
            ideal = before
        of_class = np.array(classes, dtype=np.int64)
        if line.summed:
            return Split(stage, of_class, float(work.value[-1].min()))
        stage, of_class = len(classes) - 1 - stage, of_class[::-1]
        return Split(stage, of_class, float(loads(self.items, stage, of_class).max(initial=0.0)))


def loads(items: Items, stage: IntArray, of_class: IntArray) -> FloatArray:
    """(stages,) seconds of each stage: compute, and messages that are not all inside it."""
    count = len(of_class)
    load = np.bincount(
        stage, weights=items.seconds[np.arange(items.count), of_class[stage]], minlength=count
    ).astype(np.float64)
    members = items.members
    message = np.repeat(np.arange(len(items.weight)), np.diff(members.ptr))
    pairs = np.unique(message * count + stage[members.value])
    message, end = pairs // count, pairs % count
    apart = np.bincount(message, minlength=len(items.weight))[message] > 1
    np.add.at(load, end[apart], items.weight[message[apart], of_class[end[apart]]])
    return load


def _separation(items: Items, ideals: Ideals) -> tuple[IntArray, IntArray]:
    """(P,) `apart` and `behind`.

    An ideal that is the only one of its size is comparable with all others: call these the waists
    W_0 < W_1 < ... . Let e(i) be the first waist that holds all members of every message with a
    member in W_i. An ideal inside W_i has no message in common with those that hold W_e(i).
    """
    size = np.bitwise_count(ideals.bits).sum(axis=1, dtype=np.int64)
    waist = np.flatnonzero(np.bincount(size)[size] == 1)  # ideals, ascending
    number = np.full(items.count, len(waist) - 1, dtype=np.int64)  # first waist that has the item
    for w in range(len(waist) - 1, -1, -1):
        number[ideals.holds(int(waist[w]), items.count)] = w
    first, last = np.arange(len(waist)), np.arange(len(waist))
    ptr = items.members.ptr
    if len(items.weight):
        lowest = np.minimum.reduceat(number[items.members.value], ptr[:-1])
        highest = np.maximum.reduceat(number[items.members.value], ptr[:-1])
        np.maximum.at(last, lowest, highest)
    last = np.maximum(np.maximum.accumulate(last), first)
    around = np.searchsorted(waist, np.arange(ideals.count))  # first waist not below the ideal
    within = np.searchsorted(waist, np.arange(ideals.count), side="right") - 1
    settled = np.searchsorted(last, within, side="right") - 1  # last i with e(i) <= within
    apart = waist[last[around]]
    behind = np.where(settled >= 0, waist[np.maximum(settled, 0)], -1)
    return apart.astype(np.int64), behind.astype(np.int64)


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
    lower = float(items.seconds.min(axis=1).max(initial=0.0))
    if lower == np.inf:
        return LoadResult(None, lower, pairs, whole=False)
    need, price = rules = price_rules(items)
    bound = float(need[0].sum() / (price[0] @ items.class_sizes))
    lower = max(lower, bound * (1.0 - _PRICE_ROUNDING))
    for order in orders(items):
        search = LineSearch(items, prefixes(order), *rules)
        best, _ = improve(search, best, lower, effort.after(pairs))
        pairs += search.pairs
    lattice = None if search.line.skip else all_ideals(items, ideals)
    if lattice is None:
        return LoadResult(best, lower, pairs, whole=False)
    search = LineSearch(items, lattice, *rules)
    best, lower = improve(search, best, lower, effort.after(pairs))
    return LoadResult(best, lower * (1.0 - _ROUNDING), pairs + search.pairs, whole=True)


def improve(
    search: LineSearch, best: Split | None, lower: float, effort: Effort
) -> tuple[Split | None, float]:
    """The best split of a search and a bound on all of them, equal when it is proved.

    No load is below the bound by more than `_ROUNDING`, relative.
    `best`, when given, is one to be improved on, and `lower` a bound that is known. Without any
    split the bound is inf: there is none.
    """
    prove = True  # try just below the best: it is the best of all, or a better one is found
    while lower <= search.top if best is None else lower < best.load * (1.0 - _ROUNDING):
        if best is None:
            limit = min(search.top, max(2.0 * lower, search.top / 1024.0))
        elif prove:
            limit = best.load * (1.0 - _ROUNDING)
        else:
            limit = 0.5 * (best.load + lower)
        found, refused = search.within(limit, effort)
        if found is not None:
            best, prove = found, False
        elif refused is None:
            return best, lower
        else:
            lower = max(lower, refused)
            prove = best is not None and best.load - lower < _NEAR * best.load
    if best is None:
        return None, np.inf
    return best, best.load


def shortest_calls(
    items: Items, host: FloatArray, ideals: int, effort: Effort
) -> tuple[Split | None, int]:
    """The line of calls with the smallest sum, as `best_split`; also the pairs of ideals looked at.

    `host` (n,) are the seconds of the items on the host, which is not one of the items' devices.
    """
    best: Split | None = None
    fastest = np.minimum(items.seconds.min(axis=1), host)
    need = np.where(np.isfinite(fastest), fastest, 0.0)[None, :]
    upper, pairs = np.inf, 0
    for lattice in (*map(prefixes, orders(items)), all_ideals(items, ideals)):
        if lattice is not None:
            search = LineSearch(items, lattice, need, np.ones((1, len(items.devices))), host)
            found, _ = search.within(upper * (1.0 - _SUM_ROUNDING), effort.after(pairs))
            best, upper = (best, upper) if found is None else (found, found.load)
            pairs += search.pairs
    return best, pairs


@cache
def compile_kernels() -> None:
    """Have the kernels compiled, once on a machine, before a clock starts."""
    step = toy_pipeline()
    arcs = MaxLoadProblem(step, contiguous=True).precedence
    items = Items.build(step, arcs, HostTraffic.of(step, NONE), np.arange(len(step.capacity)))
    best_split(items, 8, Effort(np.inf, None))
    shortest_calls(items, np.ones(items.count), 8, Effort(np.inf, None))
