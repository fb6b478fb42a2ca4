"""A partial schedule, compiled: pieces on devices, tensors on ports, each in the first gap.

What every list scheduler shares. Every device and every port keeps a calendar of what it does; a
transfer takes the first time at which both its ports are free for as long as it lasts, before
transfers that were scheduled earlier where there is room (insertion; Sinnen, Sousa,
"Communication contention in task scheduling", IEEE TPDS 16(6), 2005). The durations and the ports
are those of `envs.step.step`: a tensor is sent once per receiving device, transfers of zero
duration hold no port, and full duplex ports carry one transfer at a time each.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from agents.step.grouping import GroupedProblem
from envs.arrays import BoolArray, FloatArray, IntArray
from envs.compilation import compiled, compiled_inner
from envs.graphs.op_graph import NONE


class ListProblem(NamedTuple):
    """The pieces of a `GroupedProblem`, for kernels."""

    op_seconds: FloatArray  # (N, D) inf: not supported
    input_ptr: IntArray  # (N + 1,) rows of `Schedule.inputs` by consuming piece
    use_ptr: IntArray  # (N + 1,) rows of `use_op` by producing piece
    use_op: IntArray  # (C,) consuming piece, once per tensor
    producer: IntArray  # (T,)
    transfer_seconds: FloatArray  # (T, L)
    link_class: IntArray  # (D, D)
    send_port: IntArray  # (D, D) NONE: transfers from there to there wait for nothing
    receive_port: IntArray  # (D, D)
    piece_group: IntArray  # (N,)
    state: FloatArray  # (G,) bytes


class Schedule(NamedTuple):
    """Which group is where, and what every resource does when.

    Resources are the D devices, then the ports. The busy times of a resource are a doubly linked
    list of intervals, ascending; they do not overlap.
    """

    group_device: IntArray  # (G,) NONE: not yet decided
    allowed: BoolArray  # (G, D) supported, and not ruled out
    room: FloatArray  # (D,) bytes left for state
    inputs: IntArray  # (C,) tensors by consuming piece; of a ready piece in the order of arrival
    missing: IntArray  # (N,) inputs whose producer is not yet scheduled
    start: FloatArray  # (N,) seconds
    finish: FloatArray  # (N,) seconds
    arrival: FloatArray  # (T, D) seconds; inf: not sent there
    first: IntArray  # (R,) interval of each resource, or NONE
    last: IntArray  # (R,) interval, or NONE
    before: IntArray  # (I,) the interval before each interval, or NONE
    after: IntArray  # (I,) likewise
    begin: FloatArray  # (I,) seconds
    end: FloatArray  # (I,) seconds
    owner: IntArray  # (I,) resource
    used: IntArray  # (1,) how many intervals there are
    version: IntArray  # (R,) how many intervals there were when the resource last changed


def list_problem(grouped: GroupedProblem) -> ListProblem:
    """The arrays of `grouped`."""
    problem, graph = grouped.problem, grouped.problem.graph
    topology = problem.topology
    inputs = np.bincount(graph.consumer, minlength=graph.num_operators)
    return ListProblem(
        op_seconds=np.ascontiguousarray(problem.op_seconds, dtype=np.float64),
        input_ptr=np.concatenate([[0], np.cumsum(inputs)]).astype(np.int64),
        use_ptr=graph.use_ptr,
        use_op=graph.use_op,
        producer=graph.producer,
        transfer_seconds=np.ascontiguousarray(problem.transfer_seconds, dtype=np.float64),
        link_class=np.ascontiguousarray(topology.link_class, dtype=np.int64),
        send_port=np.ascontiguousarray(topology.send_port, dtype=np.int64),
        receive_port=np.ascontiguousarray(topology.receive_port, dtype=np.int64),
        piece_group=grouped.fusion.piece_group,
        state=grouped.state,
    )


def empty_schedule(grouped: GroupedProblem, room: FloatArray) -> Schedule:
    """Nothing is scheduled yet; `room` (D,) bytes for state on each device."""
    graph, topology = grouped.problem.graph, grouped.problem.topology
    n, t, d = graph.num_operators, graph.num_tensors, topology.num_devices
    edges = graph.edges
    resources, intervals = d + topology.num_ports, n + 2 * len(edges)
    return Schedule(
        group_device=np.full(grouped.num_groups, NONE, dtype=np.int64),
        allowed=grouped.allowed.copy(),
        room=room.copy(),
        inputs=edges[np.lexsort((edges[:, 2], edges[:, 1])), 2],
        missing=np.bincount(edges[:, 1], minlength=n).astype(np.int64),
        start=np.zeros(n),
        finish=np.zeros(n),
        arrival=np.full((t, d), np.inf),
        first=np.full(resources, NONE, dtype=np.int64),
        last=np.full(resources, NONE, dtype=np.int64),
        before=np.empty(intervals, dtype=np.int64),
        after=np.empty(intervals, dtype=np.int64),
        begin=np.empty(intervals),
        end=np.empty(intervals),
        owner=np.empty(intervals, dtype=np.int64),
        used=np.zeros(1, dtype=np.int64),
        version=np.zeros(resources, dtype=np.int64),
    )


@compiled
def first_gap(schedule: Schedule, resource: int, ready: float, seconds: float) -> float:
    """The first time from `ready` on at which `resource` is free for `seconds`."""
    before = schedule.last[resource]
    while before != NONE and schedule.end[before] > ready:
        before = schedule.before[before]
    after = schedule.first[resource] if before == NONE else schedule.after[before]
    start = ready
    while after != NONE and schedule.begin[after] < start + seconds:
        start = max(start, schedule.end[after])
        after = schedule.after[after]
    return start


@compiled
def released(schedule: Schedule, resource: int) -> float:
    """When `resource` ends the last thing it does."""
    last = schedule.last[resource]
    return 0.0 if last == NONE else schedule.end[last]


@compiled
def occupy(schedule: Schedule, resource: int, start: float, end: float) -> None:
    """Write a free interval into the calendar of `resource`."""
    before = schedule.last[resource]
    while before != NONE and schedule.end[before] > start:
        before = schedule.before[before]
    after = schedule.first[resource] if before == NONE else schedule.after[before]
    new = schedule.used[0]
    schedule.used[0] += 1
    schedule.begin[new], schedule.end[new], schedule.owner[new] = start, end, resource
    schedule.before[new], schedule.after[new] = before, after
    if before == NONE:
        schedule.first[resource] = new
    else:
        schedule.after[before] = new
    if after == NONE:
        schedule.last[resource] = new
    else:
        schedule.before[after] = new


@compiled_inner
def _undo(schedule: Schedule, used: int) -> None:
    """Take the latest intervals out again until `used` are left."""
    while schedule.used[0] > used:
        schedule.used[0] -= 1
        old = schedule.used[0]
        before, after, resource = schedule.before[old], schedule.after[old], schedule.owner[old]
        if before == NONE:
            schedule.first[resource] = after
        else:
            schedule.after[before] = after
        if after == NONE:
            schedule.last[resource] = before
        else:
            schedule.before[after] = before


@compiled_inner
def _send(problem: ListProblem, schedule: Schedule, tensor: int, source: int, device: int) -> float:
    """Take the ports for `tensor` from `source` to `device`; when it arrives, in seconds."""
    ready: float = schedule.finish[problem.producer[tensor]]
    seconds: float = problem.transfer_seconds[tensor, problem.link_class[source, device]]
    if seconds <= 0.0 or problem.send_port[source, device] == NONE:
        return ready + seconds
    devices = problem.op_seconds.shape[1]
    sender = devices + problem.send_port[source, device]
    receiver = devices + problem.receive_port[source, device]
    start: float = ready
    while True:
        sent = first_gap(schedule, sender, start, seconds)
        start = first_gap(schedule, receiver, sent, seconds)
        if start == sent:
            break
    occupy(schedule, sender, start, start + seconds)
    occupy(schedule, receiver, start, start + seconds)
    return start + seconds


@compiled
def inputs_ready(problem: ListProblem, schedule: Schedule, piece: int, device: int) -> float:
    """When all inputs of `piece` would be on `device`; nothing changes."""
    used, ready = schedule.used[0], 0.0
    for k in range(problem.input_ptr[piece], problem.input_ptr[piece + 1]):
        tensor = schedule.inputs[k]
        producer = problem.producer[tensor]
        source = schedule.group_device[problem.piece_group[producer]]
        if source == device:
            at = schedule.finish[producer]
        elif schedule.arrival[tensor, device] < np.inf:
            at = schedule.arrival[tensor, device]
        else:
            at = _send(problem, schedule, tensor, source, device)
        ready = max(ready, at)
    _undo(schedule, used)
    return ready


@compiled
def receive(problem: ListProblem, schedule: Schedule, piece: int, device: int) -> float:
    """Send to `device` what `piece` still needs there; when all inputs are there, in seconds."""
    used, ready = schedule.used[0], 0.0
    for k in range(problem.input_ptr[piece], problem.input_ptr[piece + 1]):
        tensor = schedule.inputs[k]
        producer = problem.producer[tensor]
        source = schedule.group_device[problem.piece_group[producer]]
        at = schedule.finish[producer]
        if source != device:
            if schedule.arrival[tensor, device] == np.inf:
                schedule.arrival[tensor, device] = _send(problem, schedule, tensor, source, device)
            at = schedule.arrival[tensor, device]
        ready = max(ready, at)
    for k in range(used, schedule.used[0]):
        schedule.version[schedule.owner[k]] = schedule.used[0]
    return ready


@compiled_inner
def run(problem: ListProblem, schedule: Schedule, piece: int, device: int, start: float) -> None:
    """Let `piece` run on `device` from `start`; consumers that miss nothing else become ready."""
    end = start + problem.op_seconds[piece, device]
    occupy(schedule, device, start, end)
    schedule.version[device] = schedule.used[0]
    schedule.start[piece], schedule.finish[piece] = start, end
    for k in range(problem.use_ptr[piece], problem.use_ptr[piece + 1]):
        consumer = problem.use_op[k]
        schedule.missing[consumer] -= 1
        if schedule.missing[consumer] == 0:
            _by_finish(problem, schedule, consumer)


@compiled_inner
def can_take(problem: ListProblem, schedule: Schedule, group: int, device: int) -> bool:
    """Whether `group` is on `device`, or undecided and may still go there."""
    if schedule.group_device[group] != NONE:
        return bool(schedule.group_device[group] == device)
    fits = problem.state[group] <= schedule.room[device]
    return bool(fits and schedule.allowed[group, device])


@compiled_inner
def _by_finish(problem: ListProblem, schedule: Schedule, piece: int) -> None:
    """Sort the inputs of `piece` by the time at which they are computed, then by tensor."""
    first = problem.input_ptr[piece]
    for k in range(first + 1, problem.input_ptr[piece + 1]):
        tensor = schedule.inputs[k]
        at = schedule.finish[problem.producer[tensor]]
        i = k
        while i > first and schedule.finish[problem.producer[schedule.inputs[i - 1]]] > at:
            schedule.inputs[i] = schedule.inputs[i - 1]
            i -= 1
        schedule.inputs[i] = tensor


def nothing() -> tuple[ListProblem, Schedule]:
    """A problem without pieces and its schedule: a rule run on them has its kernels compiled."""
    none, zero = np.zeros(0, dtype=np.int64), np.zeros(0)
    row, table, square = np.zeros(1, dtype=np.int64), np.zeros((0, 1)), np.zeros((1, 1), np.int64)
    problem = ListProblem(
        op_seconds=table, input_ptr=row, use_ptr=row, use_op=none, producer=none,
        transfer_seconds=table, link_class=square, send_port=square, receive_port=square,
        piece_group=none, state=zero,
    )  # fmt: skip
    schedule = Schedule(
        group_device=none, allowed=np.zeros((0, 1), dtype=np.bool_), room=np.zeros(1), inputs=none,
        missing=none, start=zero, finish=zero, arrival=table, first=row, last=row, before=none,
        after=none, begin=zero, end=zero, owner=none, used=row, version=row,
    )  # fmt: skip
    return problem, schedule
