"""From a rule of list scheduling to a plan: memory, repairs, and orders."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from agents.base import PlannerResult
from agents.placement.grouping import GroupedProblem
from agents.placement.incumbent import Incumbent
from agents.placement.list_scheduling.rank import add_behind
from agents.placement.list_scheduling.schedule import (
    FloatArray,
    IntArray,
    ListProblem,
    Schedule,
    empty_schedule,
    list_problem,
    nothing,
)
from agents.placement.packing import Packing, search
from envs.errors import InputError
from envs.graphs.op_graph import NONE, OpGraph

_REPAIRS = 16  # schedules tried with less and less room for state when activations overflow
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


def best_granularity(
    plan: Callable[[int, float], PlannerResult], granularities: Sequence[int], budget_s: float
) -> PlannerResult:
    """The best of `plan(groups, seconds left)` over several numbers of groups.

    The first is made whatever the budget, the others while there is time.
    """
    start = time.perf_counter()
    found: list[PlannerResult] = []
    trajectory: list[tuple[float, float]] = []
    for groups in granularities:
        began = time.perf_counter() - start
        if found and began >= budget_s:
            break
        found.append(plan(groups, budget_s - began))
        for seconds, step_time in found[-1].trajectory:
            if not trajectory or step_time < trajectory[-1][1]:
                trajectory.append((began + seconds, step_time))
    best = min(found, key=lambda result: result.step_time)
    return replace(
        best,
        seconds=time.perf_counter() - start,
        evaluations=sum(result.evaluations for result in found),
        trajectory=trajectory,
    )


def require_granularities(granularities: Sequence[int]) -> None:
    """Raise InputError unless there is at least one number of groups, and none below 1."""
    if not granularities:
        raise InputError("at least one number of groups is needed", field="groups")
    for groups in granularities:
        if groups < 1:
            raise InputError(f"{groups} is below 1", field="groups")


def schedule_by(
    make_rule: Callable[[], ListRule],
    grouped: GroupedProblem,
    room: FloatArray,  # (D,) bytes for state
    packing: Packing | None = None,
) -> Schedule | None:
    """The schedule of all pieces by a rule, or None when a group finds no device with room.

    With a `packing` of all groups in that room, a device is taken only if a packing of all groups
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
        if packing is None or packing.pin(group, device):
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


def wave_order(graph: OpGraph, order: IntArray, micro_batches: int) -> IntArray:
    """(N,) `order` in waves of `micro_batches` micro-batches: no device has more under way.

    The first so many micro-batches run from beginning to end, then the next ones; the optimizer
    runs last. An operator that needs a later wave belongs to that one; within a wave `order` stays.
    """
    last = graph.num_micro_batches - 1
    wave = np.where(graph.micro_batch == NONE, last, graph.micro_batch) // micro_batches
    edges = graph.edges
    for u, v, _ in edges[np.argsort(edges[:, 0], kind="stable")].tolist():
        wave[v] = max(wave[v], wave[u])
    return order[np.argsort(wave[order], kind="stable")]


def offer_schedules(
    incumbent: Incumbent,
    grouped: GroupedProblem,
    make_rule: Callable[[], ListRule],
    budget_s: float,
    reason: str = "",
) -> PlannerResult:
    """Offer the schedule of a rule to `incumbent`, in the 1F1B order and in its own.

    Where a group finds no room, the list is scheduled again with the look-ahead of a `Packing`.
    While live activations overflow a device in the simulation of both orders, the room for state
    is lowered by the excess of the order with less of it, and the list scheduled again. Where the
    first schedule did not fit, the same is tried with orders that have half as many micro-batches
    under way, a quarter, and so on down to one (`wave_order`). The first schedule is offered
    whatever the budget, further ones while there is time. `reason` is passed on.
    """
    for orders in (_all_at_once, _in_waves):
        room = grouped.problem.capacity.copy()
        for _ in range(_REPAIRS):
            if incumbent.evaluations and incumbent.seconds >= budget_s:
                return _result(incumbent, reason, _NO_TIME)
            schedule = schedule_by(make_rule, grouped, room)
            if schedule is None:
                schedule = schedule_by(make_rule, grouped, room, Packing(grouped, room))
            if schedule is None:
                break
            placed = grouped.fusion.expand(schedule.group_device)
            own = schedule_order(grouped, schedule)
            before = incumbent.evaluations
            excess = [
                incumbent.offer(placed, order) for order in orders(incumbent.problem.graph, own)
            ]
            if incumbent.plan is not None and before == 0:
                return incumbent.result(reason=reason)
            if incumbent.plan is not None or not excess:
                break
            room = grouped.less_room(room, schedule.group_device, min(excess, key=np.sum))
    return _result(incumbent, reason, _NO_ROOM)


def _result(incumbent: Incumbent, reason: str, failure: str) -> PlannerResult:
    """The result for `reason`, and for `failure` if there is no plan."""
    reasons = (reason, failure if incumbent.plan is None else "")
    return incumbent.result(reason="; ".join(part for part in reasons if part))


def _all_at_once(graph: OpGraph, own: IntArray) -> Iterator[IntArray | None]:
    yield None  # 1F1B
    yield own


def _in_waves(graph: OpGraph, own: IntArray) -> Iterator[IntArray | None]:
    size = graph.num_micro_batches // 2
    while size > 0:
        yield wave_order(graph, own, size)
        size //= 2
