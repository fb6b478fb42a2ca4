"""HEFT: list scheduling by upward rank, with insertion, with transfers that compete for ports."""

from __future__ import annotations

from collections.abc import Sequence

import numba
import numpy as np

from agents.base import PlannerResult
from agents.placement.incumbent import Incumbent
from agents.placement.list_scheduling.planner import (
    best_granularity,
    compile_kernels,
    offer_schedules,
    require_granularities,
)
from agents.placement.list_scheduling.rank import upward_rank
from agents.placement.list_scheduling.schedule import (
    IntArray,
    ListProblem,
    Schedule,
    can_take,
    first_gap,
    inputs_ready,
    receive,
    run,
)
from envs.graphs.op_graph import NONE
from envs.step.problem import StepProblem


class Heft:
    """Heterogeneous earliest finish time on the pieces of the fused graph.

    Pieces are taken by falling upward rank (mean compute and mean transfer seconds to the end of
    the step); the first piece of a group decides the group's device: the one where that piece
    finishes first, among those with room for the group's state. A piece runs in the first gap of
    its device that holds it, a transfer in the first gap that its two ports have in common, and a
    tensor already sent to a device is not sent again. `offer_schedules` says what happens when
    memory is short, and in which orders the plan is simulated.

    Topcuoglu, Hariri, Wu, "Performance-effective and low-complexity task scheduling for
    heterogeneous computing", IEEE TPDS 13(3), 2002, section 4.2; contention as in Sinnen, Sousa,
    "Communication contention in task scheduling", IEEE TPDS 16(6), 2005.

    Args:
        groups: numbers of groups of the fused graph, of which the best plan is kept; as many as
            operators: nothing is fused that need not be.

    Raises:
        InputError: `groups` is empty, or one of them is below 1.
    """

    def __init__(self, *, groups: Sequence[int]) -> None:
        require_granularities(groups)
        self.groups = tuple(groups)

    def plan(
        self, problem: StepProblem, budget_s: float, deterministic_limit: int | None = None
    ) -> PlannerResult:
        """As `Planner.plan`; needs no limit, and the budget only to make room in memory."""
        compile_kernels(EarliestFinish(np.zeros(0, dtype=np.int64)))
        return best_granularity(
            lambda groups, left_s: self._plan(problem, groups, left_s), self.groups, budget_s
        )

    def _plan(self, problem: StepProblem, groups: int, budget_s: float) -> PlannerResult:
        incumbent = Incumbent(problem)
        grouped = incumbent.group(groups)
        if grouped is None:
            return incumbent.result()
        rank = upward_rank(grouped.problem)
        priority = np.argsort(-rank, kind="stable")
        return offer_schedules(incumbent, grouped, lambda: EarliestFinish(priority), budget_s)


class EarliestFinish:
    """Takes pieces in a given order, each to where it finishes first; a `ListRule`.

    Args:
        priority: (N,) pieces, first to last, in topological order.
    """

    def __init__(self, priority: IntArray) -> None:
        self._priority = priority
        self._cursor = np.zeros(1, dtype=np.int64)

    def advance(self, problem: ListProblem, schedule: Schedule) -> tuple[int, int]:
        """As `ListRule.advance`."""
        piece, device = _advance(problem, schedule, self._priority, self._cursor)
        return int(piece), int(device)


@numba.njit(cache=True, nogil=True)
def _advance(
    problem: ListProblem,
    schedule: Schedule,
    priority: IntArray,  # (N,)
    cursor: IntArray,  # (1,) in and out: pieces scheduled so far
) -> tuple[int, int]:
    while cursor[0] < len(priority):
        piece = priority[cursor[0]]
        device = schedule.group_device[problem.piece_group[piece]]
        if device == NONE:
            return piece, _where_it_finishes_first(problem, schedule, piece)
        ready = receive(problem, schedule, piece, device)
        start = first_gap(schedule, device, ready, problem.op_seconds[piece, device])
        run(problem, schedule, piece, device, start)
        cursor[0] += 1
    return NONE, NONE


@numba.njit(cache=True, nogil=True)
def _where_it_finishes_first(problem: ListProblem, schedule: Schedule, piece: int) -> int:
    """The device, or NONE; the first of equals."""
    best, where = np.inf, NONE
    for device in range(problem.op_seconds.shape[1]):
        if can_take(problem, schedule, problem.piece_group[piece], device):
            seconds = problem.op_seconds[piece, device]
            ready = inputs_ready(problem, schedule, piece, device)
            end = first_gap(schedule, device, ready, seconds) + seconds
            if end < best:
                best, where = end, device
    return where
