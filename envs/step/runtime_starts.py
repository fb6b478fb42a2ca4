"""When a dynamic runtime would start the operators of a placed step: a kernel for look-ahead."""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from envs.graphs.op_graph import NONE
from envs.step.arrays import Scratch, StepArrays

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


@numba.njit(cache=True, nogil=True)
def runtime_starts(
    arrays: StepArrays, work: Scratch, num_ports: int, device: IntArray, start: FloatArray
) -> None:
    """Starts in seconds, by position, of placement `device` (N,) under the `ready` discipline.

    The rules are those of `envs.step.ready`, ranked by the order that `use_order` was called
    for. Few devices are assumed: every event looks at all of them and at all pairs.
    """
    n, devices = len(device), arrays.op_seconds.shape[1]
    for p in range(n):
        work.device[p] = device[work.order[p]]
    transfer, pair, producer, seconds, missing = _transfers(arrays, work, num_ports)
    op_heap, op_ptr, op_size = _heaps(work.device, devices)
    heap, heap_ptr, size = _heaps(pair, devices * devices)
    instant, instants = np.empty(len(pair), dtype=np.int64), 0  # transfers of zero duration
    running, op_end = np.full(devices, NONE), np.full(devices, np.inf)
    moving, end = np.full(devices * devices, NONE), np.full(devices * devices, np.inf)
    busy = np.zeros(max(num_ports, 1), dtype=np.bool_)
    for p in range(n):
        if missing[p] == 0:
            _push(op_heap, op_ptr[work.device[p]], op_size, work.device[p], p)
    now, changed = 0.0, False  # changed: a port became idle or a transfer began to wait
    while True:
        for d in range(devices):
            if running[d] == NONE and op_size[d] > 0:
                p = _pop(op_heap, op_ptr[d], op_size, d)
                running[d], start[p] = p, now
                op_end[d] = now + arrays.op_seconds[work.order[p], d]
        while changed:
            first, of = len(pair), NONE
            for q in range(len(size)):
                if size[q] == 0 or heap[heap_ptr[q]] >= first:
                    continue
                i, j = q // devices, q % devices
                if not busy[arrays.send_port[i, j]] and not busy[arrays.receive_port[i, j]]:
                    first, of = heap[heap_ptr[q]], q
            if of == NONE:
                changed = False
                break
            moving[of], end[of] = _pop(heap, heap_ptr[of], size, of), now + seconds[first]
            busy[arrays.send_port[of // devices, of % devices]] = True
            busy[arrays.receive_port[of // devices, of % devices]] = True
        following = now if instants > 0 else min(op_end.min(), end.min())
        if following == np.inf:
            break
        now, ended, instants = following, instants, 0
        for x in range(ended):
            _arrive(instant[x], transfer, producer, work, missing, op_heap, op_ptr, op_size)
        for q in range(len(moving)):
            if end[q] == now:
                _arrive(moving[q], transfer, producer, work, missing, op_heap, op_ptr, op_size)
                moving[q], end[q], changed = NONE, np.inf, True
                busy[arrays.send_port[q // devices, q % devices]] = False
                busy[arrays.receive_port[q // devices, q % devices]] = False
        for d in range(devices):
            if op_end[d] != now:
                continue
            p = running[d]
            running[d], op_end[d] = NONE, np.inf
            latest = NONE
            for k in range(work.use_ptr[p], work.use_ptr[p + 1]):
                c, m = work.use_op[k], transfer[k]
                if m == NONE:
                    missing[c] -= 1
                    if missing[c] == 0:
                        _push(op_heap, op_ptr[d], op_size, d, c)
                elif m > latest:  # the first use that it serves
                    latest = m
                    if seconds[m] > 0.0:
                        _push(heap, heap_ptr[pair[m]], size, pair[m], m)
                        changed = True
                    else:
                        instant[instants] = m
                        instants += 1


@numba.njit(cache=True, nogil=True)
def _transfers(
    arrays: StepArrays, work: Scratch, num_ports: int
) -> tuple[IntArray, IntArray, IntArray, FloatArray, IntArray]:
    """The transfers, numbered as ports rank them: producer's position, first consumer's, tensor.

    Returns:
        (C,) the transfer that serves each use, NONE on the same device; of every transfer the pair
        of devices, the producer's position and the duration; (N,) uses of every position.
    """
    n, devices = len(work.device), arrays.op_seconds.shape[1]
    uses = len(work.use_op)
    transfer, missing = np.full(uses, NONE), np.zeros(n, dtype=np.int64)
    pair, producer = np.empty(uses, dtype=np.int64), np.empty(uses, dtype=np.int64)
    seconds = np.zeros(uses)
    stamp = np.full(work.stamp.shape, NONE)
    number = np.zeros(work.stamp.shape, dtype=np.int64)
    count = 0
    for p in range(n):
        d = work.device[p]
        for k in range(work.use_ptr[p], work.use_ptr[p + 1]):
            missing[work.use_op[k]] += 1
            e, slot = work.device[work.use_op[k]], work.use_slot[k]
            if e == d:
                continue
            if stamp[slot, e] != p:
                stamp[slot, e], number[slot, e] = p, count
                pair[count], producer[count] = d * devices + e, p
                if num_ports > 0:
                    link = arrays.link_class[d, e]
                    seconds[count] = arrays.transfer_seconds[work.use_tensor[k], link]
                count += 1
            transfer[k] = number[slot, e]
    return transfer, pair[:count], producer[:count], seconds[:count], missing


@numba.njit(cache=True, nogil=True)
def _arrive(
    m: int,
    transfer: IntArray,
    producer: IntArray,
    work: Scratch,
    missing: IntArray,
    op_heap: IntArray,
    op_ptr: IntArray,
    op_size: IntArray,
) -> None:
    """Transfer `m` has come to its consumers."""
    p = producer[m]
    for k in range(work.use_ptr[p], work.use_ptr[p + 1]):
        if transfer[k] == m:
            c = work.use_op[k]
            missing[c] -= 1
            if missing[c] == 0:
                e = work.device[c]
                _push(op_heap, op_ptr[e], op_size, e, c)


@numba.njit(cache=True, nogil=True)
def _heaps(owner: IntArray, owners: int) -> tuple[IntArray, IntArray, IntArray]:
    """Room for an empty heap of each owner's items, where the heaps begin, and their sizes."""
    begin = np.zeros(owners + 1, dtype=np.int64)
    for o in owner:
        begin[o + 1] += 1
    for o in range(owners):
        begin[o + 1] += begin[o]
    return np.empty(len(owner), dtype=np.int64), begin, np.zeros(owners, dtype=np.int64)


@numba.njit(cache=True, nogil=True)
def _push(heap: IntArray, begin: int, size: IntArray, owner: int, item: int) -> None:
    i = size[owner]
    size[owner] += 1
    while i > 0:
        parent = (i - 1) // 2
        if heap[begin + parent] <= item:
            break
        heap[begin + i] = heap[begin + parent]
        i = parent
    heap[begin + i] = item


@numba.njit(cache=True, nogil=True)
def _pop(heap: IntArray, begin: int, size: IntArray, owner: int) -> int:
    """The least item."""
    least = int(heap[begin])
    size[owner] -= 1
    length = size[owner]
    item, i = heap[begin + length], 0
    while 2 * i + 1 < length:
        child = 2 * i + 1
        if child + 1 < length and heap[begin + child + 1] < heap[begin + child]:
            child += 1
        if item <= heap[begin + child]:
            break
        heap[begin + i] = heap[begin + child]
        i = child
    heap[begin + i] = item
    return least
