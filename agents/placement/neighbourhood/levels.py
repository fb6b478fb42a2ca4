"""The problems a local search works on, one after another: from few groups to all operators."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agents.placement.grouping import GroupedProblem
from agents.placement.neighbourhood.moves import Units
from envs.graphs.contraction import sum_rows
from envs.graphs.op_graph import NONE, OpGraph
from envs.step.problem import StepProblem

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
FloatArray = NDArray[np.float64]


_COARSER = 6  # operators for every group: with fewer, groups are not worth a level


@dataclass(frozen=True, eq=False)
class Level:
    """A problem of K pieces in U units, and how its plans translate to the N operators."""

    problem: StepProblem  # of the pieces
    units: Units
    piece: IntArray  # (N,) piece of each operator

    def down(self, piece_device: IntArray, piece_order: IntArray) -> tuple[IntArray, IntArray]:
        """Device (N,) and order (N,) of the operators from those of the pieces (K,)."""
        position = np.empty(len(piece_order), dtype=np.int64)
        position[piece_order] = np.arange(len(piece_order))
        device = np.asarray(piece_device, dtype=np.int64)[self.piece]
        return device, np.argsort(position[self.piece], kind="stable")

    def up(self, device: IntArray, order: IntArray) -> tuple[IntArray, IntArray]:
        """Device (K,) and order (K,) of the pieces, as near to those of the operators as can be.

        A unit goes where its first operator is; pieces follow the first of their operators.
        """
        pieces = self.problem.graph.num_operators
        position = np.empty(len(order), dtype=np.int64)
        position[order] = np.arange(len(order))
        first = np.full(pieces, len(order), dtype=np.int64)
        np.minimum.at(first, self.piece, position)
        lead = np.full(len(self.units.state), len(order), dtype=np.int64)
        np.minimum.at(lead, self.units.of, first)
        return device[order[lead]][self.units.of], topological(self.problem.graph, first)


def levels_of(problem: StepProblem, groups: tuple[int, ...], operators: int) -> list[Level]:
    """The levels of `problem`, coarse to fine.

    One for each number of `groups`, and the operators themselves if there are at most `operators`
    of them. Left out are numbers of groups that spare too little against the level below, or are so
    small that some group fits on no device.
    """
    finest = _finest(problem)
    count = problem.graph.num_operators
    levels = [finest] if count <= operators else []
    for number in sorted(groups, reverse=True):
        if levels and (_COARSER * number > count or 2 * number > len(levels[0].units.state)):
            continue
        grouped = GroupedProblem.of(problem, number)
        if not grouped.too_large:
            levels.insert(0, _fused(grouped))
    return levels or [finest]


def topological(graph: OpGraph, priority: IntArray) -> IntArray:
    """(N,) the topological order of `graph` that takes the ready operator of least priority."""
    missing = np.bincount(graph.use_op, minlength=graph.num_operators).tolist()
    rank, pointer, users = priority.tolist(), graph.use_ptr.tolist(), graph.use_op.tolist()
    ready = [(rank[op], op) for op in range(graph.num_operators) if missing[op] == 0]
    heapq.heapify(ready)
    order = []
    while ready:
        _, op = heapq.heappop(ready)
        order.append(op)
        for user in users[pointer[op] : pointer[op + 1]]:
            missing[user] -= 1
            if missing[user] == 0:
                heapq.heappush(ready, (rank[user], user))
    return np.array(order, dtype=np.int64)


def _finest(problem: StepProblem) -> Level:
    """All operators; the units are the co-location groups and the free operators."""
    graph = problem.graph
    count = graph.num_operators
    free = graph.colocation == NONE
    of = np.where(free, graph.num_groups + np.cumsum(free) - 1, graph.colocation)
    of = np.unique(of, return_inverse=True)[1].reshape(-1)
    number = int(of.max(initial=NONE)) + 1
    seconds = sum_rows(problem.op_seconds, of, number)
    state = sum_rows(graph.state_bytes, of, number)
    allowed = np.isfinite(seconds) & (state[:, None] <= problem.capacity)
    return Level(problem, _units(of, state, allowed), np.arange(count))


def _fused(grouped: GroupedProblem) -> Level:
    fusion = grouped.fusion
    units = _units(fusion.piece_group, grouped.state, grouped.allowed)
    return Level(grouped.problem, units, fusion.piece)


def _units(of: IntArray, state: FloatArray, allowed: BoolArray) -> Units:
    counts = np.bincount(of, minlength=len(state))
    return Units(
        of=of.astype(np.uint32),
        member_ptr=np.concatenate([[0], np.cumsum(counts)]).astype(np.uint32),
        member=np.argsort(of, kind="stable").astype(np.uint32),
        state=np.ascontiguousarray(state, dtype=np.float64),
        allowed=np.ascontiguousarray(allowed),
    )
