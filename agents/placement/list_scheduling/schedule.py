"""A partial schedule, compiled: pieces on devices, tensors on ports, each in the first gap.

What every list scheduler shares. Every device and every port keeps a calendar of what it does; a
transfer takes the first time at which both its ports are free for as long as it lasts, before
transfers that were scheduled earlier where there is room (insertion; Sinnen, Sousa,
"Communication contention in task scheduling", IEEE TPDS 16(6), 2005). The durations and the ports
are those of `envs.step.step`: a tensor is sent once per receiving device, transfers of zero
duration hold no port, and full duplex ports carry one transfer at a time each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from agents.step.grouping import GroupedProblem
from envs.arrays import BoolArray, FloatArray, IntArray, sums_before
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


# Schedules pieces up to the first whose group is undecided. Returns that piece and the device that
# is wanted for its group, (piece, NONE) when no device can take the group, and (NONE, NONE) when
# nothing is left to schedule. The caller decides the group, or rules the device out in
# `Schedule.allowed`, and calls again.
ListRule = Callable[[ListProblem, Schedule], tuple[int, int]]
MakeRule = Callable[[], ListRule]  # a new one for every schedule


def list_problem(grouped: GroupedProblem) -> ListProblem:
    """The arrays of `grouped`."""
    problem, graph = grouped.problem, grouped.problem.graph
    topology = problem.topology
    inputs = np.bincount(graph.consumer, minlength=graph.num_operators)
    return ListProblem(
        op_seconds=np.ascontiguousarray(problem.op_seconds, dtype=np.float64),
        input_ptr=sums_before(inputs),
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
    start, finish = np.zeros((2, n))
    first, last = np.full((2, resources), NONE, dtype=np.int64)
    before, after, owner = np.empty((3, intervals), dtype=np.int64)
    begin, end = np.empty((2, intervals))
    return Schedule(
        np.full(grouped.num_groups, NONE, dtype=np.int64),
        grouped.allowed.copy(),
        room.copy(),
        edges[np.lexsort((edges[:, 2], edges[:, 1])), 2],
        np.bincount(edges[:, 1], minlength=n),
        start,
        finish,
        np.full((t, d), np.inf),
        first,
        last,
        before,
        after,
        begin,
        end,
        owner,
        np.zeros(1, dtype=np.int64),
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


@compiled_inner
def _link(schedule: Schedule, resource: int, before: int, after: int) -> None:
    """One interval of a calendar follows another, or NONE."""
    if before == NONE:
        schedule.first[resource] = after
    else:
        schedule.after[before] = after
    if after == NONE:
        schedule.last[resource] = before
    else:
        schedule.before[after] = before


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
    _link(schedule, resource, before, new)
    _link(schedule, resource, new, after)


@compiled_inner
def _undo(schedule: Schedule, used: int) -> None:
    """Take the latest intervals out again until `used` are left."""
    while schedule.used[0] > used:
        schedule.used[0] -= 1
        old = schedule.used[0]
        _link(schedule, schedule.owner[old], schedule.before[old], schedule.after[old])


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
def receive(problem: ListProblem, schedule: Schedule, piece: int, device: int, keep: bool) -> float:
    """When all inputs of `piece` would be on `device`, in seconds.

    What it still needs there is sent if `keep`; else nothing changes.
    """
    used, ready = schedule.used[0], 0.0
    for k in range(problem.input_ptr[piece], problem.input_ptr[piece + 1]):
        tensor = schedule.inputs[k]
        producer = problem.producer[tensor]
        source = schedule.group_device[problem.piece_group[producer]]
        at = schedule.finish[producer]
        if source != device:
            at = schedule.arrival[tensor, device]
            if at == np.inf:
                at = _send(problem, schedule, tensor, source, device)
                if keep:
                    schedule.arrival[tensor, device] = at
        ready = max(ready, at)
    if not keep:
        _undo(schedule, used)
    return ready


@compiled_inner
def run(problem: ListProblem, schedule: Schedule, piece: int, device: int, start: float) -> None:
    """Let `piece` run on `device` from `start`; consumers that miss nothing else become ready."""
    end = start + problem.op_seconds[piece, device]
    occupy(schedule, device, start, end)
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


class _Queue(NamedTuple):
    """What the kernel knows about the pieces that are ready."""

    ready: IntArray  # (N,) pieces that miss no input and are not yet scheduled
    size: IntArray  # (1,) how many those are; -1: not yet collected
    waiting: BoolArray  # (N,) whether the piece is one of them
    arrived: FloatArray  # (N, D) when all inputs would be there
    wanted: IntArray  # (2,) piece and device last proposed
    reserved: IntArray  # (D,) the favourite child that the device is awake for, or NONE
    latest: IntArray  # (D,) the piece that ran last on the device, or NONE
    proposed: BoolArray  # (1,) whether `wanted` waits for the caller's answer


def earliest_start(rank: FloatArray, favourite: IntArray | None, num_devices: int) -> ListRule:
    """Always the ready piece that can start first; made anew for every schedule.

    Pieces are appended behind what their device does already. The device of a piece is where it
    would finish first (where devices are equal: where it can start first); the piece that starts
    first on its device is next.

    A device is *awake* while the piece that ran last on it has a favourite child that is ready,
    undecided, and finishes nowhere earlier than here: any other piece then starts on that device
    no earlier than when its inputs would be on every device that can take it, since only then is
    it urgent. Of devices where a piece finishes at the same time it prefers the one awake for it,
    then the first. Of pieces that start at the same time the urgent ones go before a favourite
    child on the device awake for it, then the larger rank goes first, then the smaller number.

    Args:
        rank: (N,) priority of each piece among those that can start at the same time.
        favourite: (N,) favourite child of each piece, or NONE; None: none has one.
        num_devices: D.
    """
    n = len(rank)
    children = np.full(n, NONE, dtype=np.int64) if favourite is None else favourite
    queue = _Queue(
        ready=np.empty(n, dtype=np.int64),
        size=np.full(1, -1, dtype=np.int64),
        waiting=np.zeros(n, dtype=np.bool_),
        arrived=np.empty((n, num_devices)),
        wanted=np.full(2, NONE, dtype=np.int64),
        reserved=np.full(num_devices, NONE, dtype=np.int64),
        latest=np.full(num_devices, NONE, dtype=np.int64),
        proposed=np.zeros(1, dtype=np.bool_),
    )
    return lambda problem, schedule: _advance(problem, schedule, queue, rank, children)


@compiled
def _advance(
    problem: ListProblem, schedule: Schedule, queue: _Queue, rank: FloatArray, favourite: IntArray
) -> tuple[int, int]:
    if queue.size[0] < 0:
        queue.size[0] = 0
        for piece in range(len(rank)):
            if schedule.missing[piece] == 0:
                _enqueue(queue, piece)
    if queue.proposed[0]:
        queue.proposed[0] = False
        if schedule.group_device[problem.piece_group[queue.wanted[0]]] == queue.wanted[1]:
            _schedule(problem, schedule, queue, queue.wanted[0], queue.wanted[1])
    while queue.size[0] > 0:
        for index in range(queue.size[0]):
            _work_out(problem, schedule, queue, queue.ready[index])
        _wake(problem, schedule, queue, favourite)
        piece, device = _earliest(problem, schedule, queue, rank)
        undecided = schedule.group_device[problem.piece_group[piece]] == NONE
        if device == NONE or undecided:
            queue.wanted[0], queue.wanted[1] = piece, device
            queue.proposed[0] = device != NONE
            return piece, device
        _schedule(problem, schedule, queue, piece, device)
    return NONE, NONE


@compiled_inner
def _enqueue(queue: _Queue, piece: int) -> None:
    queue.ready[queue.size[0]] = piece
    queue.size[0] += 1
    queue.waiting[piece] = True


@compiled_inner
def _schedule(
    problem: ListProblem, schedule: Schedule, queue: _Queue, piece: int, device: int
) -> None:
    arrived = receive(problem, schedule, piece, device, True)
    run(problem, schedule, piece, device, max(arrived, released(schedule, device)))
    queue.latest[device] = piece
    queue.waiting[piece] = False
    for index in range(queue.size[0]):
        if queue.ready[index] == piece:
            queue.ready[index] = queue.ready[queue.size[0] - 1]
            queue.size[0] -= 1
            break
    for k in range(problem.use_ptr[piece], problem.use_ptr[piece + 1]):
        consumer = problem.use_op[k]
        if schedule.missing[consumer] == 0 and not queue.waiting[consumer]:
            _enqueue(queue, consumer)


@compiled_inner
def _work_out(problem: ListProblem, schedule: Schedule, queue: _Queue, piece: int) -> None:
    """Bring the row of `piece` in `queue.arrived` up to date; inf: the device cannot take it."""
    for device in range(len(queue.reserved)):
        queue.arrived[piece, device] = np.inf
        if can_take(problem, schedule, problem.piece_group[piece], device):
            queue.arrived[piece, device] = receive(problem, schedule, piece, device, False)


@compiled_inner
def _start(schedule: Schedule, queue: _Queue, piece: int, device: int) -> float:
    """When `piece` could start on `device`, in seconds."""
    start: float = max(queue.arrived[piece, device], released(schedule, device))
    return start


@compiled_inner
def _wake(problem: ListProblem, schedule: Schedule, queue: _Queue, favourite: IntArray) -> None:
    """Find the favourite child that each device is awake for."""
    for device in range(len(queue.reserved)):
        queue.reserved[device] = NONE
        if queue.latest[device] == NONE:
            continue
        child = favourite[queue.latest[device]]
        if child == NONE or not queue.waiting[child]:
            continue
        if schedule.group_device[problem.piece_group[child]] != NONE:
            continue
        here, earliest = np.inf, np.inf
        for other in range(len(queue.reserved)):
            finish = _start(schedule, queue, child, other) + problem.op_seconds[child, other]
            earliest = min(earliest, finish)
            if other == device:
                here = finish
        if here < np.inf and here == earliest:
            queue.reserved[device] = child


@compiled_inner
def _earliest(
    problem: ListProblem, schedule: Schedule, queue: _Queue, rank: FloatArray
) -> tuple[int, int]:
    """The piece that comes next and its device, or a piece that no device can take and NONE."""
    best, where, best_start, best_reserved = NONE, NONE, np.inf, False
    for index in range(queue.size[0]):
        piece = queue.ready[index]
        device, start = _best_device(problem, schedule, queue, piece)
        if device == NONE:
            return piece, NONE
        reserved = queue.reserved[device] == piece
        if best == NONE or (start, reserved, -rank[piece], piece) < (
            best_start, best_reserved, -rank[best], best
        ):  # fmt: skip
            best, where, best_start, best_reserved = piece, device, start, reserved
    return best, where


@compiled_inner
def _best_device(
    problem: ListProblem, schedule: Schedule, queue: _Queue, piece: int
) -> tuple[int, float]:
    """Where `piece` finishes first, and when it starts there; NONE: no device can take it."""
    urgent = 0.0
    for device in range(len(queue.reserved)):
        if queue.arrived[piece, device] < np.inf:
            urgent = max(urgent, queue.arrived[piece, device])
    where, first_start, first_finish, first_reserved = NONE, np.inf, np.inf, False
    for device in range(len(queue.reserved)):
        start = _start(schedule, queue, piece, device)
        reserved = queue.reserved[device] == piece
        if queue.reserved[device] != NONE and not reserved:
            start = max(start, urgent)
        finish = start + problem.op_seconds[piece, device]
        if finish < first_finish or (
            finish == first_finish < np.inf and reserved and not first_reserved
        ):
            where, first_start, first_finish, first_reserved = device, start, finish, reserved
    return where, first_start
