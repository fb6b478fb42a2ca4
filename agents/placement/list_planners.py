"""List schedulers: HEFT, m-ETF and m-SCT, with memory, for several granularities."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from annotated_types import Gt, MinLen

from agents.placement.list_scheduling.rank import favourite_children, upward_rank
from agents.placement.list_scheduling.schedule import (
    ListProblem,
    ListRule,
    MakeRule,
    Schedule,
    can_take,
    earliest_start,
    empty_schedule,
    first_gap,
    list_problem,
    receive,
    run,
)
from agents.solver import Budget
from agents.step.fitting import Attempt, Fitting, MemoryFit
from agents.step.grouping import GroupedProblem, by_piece
from agents.step.incumbent import StepIncumbent, StepSolver
from envs.arrays import FloatArray, IntArray
from envs.bounds import Count, bounded
from envs.compilation import compiled, compiled_inner
from envs.graphs.op_graph import NONE
from envs.placement.generator import toy_pipeline
from envs.step.problem import StepProblem

_NO_ROOM = "no device has room for some group's state, or activations overflow"
_NO_TIME = "the budget ended before a schedule was found that fits in memory"


def schedule_by(
    make_rule: MakeRule,
    grouped: GroupedProblem,
    room: FloatArray,  # (D,) bytes for state
    fit: MemoryFit | None = None,
) -> Schedule | None:
    """The schedule of all pieces by a rule, or None when a group finds no device with room.

    With a `fit` of all groups in that room, a device is taken only if a placement of all groups
    still to be decided is found.
    """
    problem, schedule, rule = list_problem(grouped), empty_schedule(grouped, room), make_rule()
    while True:
        piece, device = rule(problem, schedule)
        if piece == NONE:
            return schedule
        if device == NONE:
            return None
        group = int(problem.piece_group[piece])
        if fit is None or fit.pin(group, device):
            schedule.group_device[group] = device
            schedule.room[device] -= problem.state[group]
        else:
            schedule.allowed[group, device] = False


def schedule_order(grouped: GroupedProblem, schedule: Schedule) -> IntArray:
    """(N,) original operators as the pieces start in `schedule`, then end; ties by number.

    Topological, since no piece starts before its inputs are computed.
    """
    return by_piece(grouped.fusion.piece, np.lexsort((schedule.finish, schedule.start)))


def attempt_by(make_rule: MakeRule) -> Attempt:
    """Schedules by a rule, with their orders.

    Where a group finds no room, the list is scheduled again with the look-ahead of a `MemoryFit`.
    """

    def attempt(grouped: GroupedProblem, room: FloatArray) -> tuple[IntArray, IntArray] | None:
        schedule = schedule_by(make_rule, grouped, room)
        if schedule is None:
            schedule = schedule_by(make_rule, grouped, room, MemoryFit(grouped, room))
        if schedule is None:
            return None
        return schedule.group_device, schedule_order(grouped, schedule)

    return attempt


@dataclass(frozen=True, eq=False, kw_only=True)
class ListPlanner(StepSolver):
    """A list scheduler on the pieces of the fused graph.

    Args:
        groups: numbers of groups of the fused graph, of which the best plan is kept; as many as
            operators: nothing is fused that need not be.
    """

    groups: Annotated[Sequence[Count], MinLen(1)] = (16, 32, 64, 128)

    @abstractmethod
    def rule_of(self, problem: StepProblem, left: Budget) -> tuple[MakeRule, str]:
        """What makes the rule for the pieces of `problem`, and a reason to pass on."""

    def compile(self, problem: StepProblem) -> None:
        """By scheduling a toy."""
        toy = GroupedProblem.of(toy_pipeline(), 4)
        make_rule, _ = self.rule_of(toy.problem, Budget(0.0, 1))
        schedule_by(make_rule, toy, toy.problem.capacity, MemoryFit(toy, toy.problem.capacity))

    def _plan(self, incumbent: StepIncumbent, budget: Budget) -> str:
        """The budget is for a linear program, and to make room in memory.

        While there is no plan, it is tried with more and more groups.
        """
        fitting = Fitting(incumbent, budget)
        reasons: dict[str, None] = {}
        operators = incumbent.problem.graph.num_operators
        for number, groups in enumerate(_ever_finer(self.groups, operators)):
            known = number >= len(self.groups) and incumbent.plan is not None
            grouped = None if known or not fitting.goes_on else incumbent.group(groups)
            if grouped is not None:
                left = replace(budget, seconds=budget.seconds - incumbent.seconds)
                make_rule, reason = self.rule_of(grouped.problem, left)
                reasons[reason] = None
                fitting.run(grouped, attempt_by(make_rule))
        fitting.insist()
        if incumbent.plan is None:
            reasons[_NO_ROOM if fitting.goes_on else _NO_TIME] = None
        return "; ".join(filter(None, reasons))


def _ever_finer(groups: Sequence[int], operators: int) -> Iterator[int]:
    """`groups`, then twice as many, and so on up to the number of operators."""
    yield from groups
    finer = 2 * max(groups)
    while finer < 2 * operators:
        yield finer
        finer *= 2


def earliest_finish(priority: IntArray) -> ListRule:
    """Takes pieces in a given order, each to where it finishes first; made for one schedule.

    Args:
        priority: (N,) pieces, first to last, in topological order.
    """
    cursor = np.zeros(1, dtype=np.int64)
    return lambda problem, schedule: _advance(problem, schedule, priority, cursor)


@compiled
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
        ready = receive(problem, schedule, piece, device, True)
        start = first_gap(schedule, device, ready, problem.op_seconds[piece, device])
        run(problem, schedule, piece, device, start)
        cursor[0] += 1
    return NONE, NONE


@compiled_inner
def _where_it_finishes_first(problem: ListProblem, schedule: Schedule, piece: int) -> int:
    """The device, or NONE; the first of equals."""
    best, where = np.inf, NONE
    for device in range(problem.op_seconds.shape[1]):
        if can_take(problem, schedule, problem.piece_group[piece], device):
            seconds = problem.op_seconds[piece, device]
            ready = receive(problem, schedule, piece, device, False)
            end = first_gap(schedule, device, ready, seconds) + seconds
            if end < best:
                best, where = end, device
    return where


@bounded
class Heft(ListPlanner):
    """Heterogeneous earliest finish time on the pieces of the fused graph.

    Pieces are taken by falling upward rank (mean compute and mean transfer seconds to the end of
    the step); the first piece of a group decides the group's device: the one where that piece
    finishes first, among those with room for the group's state. A piece runs in the first gap of
    its device that holds it, a transfer in the first gap that its two ports have in common, and a
    tensor already sent to a device is not sent again. `Fitting` says what happens when
    memory is short, and in which orders the plan is simulated.

    Guarantees:
        None.

    Source:
        Topcuoglu, Hariri, Wu, "Performance-effective and low-complexity task scheduling for
        heterogeneous computing", IEEE TPDS 13(3), 2002, section 4.2; contention as in Sinnen,
        Sousa, "Communication contention in task scheduling", IEEE TPDS 16(6), 2005.
    """

    def rule_of(self, problem: StepProblem, left: Budget) -> tuple[MakeRule, str]:
        priority = np.argsort(-upward_rank(problem), kind="stable")
        return lambda: earliest_finish(priority), ""


@bounded
class MEtf(ListPlanner):
    """Memory-constrained earliest task first on the pieces of the fused graph.

    Of all pieces that are ready and all devices with room for the state of their groups, the pair
    that can start first is scheduled next; among equals the piece of larger upward rank. The first
    piece of a group decides the group's device. Transfers wait for their send and receive ports
    and take the first gap that the two have in common; a tensor already sent to a device is not
    sent again. `Fitting` says what happens when memory is short, and in which orders the
    plan is simulated.

    Guarantees:
        Those proved for ETF hold without memory, contention and co-location; none here.

    Source:
        Hwang, Chow, Anger, Lee, "Scheduling precedence graphs in systems with interprocessor
        communication times", SIAM Journal on Computing 18(2), 1989; with memory and co-location as
        in Jeon, Cai, Srivastava, Jiang, Ke, Meng, Xie, Gupta, "Baechi: fast device placement of
        machine learning graphs", SoCC 2020.
    """

    def rule_of(self, problem: StepProblem, left: Budget) -> tuple[MakeRule, str]:
        rank, devices = upward_rank(problem), problem.topology.num_devices
        return lambda: earliest_start(rank, None, devices), ""


@bounded
@dataclass(frozen=True, eq=False, kw_only=True)
class MSct(ListPlanner):
    """Memory-constrained small communication times: m-ETF that keeps devices for favourites.

    `favourite_children` says which child of a piece should run next to it; while that child is
    ready and can finish nowhere earlier, its parent's device is kept for it, and other pieces go
    there only when they are urgent (`earliest_start`). All else is as in `MEtf`. When the linear
    program is not solved within its limit, no piece has a favourite child, which makes the
    schedule that of m-ETF; the result's `reason` says so.

    Guarantees:
        Those proved for SCT hold without memory, contention and co-location; none here.

    Source:
        Hanen, Munier, "An approximation algorithm for scheduling dependent tasks on m processors
        with small communication delays", 1995; with memory and co-location as in Jeon, Cai,
        Srivastava, Jiang, Ke, Meng, Xie, Gupta, "Baechi: fast device placement of machine learning
        graphs", SoCC 2020.

    Args:
        groups: as those of `ListPlanner`.
        lp_seconds: time limit of the linear program.
    """

    lp_seconds: Annotated[float, Gt(0.0)] = 5.0

    def rule_of(self, problem: StepProblem, left: Budget) -> tuple[MakeRule, str]:
        """`Budget.evaluations` counts simplex iterations."""
        seconds, reason = self.lp_seconds, ""
        if left.evaluations is None:
            seconds = min(seconds, max(left.seconds, 0.0))
        favourite = favourite_children(problem, seconds, left.evaluations)
        if favourite is None:
            reason = "the linear program of m-SCT reached its limit: no piece has a favourite child"
        rank, devices = upward_rank(problem), problem.topology.num_devices
        return lambda: earliest_start(rank, favourite, devices), reason
