"""The smallest largest load of a contiguous split, by bisection over `kernel`."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import highspy
import numpy as np

from agents.linear_program import LinearProgram
from agents.partition.ideals.items import Items, Rows
from agents.partition.ideals.kernel import Line, Work, advance, prefix_sums
from agents.partition.ideals.lattice import Ideals
from envs.arrays import BoolArray, FloatArray, IntArray

_LP_SECONDS = 1.0  # the linear programs only choose prices: any of them give a bound
_ROUNDING = 1e-9  # relative


@dataclass(frozen=True, eq=False)
class Supply:
    """R pricings of the K classes, each a bound on the load of every placement.

    With price y_k for a second of a device of class k, item v costs at least
    need_v = min_k y_k seconds[v, k], and devices that are busy for T seconds at most pay for
    T sum_k left_k y_k: hence T >= sum of need / sum of the prices of the devices left.
    """

    need: FloatArray  # (R, n)
    price: FloatArray  # (R, K), inf: any device of the class can take all items
    bound: float  # seconds: for all items and devices

    def of(self, left: IntArray) -> FloatArray:
        """(R, S) priced devices for S vectors of devices `left` (K, S)."""
        finite = np.where(np.isfinite(self.price), self.price, 0.0) @ left
        free = np.isinf(self.price) @ left > 0
        return np.where(free, np.inf, finite)


def supplies(items: Items) -> Supply:
    """Prices from linear programs over all classes, and with each class left out."""
    classes = items.seconds.shape[1]
    subsets = [np.arange(classes)] + [np.delete(np.arange(classes), k) for k in range(classes)]
    needs, prices = [], []
    for subset in subsets:
        if not len(subset) or not np.isfinite(items.seconds[:, subset]).any(axis=1).all():
            continue
        price = np.full(classes, np.inf)
        price[subset] = class_prices(items.seconds[:, subset], items.class_sizes[subset])
        with np.errstate(invalid="ignore"):
            paid = np.where(np.isfinite(items.seconds), items.seconds * price, np.inf)[:, subset]
        needs.append(paid.min(axis=1))
        prices.append(price)
    supply = Supply(
        np.array(needs).reshape(len(needs), items.count),
        np.array(prices).reshape(len(prices), classes),
        float(items.seconds.min(axis=1).max(initial=0.0)),
    )
    for need, left in zip(supply.need, supply.of(items.class_sizes[:, None])[:, 0], strict=True):
        bound = float(need.sum() / left) * (1.0 - _ROUNDING)
        supply = Supply(supply.need, supply.price, max(supply.bound, bound))
    return supply


def class_prices(seconds: FloatArray, sizes: IntArray) -> FloatArray:
    """(K,) prices under which the bound is that of splitting items freely, or equal prices."""
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


ROUNDING = 2.5e-10  # relative: loads this close are the same
_NEAR = 0.005  # relative distance of bound and best at which a search tries to prove the best
_SOURCES = 256  # ideals made sources between two looks at the clock
_LISTED = 64  # room for sources in each list of `Work`, at first
_MAX_VECTORS = 63  # vectors of counts of devices are bits of one word


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

    stage: IntArray  # (n,)
    of_class: IntArray  # (stages,)
    load: float  # seconds: the largest of a stage

    def device(self, items: Items) -> IntArray:
        """(N,) device of every operator; devices of a class are taken in their order."""
        unused = [iter(members.tolist()) for members in items.devices]
        chosen = [next(unused[k]) for k in self.of_class.tolist()]
        return np.array(chosen, dtype=np.int64)[self.stage][items.of]


@dataclass(frozen=True, eq=False)
class Vectors:
    """What devices a line of stages may have used: S vectors of counts per class.

    Where there are too many vectors, devices come in a fixed order, `Items.line`, the first 63 of
    them, and a vector says how many of them are behind; each may be left out.
    """

    left: IntArray  # (K, S) devices of each class that are left
    stride: IntArray  # (K,) what one more device adds to a vector's number
    following: BoolArray  # (K, S) whether a device of the class may come next
    fixed: bool

    @classmethod
    def of(cls, items: Items) -> Vectors:
        """The vectors for the devices of `items`."""
        sizes = items.class_sizes
        count = math.prod((sizes + 1).tolist())
        if count <= _MAX_VECTORS:
            stride = np.concatenate([[1], np.cumprod(sizes + 1)[:-1]]).astype(np.int64)
            left = sizes[:, None] - np.arange(count) // stride[:, None] % (sizes[:, None] + 1)
            return cls(left, stride, left > 0, fixed=False)
        line = items.line()[:_MAX_VECTORS]
        following = line[None, :] == np.arange(len(sizes))[:, None]
        following = np.pad(following, ((0, 0), (0, 1)))
        left = np.cumsum(following[:, ::-1], axis=1)[:, ::-1]
        return cls(left, np.ones(len(sizes), dtype=np.int64), following, fixed=True)


class LoadSearch:
    """Searches splits along `ideals`, a lattice or a chain, for ever smaller loads.

    Args:
        items: what is divided.
        ideals: the lattice of all ideals, or the chain of one order.
        supply: bounds for the items.
    """

    def __init__(self, items: Items, ideals: Ideals, supply: Supply) -> None:
        self.items = items
        self.ideals = ideals
        self.pairs = 0
        self.top = _top(items)
        self.supply = supply
        self.vectors = Vectors.of(items)
        self.line = _line(items, ideals, self.supply, self.vectors, self.top)
        self.listed = _LISTED
        self.work: Work  # of the last search

    def improve(
        self, split: Split | None, lower: float, effort: Effort
    ) -> tuple[Split | None, float]:
        """The best split along the ideals and a bound on all of them, equal when it is proved.

        No load is below the bound by more than `ROUNDING`, relative.
        `split`, when given, is one to be improved on, and `lower` a bound that is known. Without
        any split the bound is inf: there is none.
        """
        lower = max(lower, self.supply.bound)
        best = split
        prove = True  # try just below the best: it is the best of all, or a better one is found
        while lower <= self.top if best is None else lower < best.load * (1.0 - ROUNDING):
            if best is None:
                limit = min(self.top, max(2.0 * lower, self.top / 1024.0))
            elif prove:
                limit = best.load * (1.0 - ROUNDING)
            else:
                limit = 0.5 * (best.load + lower)
            found, refused = self._within(limit, effort)
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

    def _within(self, limit: float, effort: Effort) -> tuple[Split | None, float | None]:
        """A split whose load is at most `limit`, or the smallest load larger than `limit` that one
        may have; neither when the effort is spent.
        """
        line, count = self.line, self.ideals.count
        work = self.work = self.fresh()
        begin = 0
        while begin < count and not work.tally[3]:
            if effort.spent(self.pairs + int(work.tally[1])):
                self.pairs += int(work.tally[1])
                return None, None
            end = min(begin + _SOURCES, count)
            advance(line, work, limit, begin, end)
            if work.tally[2]:
                self.pairs += int(work.tally[1])
                self.listed *= 4
                return self._within(limit, effort)
            begin = end
        self.pairs += int(work.tally[1])
        if work.tally[3]:
            return self._split(), None
        return None, float(work.above[0])

    def fresh(self) -> Work:
        """What a search writes, before it begins at the empty ideal."""
        p, classes = self.line.compute.shape
        n, vectors = self.items.count, self.vectors.left.shape[1]
        lists = classes, vectors, self.listed
        reach = np.zeros(p, np.uint64)
        reach[0] = 1
        outside, missing = np.zeros((2, len(self.line.weight)), dtype=np.int64)
        link_message, link_next = np.zeros((2, len(self.line.member)), dtype=np.int64)
        node, cursor, added = np.zeros((3, n + 1), dtype=np.uint32)
        path_in, path_done = np.zeros((2, n + 2, classes))
        best_value, best_state = np.zeros((2, *lists))
        return Work(
            reach,
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
            np.zeros(classes, np.uint64),
            np.zeros(4, np.int64),
            np.full(1, np.inf),
        )

    def _split(self) -> Split:
        """The split that led to the ideal of all items, and its true load."""
        work, line = self.work, self.line
        ideal = self.ideals.count - 1
        reach = int(work.reach[ideal])
        vector = next(s for s in range(work.source.shape[1]) if reach >> s & 1)
        stages, classes = [], []
        while ideal:
            before, k = int(work.source[ideal, vector]), int(work.last[ideal, vector])
            if k >= 0:
                inside = self.ideals.holds(ideal, self.items.count)
                stages.append(inside & ~self.ideals.holds(before, self.items.count))
                classes.append(k)
            ideal, vector = before, vector - (int(line.stride[k]) if k >= 0 else 1)
        stage = np.zeros(self.items.count, np.int64)
        for number, inside in enumerate(reversed(stages)):
            stage[inside] = number
        of_class = np.array(classes[::-1], dtype=np.int64)
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


def _top(items: Items) -> float:
    """Seconds that no load exceeds."""
    compute = np.where(np.isfinite(items.seconds), items.seconds, 0.0).sum(axis=0)
    top = float((compute + items.weight.sum(axis=0)).max(initial=0.0))
    return top * (1.0 + ROUNDING)


def _line(items: Items, ideals: Ideals, supply: Supply, vectors: Vectors, top: float) -> Line:
    n, classes = items.seconds.shape
    p, rules = ideals.count, len(supply.need)
    unsupported = 4.0 * top or 1.0  # above every limit
    seconds = np.where(np.isfinite(items.seconds), items.seconds, unsupported)
    owner = np.repeat(np.arange(len(items.weight)), np.diff(items.members.ptr))
    messages = Rows.of(items.members.value, owner, n)
    compute, cut = np.zeros((p, classes)), np.zeros((p, classes))
    held, need = np.zeros(p), np.zeros((rules, p))
    open_ptr, opened = prefix_sums(
        ideals.bits, ideals.parent, ideals.grown, seconds, items.state, messages.ptr,
        messages.value, items.members.ptr, items.members.value, items.weight, supply.need,
        compute, cut, held, need,
    )  # fmt: skip
    apart, behind = _separation(items, ideals)
    bits = np.uint64(1) << np.arange(vectors.left.shape[1], dtype=np.uint64)
    return Line(
        ptr=ideals.ptr.astype(np.uint32),
        item=ideals.item.astype(np.uint32),
        upper=ideals.upper.astype(np.uint32),
        bits=ideals.bits,
        compute=compute,
        cut=cut,
        held=held,
        apart=apart,
        behind=behind,
        open_ptr=open_ptr,
        open=opened,
        capacity=items.capacity,
        member_ptr=items.members.ptr,
        member=items.members.value,
        weight=items.weight,
        stride=vectors.stride,
        spare=np.where(vectors.following, bits, np.uint64(0)).sum(axis=1, dtype=np.uint64),
        skip=vectors.fixed,
        need=need,
        supply=supply.of(vectors.left),
    )


def _separation(items: Items, ideals: Ideals) -> tuple[IntArray, IntArray]:
    """(P,) `apart` and `behind`.

    An ideal that is the only one of its size is comparable with all others: call these the waists
    W_0 < W_1 < ... . Let e(i) be the first waist that holds all members of every message with a
    member in W_i. An ideal inside W_i has no message in common with those that hold W_e(i).
    """
    per_size = np.bincount(ideals.size)
    waist = np.flatnonzero(per_size[ideals.size] == 1)  # ideals, ascending
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
