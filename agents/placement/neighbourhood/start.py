"""List scheduling by upward rank: where a local search begins."""

from __future__ import annotations

import numba
import numpy as np

from agents.placement.neighbourhood.levels import Level
from agents.placement.neighbourhood.moves import BoolArray, FloatArray, IndexArray, IntArray
from envs.step.incremental import facts_of

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
    able = np.isfinite(problem.op_seconds)
    mean = np.where(able, problem.op_seconds, 0.0).sum(axis=1) / np.maximum(able.sum(axis=1), 1)
    classes = problem.topology.link_class
    apart = classes[~np.eye(len(classes), dtype=np.bool_)]
    moved = np.zeros(problem.graph.num_tensors)
    if len(apart):
        moved = problem.transfer_seconds[:, apart].mean(axis=1)
    rank = np.zeros(len(mean))
    _upward_rank(facts.use_ptr, facts.uses, mean, moved, rank)
    order = np.lexsort((np.arange(len(rank)), -rank))
    device = np.full(len(units.state), _NOWHERE, dtype=np.uint32)
    tensor = np.zeros(len(facts.inputs), dtype=np.uint32)
    tensor[facts.uses[:, 3]] = facts.uses[:, 1]
    placed = _schedule(
        facts.op_seconds, facts.input_ptr, facts.inputs, tensor, facts.transfer_seconds,
        facts.routes, units.of, units.state, units.allowed, room.copy(), order,
        np.zeros(len(facts.routes) + problem.topology.num_ports),
        np.full((problem.graph.num_tensors, len(classes)), -1.0), device,
    )  # fmt: skip
    return (device[units.of].astype(np.int64), order) if placed else None


@numba.njit(cache=True, nogil=True)
def _upward_rank(
    use_ptr: IndexArray, uses: IndexArray, mean: FloatArray, moved: FloatArray, rank: FloatArray
) -> None:
    """`rank` (N,) out: mean seconds from each operator's start to the end of the step."""
    for op in range(len(rank) - 1, -1, -1):
        longest = 0.0
        for k in range(use_ptr[op], use_ptr[op + 1]):
            longest = max(longest, moved[uses[k, 1]] + rank[uses[k, 0]])
        rank[op] = mean[op] + longest


@numba.njit(cache=True, nogil=True)
def _schedule(
    op_seconds: FloatArray,  # (K, D)
    input_ptr: IndexArray,  # (K + 1,)
    inputs: IndexArray,  # (C,) producer
    tensor: IndexArray,  # (C,)
    transfer_seconds: FloatArray,  # (T, L)
    routes: IndexArray,  # (D, D, 3)
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
            for d in range(op_seconds.shape[1]):
                if not allowed[u, d] or state[u] > room[d]:
                    continue
                now[:] = free
                end = op_seconds[op, d] + _ready(
                    op, d, input_ptr, inputs, tensor, transfer_seconds, routes, unit, device,
                    finish, arrived, now, False,
                )  # fmt: skip
                if end < best:
                    best, device[u] = end, np.uint32(d)
            if best == np.inf:
                return False
            room[device[u]] -= state[u]
        d = device[u]
        finish[op] = op_seconds[op, d] + _ready(
            op, d, input_ptr, inputs, tensor, transfer_seconds, routes, unit, device,
            finish, arrived, free, True,
        )  # fmt: skip
        free[d] = finish[op]
    return True


@numba.njit(cache=True, nogil=True)
def _ready(
    op: int,
    d: int,
    input_ptr: IndexArray,
    inputs: IndexArray,
    tensor: IndexArray,
    transfer_seconds: FloatArray,
    routes: IndexArray,
    unit: IndexArray,
    device: IndexArray,
    finish: FloatArray,  # (K,) seconds
    arrived: FloatArray,  # (T, D) seconds
    free: FloatArray,  # (R,) in and out: transfers are booked there
    keep: bool,  # whether the transfers are made, not only tried
) -> float:
    """When `op` can start on device `d`; arguments as in `_schedule`."""
    at: float = free[d]
    for i in range(input_ptr[op], input_ptr[op + 1]):
        source, came = device[unit[inputs[i]]], finish[inputs[i]]
        if source != d and arrived[tensor[i], d] >= 0.0:
            came = arrived[tensor[i], d]
        elif source != d:
            seconds = transfer_seconds[tensor[i], routes[source, d, 0]]
            if seconds > 0.0:
                out, into = routes[source, d, 1], routes[source, d, 2]
                came = max(came, free[out], free[into]) + seconds
                free[out] = came
                free[into] = came
            if keep:
                arrived[tensor[i], d] = came
        at = max(at, came)
    return at
