"""The problems a local search works on, from few groups to all operators, and where it begins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from agents.placement.list_scheduling.rank import add_behind
from agents.placement.neighbourhood.moves import IndexArray, Units
from agents.step.grouping import GroupedProblem, by_piece, fused_around, topological
from envs.arrays import BoolArray, FloatArray, IntArray, mean_able, sums_before
from envs.compilation import compiled, compiled_inner
from envs.graphs.contraction import Fusion, contract, sum_rows
from envs.graphs.op_graph import NONE, OpGraph
from envs.step.fusion import fuse
from envs.step.incremental import Facts, facts_of
from envs.step.plans import Plan
from envs.step.problem import StepProblem

_COARSER = 6  # operators for every group: with fewer, groups are not worth a level


@dataclass(frozen=True, eq=False)
class Level:
    """A problem of K pieces in U units, and how its plans translate to the N operators."""

    grouped: GroupedProblem  # of the units, in the order of the forward pass
    units: Units
    inner: FloatArray  # (K,) bytes that a piece needs beyond its inputs and outputs while it runs

    @property
    def problem(self) -> StepProblem:
        """Of the pieces."""
        return self.grouped.problem

    @property
    def piece(self) -> IntArray:
        """(N,) piece of each operator."""
        return self.grouped.fusion.piece

    def down(self, piece_device: IntArray, piece_order: IntArray) -> tuple[IntArray, IntArray]:
        """Device (N,) and order (N,) of the operators from those of the pieces (K,)."""
        device = np.asarray(piece_device, dtype=np.int64)[self.piece]
        return device, by_piece(self.piece, piece_order)

    def up(self, device: IntArray, order: IntArray) -> tuple[IntArray, IntArray]:
        """Device (K,) and order (K,) of the pieces, as near to those of the operators as can be.

        A unit goes where its first operator is; pieces follow the first of their operators.
        """
        graph, units = self.problem.graph, self.units
        first = _firsts(self.piece, np.argsort(order), graph.num_operators)
        lead = order[_firsts(units.of, first, len(units.state))]
        return device[lead][units.of], topological(graph.edges[:, :2], first)

    def placed(self, device: IntArray) -> IntArray | None:
        """(K,) devices of the pieces from those of the operators (N,), as `up`.

        None where a unit may not be on the device of its first operator.
        """
        units = self.units
        on = device[_firsts(units.of[self.piece], np.arange(len(device)), len(units.state))]
        return on[units.of] if units.allowed[np.arange(len(on)), on].all() else None


def _firsts(of: IntArray | IndexArray, position: IntArray, count: int) -> IntArray:
    """(count,) the least `position` (N,) of those that are `of` each; none is empty."""
    first = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(first, of, position)
    return first


def levels_of(problem: StepProblem, groups: Sequence[int], operators: int) -> list[Level]:
    """The levels of `problem`, coarse to fine.

    One for each number of `groups`, and the operators themselves if there are at most `operators`
    of them. Left out are numbers of groups that spare too little against the level below, or are so
    small that some group fits on no device.
    """
    count = problem.graph.num_operators
    # the units are the co-location groups and the free operators
    finest = _level(GroupedProblem.unfused(problem), np.zeros(count))
    levels = [finest] if count <= operators else []
    for number in sorted(groups, reverse=True):
        if levels and (_COARSER * number > count or 2 * number > len(levels[0].units.state)):
            continue
        grouped = GroupedProblem.of(problem, number)
        if not grouped.too_large:
            levels.insert(0, _fused(problem.graph, grouped))
    return levels or [finest]


def level_around(problem: StepProblem, plan: Plan, operators: int) -> Level:
    """About so many pieces as `operators`, none with operators that `plan` puts on two devices."""
    groups = max(operators // (2 * problem.graph.num_micro_batches + 1), 1)
    group = fused_around(problem, fuse(problem, groups), plan.placement.device)
    fusion = contract(problem.graph, group, weight_gradients=problem.defers)
    return _fused(problem.graph, GroupedProblem.fused(problem, fusion))


def _level(grouped: GroupedProblem, inner: FloatArray) -> Level:
    of, allowed = grouped.fusion.piece_group, grouped.allowed
    units = Units(
        of=of.astype(np.uint32),
        member_ptr=sums_before(np.bincount(of, minlength=len(allowed))).astype(np.uint32),
        member=np.argsort(of, kind="stable").astype(np.uint32),
        state=np.ascontiguousarray(grouped.state, dtype=np.float64),
        allowed=np.ascontiguousarray(allowed),
    )
    return Level(grouped, units, inner)


def _fused(graph: OpGraph, grouped: GroupedProblem) -> Level:
    return _level(grouped, inner_bytes(graph, grouped.fusion))


def inner_bytes(graph: OpGraph, fusion: Fusion) -> FloatArray:
    """(K,) bytes by which what the operators of a piece make exceeds its outputs, at the peak.

    A piece runs its operators as they are numbered. Tensors inside it end with their last
    consumer, its outputs stay, and its inputs stay as well.
    """
    tensors, edges = np.arange(graph.num_tensors), graph.edges
    last = graph.producer.copy()
    np.maximum.at(last, edges[:, 2], edges[:, 1])
    inside = tensors[fusion.tensor == NONE]
    piece = fusion.piece[graph.producer]
    # takes come before the frees of the same operator
    when = np.concatenate([2 * graph.producer, 2 * last[inside] + 1])
    change = np.concatenate([graph.tensor_bytes, -graph.tensor_bytes[inside]])
    where = np.concatenate([piece, piece[inside]])
    order = np.lexsort((when, where))
    live, where = np.cumsum(change[order]), where[order]
    peak = np.zeros(fusion.graph.num_operators)
    outputs = sum_rows(np.where(fusion.tensor == NONE, 0.0, graph.tensor_bytes), piece, len(peak))
    before = np.cumsum(outputs) - outputs  # left by the pieces before
    np.maximum.at(peak, where, live - before[where] - outputs[where])
    return peak


_NOWHERE = np.uint32(2**32 - 1)


def list_schedule(level: Level, room: FloatArray) -> tuple[IntArray, IntArray] | None:
    """Device and order of the pieces (K,), or None when a unit found no device with room.

    Pieces are taken by falling upward rank, with mean compute and transfer seconds; the first piece
    of a unit decides for the unit: the device where that piece ends first, if the unit's state
    fits. Transfers wait for both ports (Topcuoglu, Hariri, Wu, "Performance-effective and
    low-complexity task scheduling for heterogeneous computing", IEEE TPDS 13(3), 2002; Sinnen,
    Sousa, "Communication contention in task scheduling", IEEE TPDS 16(6), 2005).
    """
    problem, units = level.problem, level.units
    facts = facts_of(problem)
    classes = problem.topology.link_class
    apart = classes[~np.eye(len(classes), dtype=np.bool_)]
    moved = np.zeros(problem.graph.num_tensors)
    if len(apart):
        moved = problem.transfer_seconds[:, apart].mean(axis=1)
    rank, graph = mean_able(problem.op_seconds), problem.graph
    add_behind(graph.use_ptr, graph.use_op, moved[graph.uses[:, 1]], rank)
    order = np.lexsort((np.arange(len(rank)), -rank))
    device = np.full(len(units.state), _NOWHERE, dtype=np.uint32)
    tensor = np.zeros(len(facts.inputs), dtype=np.uint32)
    tensor[facts.uses[:, 3]] = facts.uses[:, 1]
    placed = _schedule(
        facts, tensor, units.of, units.state, units.allowed, room.copy(), order,
        np.zeros(len(facts.routes) + problem.topology.num_ports),
        np.full((problem.graph.num_tensors, len(classes)), -1.0), device,
    )  # fmt: skip
    return (device[units.of].astype(np.int64), order) if placed else None


@compiled
def _schedule(
    facts: Facts,
    tensor: IndexArray,  # (C,) by `facts.inputs`
    unit: IndexArray,  # (K,)
    state: FloatArray,  # (U,) bytes
    allowed: BoolArray,  # (U, D)
    room: FloatArray,  # (D,) bytes, used up
    order: IntArray,  # (K,) topological
    free: FloatArray,  # (R,) zero
    arrived: FloatArray,  # (T, D) seconds, -1: has not been sent there
    device: IndexArray,  # (U,) out, all _NOWHERE
) -> bool:
    """Whether every unit found a device."""
    finish = np.zeros(len(order))
    now = free.copy()
    for op in order:
        u = unit[op]
        if device[u] == _NOWHERE:
            best = np.inf
            for d in range(facts.op_seconds.shape[1]):
                if not allowed[u, d] or state[u] > room[d]:
                    continue
                now[:] = free
                end = facts.op_seconds[op, d] + _ready(
                    op, d, facts, tensor, unit, device, finish, arrived, now, False
                )
                if end < best:
                    best, device[u] = end, np.uint32(d)
            if best == np.inf:
                return False
            room[device[u]] -= state[u]
        d = device[u]
        finish[op] = facts.op_seconds[op, d] + _ready(
            op, d, facts, tensor, unit, device, finish, arrived, free, True
        )
        free[d] = finish[op]
    return True


@compiled_inner
def _ready(
    op: int,
    d: int,
    facts: Facts,
    tensor: IndexArray,
    unit: IndexArray,
    device: IndexArray,
    finish: FloatArray,  # (K,) seconds
    arrived: FloatArray,  # (T, D) seconds
    free: FloatArray,  # (R,) in and out: transfers are booked there
    keep: bool,  # whether the transfers are made, not only tried
) -> float:
    """When `op` can start on device `d`; arguments as in `_schedule`."""
    at: float = free[d]
    for i in range(facts.input_ptr[op], facts.input_ptr[op + 1]):
        source, came = device[unit[facts.inputs[i]]], finish[facts.inputs[i]]
        if source != d and arrived[tensor[i], d] >= 0.0:
            came = arrived[tensor[i], d]
        elif source != d:
            seconds = facts.transfer_seconds[tensor[i], facts.routes[source, d, 0]]
            if seconds > 0.0:
                out, into = facts.routes[source, d, 1], facts.routes[source, d, 2]
                came = max(came, free[out], free[into]) + seconds
                free[out] = came
                free[into] = came
            if keep:
                arrived[tensor[i], d] = came
        at = max(at, came)
    return at


def splits(grouped: GroupedProblem) -> Iterator[IntArray]:
    """Placements (N,) of contiguous segments of the forward pass.

    Segments hold equal work, work in proportion to their devices' speed, or bytes in proportion to
    their devices' memory. The line of devices is taken once, twice (a loop), or there and back (a
    V).
    """
    problem = grouped.problem
    devices = problem.topology.num_devices
    able = np.isfinite(grouped.seconds)
    work = mean_able(grouped.seconds)
    speed = 1.0 / np.maximum(np.where(able, grouped.seconds, 0.0).sum(axis=0), 1e-300)
    maker = grouped.fusion.piece_group[problem.graph.producer]
    made = sum_rows(problem.graph.tensor_bytes, maker, grouped.num_groups)
    equal, fastest = np.arange(devices), grouped.device_order()
    for load, share, line in (
        (work, np.ones(devices), equal),
        (work, speed, fastest),
        (grouped.state + made, problem.capacity, fastest),
    ):
        for path in (line, np.tile(line, 2), np.concatenate([line, line[::-1]])):
            device = path[_cut(load, share[path])]
            if able[np.arange(len(device)), device].all():
                yield grouped.fusion.expand(device)


def _cut(load: FloatArray, share: FloatArray) -> IntArray:
    """(G,) segment of each of the groups in a line, by the middle of their loads (G,)."""
    share = np.where(np.isfinite(share), share, 0.0)
    share = share if share.sum() > 0.0 else np.ones(len(share))
    middle = (np.cumsum(load) - load / 2) / max(float(load.sum()), 1e-300)
    ends = np.cumsum(share) / share.sum()
    return np.minimum(np.searchsorted(ends, middle, side="right"), len(share) - 1)
