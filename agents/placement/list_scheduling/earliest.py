"""The piece that can start first is next: the rule of ETF and, with favourites, of SCT."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from agents.placement.list_scheduling.schedule import (
    ListProblem,
    Schedule,
    can_take,
    inputs_ready,
    receive,
    released,
    run,
)
from envs.arrays import BoolArray, FloatArray, IntArray
from envs.compilation import compiled, compiled_inner
from envs.graphs.op_graph import NONE


class _Queue(NamedTuple):
    """What the kernel knows about the pieces that are ready."""

    ready: IntArray  # (N,) pieces that miss no input and are not yet scheduled
    size: IntArray  # (1,) how many those are; -1: not yet collected
    waiting: BoolArray  # (N,) whether the piece is one of them
    arrived: FloatArray  # (N, D) when all inputs would be there, as last worked out
    stamp: IntArray  # (N, D) intervals in use at that time, -1: never worked out
    wanted: IntArray  # (2,) piece and device last proposed
    reserved: IntArray  # (D,) the favourite child that the device is awake for, or NONE
    latest: IntArray  # (D,) the piece that ran last on the device, or NONE
    proposed: BoolArray  # (1,) whether `wanted` waits for the caller's answer


class EarliestStart:
    """Always the ready piece that can start first; a `ListRule`.

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
        favourite: (N,) favourite child of each piece, or NONE.
        num_devices: D.
    """

    def __init__(self, rank: FloatArray, favourite: IntArray, num_devices: int) -> None:
        n = len(rank)
        self._rank = rank
        self._favourite = favourite
        self._queue = _Queue(
            ready=np.empty(n, dtype=np.int64),
            size=np.full(1, -1, dtype=np.int64),
            waiting=np.zeros(n, dtype=np.bool_),
            arrived=np.empty((n, num_devices)),
            stamp=np.full((n, num_devices), -1, dtype=np.int64),
            wanted=np.full(2, NONE, dtype=np.int64),
            reserved=np.full(num_devices, NONE, dtype=np.int64),
            latest=np.full(num_devices, NONE, dtype=np.int64),
            proposed=np.zeros(1, dtype=np.bool_),
        )

    def advance(self, problem: ListProblem, schedule: Schedule) -> tuple[int, int]:
        """As `ListRule.advance`."""
        piece, device = _advance(problem, schedule, self._queue, self._rank, self._favourite)
        return int(piece), int(device)


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
    arrived = receive(problem, schedule, piece, device)
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
def _devices(problem: ListProblem, schedule: Schedule, piece: int) -> tuple[int, int]:
    """The first device that comes into question for `piece`, and the one behind the last."""
    home = schedule.group_device[problem.piece_group[piece]]
    return (home, home + 1) if home != NONE else (0, problem.op_seconds.shape[1])


@compiled_inner
def _work_out(problem: ListProblem, schedule: Schedule, queue: _Queue, piece: int) -> None:
    """Bring the row of `piece` in `queue.arrived` up to date; inf: the device cannot take it."""
    low, high = _devices(problem, schedule, piece)
    for device in range(low, high):
        if not can_take(problem, schedule, problem.piece_group[piece], device):
            queue.arrived[piece, device] = np.inf
        elif _stale(problem, schedule, piece, device, queue.stamp[piece, device]):
            queue.arrived[piece, device] = inputs_ready(problem, schedule, piece, device)
            queue.stamp[piece, device] = schedule.used[0]


@compiled_inner
def _stale(problem: ListProblem, schedule: Schedule, piece: int, device: int, stamp: int) -> bool:
    """Whether a resource that the inputs of `piece` need has changed since `stamp`."""
    devices = problem.op_seconds.shape[1]
    if stamp < 0 or schedule.version[device] > stamp:
        return True
    for k in range(problem.input_ptr[piece], problem.input_ptr[piece + 1]):
        tensor = schedule.inputs[k]
        source = schedule.group_device[problem.piece_group[problem.producer[tensor]]]
        if source != device and schedule.arrival[tensor, device] == np.inf:
            sender = devices + problem.send_port[source, device]
            receiver = devices + problem.receive_port[source, device]
            if schedule.version[sender] > stamp or schedule.version[receiver] > stamp:
                return True
    return False


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
    low, high = _devices(problem, schedule, piece)
    urgent = 0.0
    for device in range(low, high):
        if queue.arrived[piece, device] < np.inf:
            urgent = max(urgent, queue.arrived[piece, device])
    where, first_start, first_finish, first_reserved = NONE, np.inf, np.inf, False
    for device in range(low, high):
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
