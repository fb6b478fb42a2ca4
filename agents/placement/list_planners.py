"""List schedulers: HEFT, m-ETF and m-SCT, with memory, for several granularities."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Protocol

import numpy as np
from annotated_types import Gt, MinLen

from agents.placement.list_scheduling.earliest import EarliestStart
from agents.placement.list_scheduling.rank import add_behind, favourite_children, upward_rank
from agents.placement.list_scheduling.schedule import (
    ListProblem,
    Schedule,
    can_take,
    empty_schedule,
    first_gap,
    inputs_ready,
    list_problem,
    nothing,
    receive,
    run,
)
from agents.solver import Budget
from agents.step.fitting import Attempt, Fitting
from agents.step.grouping import GroupedProblem
from agents.step.incumbent import StepIncumbent, StepSolver
from agents.step.memory_fit import MemoryFit, search
from envs.arrays import FloatArray, IntArray
from envs.bounds import Count, bounded
from envs.compilation import compiled, compiled_inner
from envs.graphs.op_graph import NONE
from envs.step.problem import StepProblem

_NO_ROOM = "no device has room for some group's state, or activations overflow"
_NO_TIME = "the budget ended before a schedule was found that fits in memory"


class ListRule(Protocol):
    """Decides what is scheduled next, and where; made anew for every schedule."""

    def advance(self, problem: ListProblem, schedule: Schedule) -> tuple[int, int]:
        """Schedule pieces up to the first whose group is undecided.

        Returns that piece and the device the rule wants for its group, (piece, NONE) when no
        device can take the group, and (NONE, NONE) when nothing is left to schedule. The caller
        decides the group, or rules the device out in `schedule.allowed`, and calls again.
        """


def compile_kernels(rule: ListRule) -> None:
    """Have everything compiled, once on a machine; `rule` is one for no pieces at all."""
    rule.advance(*nothing())
    none, zero = np.zeros(0, dtype=np.int64), np.zeros(0)
    add_behind(np.zeros(1, dtype=np.int64), none, zero, zero)
    search(zero, np.zeros((0, 0), dtype=np.bool_), none, zero, 0, none)


def schedule_by(
    make_rule: Callable[[], ListRule],
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
        piece, device = rule.advance(problem, schedule)
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
    position = np.empty(len(schedule.start), dtype=np.int64)
    position[np.lexsort((schedule.finish, schedule.start))] = np.arange(len(position))
    return np.argsort(position[grouped.fusion.piece], kind="stable").astype(np.int64)


def attempt_by(make_rule: Callable[[], ListRule]) -> Attempt:
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


class ListPlanner(StepSolver):
    """A list scheduler on the pieces of the fused graph.

    Args:
        groups: numbers of groups of the fused graph, of which the best plan is kept; as many as
            operators: nothing is fused that need not be.
    """

    empty_rule: ListRule  # for no pieces at all

    def __init__(
        self, *, groups: Annotated[Sequence[Count], MinLen(1)] = (16, 32, 64, 128)
    ) -> None:
        self.groups = tuple(groups)

    @abstractmethod
    def rule_of(
        self, problem: StepProblem, left_s: float, limit: int | None
    ) -> tuple[Callable[[], ListRule], str]:
        """What makes the rule for the pieces of `problem`, and a reason to pass on."""

    def compile(self, problem: StepProblem) -> None:
        compile_kernels(self.empty_rule)

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
                left_s = budget.seconds - incumbent.seconds
                make_rule, reason = self.rule_of(grouped.problem, left_s, budget.evaluations)
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
        ready = receive(problem, schedule, piece, device)
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
            ready = inputs_ready(problem, schedule, piece, device)
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

    empty_rule = EarliestFinish(np.zeros(0, dtype=np.int64))

    def rule_of(
        self, problem: StepProblem, left_s: float, limit: int | None
    ) -> tuple[Callable[[], ListRule], str]:
        priority = np.argsort(-upward_rank(problem), kind="stable")
        return lambda: EarliestFinish(priority), ""


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

    empty_rule = EarliestStart(np.zeros(0), np.zeros(0, dtype=np.int64), 1)

    def rule_of(
        self, problem: StepProblem, left_s: float, limit: int | None
    ) -> tuple[Callable[[], ListRule], str]:
        rank, devices = upward_rank(problem), problem.topology.num_devices
        nobody = np.full(len(rank), NONE, dtype=np.int64)
        return lambda: EarliestStart(rank, nobody, devices), ""


@bounded
class MSct(ListPlanner):
    """Memory-constrained small communication times: m-ETF that keeps devices for favourites.

    `favourite_children` says which child of a piece should run next to it; while that child is
    ready and can finish nowhere earlier, its parent's device is kept for it, and other pieces go
    there only when they are urgent (`EarliestStart`). All else is as in `MEtf`. When the linear
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

    empty_rule = MEtf.empty_rule

    def __init__(
        self,
        *,
        groups: Annotated[Sequence[Count], MinLen(1)] = (16, 32, 64, 128),
        lp_seconds: Annotated[float, Gt(0.0)] = 5.0,
    ) -> None:
        super().__init__(groups=groups)
        self.lp_seconds = lp_seconds

    def rule_of(
        self, problem: StepProblem, left_s: float, limit: int | None
    ) -> tuple[Callable[[], ListRule], str]:
        """The limit counts simplex iterations."""
        seconds = self.lp_seconds
        if limit is None:
            seconds = min(seconds, max(left_s, 0.0))
        favourite, reason = favourite_children(problem, seconds, limit), ""
        if favourite is None:
            reason = "the linear program of m-SCT reached its limit: no piece has a favourite child"
            favourite = np.full(problem.graph.num_operators, NONE, dtype=np.int64)
        rank, devices = upward_rank(problem), problem.topology.num_devices
        return lambda: EarliestStart(rank, favourite, devices), reason
