"""Playing what is ready: what a dynamic runtime does instead of following a fixed order."""

from __future__ import annotations

import numpy as np

from envs.arrays import FloatArray, IntArray
from envs.compilation import compiled, compiled_inner
from envs.graphs.op_graph import NONE, Phase
from envs.heap import pop_number, push_number
from envs.step.kernel import Log, Scratch, StepArrays
from envs.step.step import StepSimulator, step_time_in_order, use_order
from envs.step.timeline import Timeline


class ReadySimulator(StepSimulator):
    """Like `StepSimulator`, but the order only ranks what is ready.

    At every instant first everything that ends then ends, with it the transfers of zero duration
    that this starts; then each idle device starts the ready operator (all inputs arrived) that
    stands first in the order, and each waiting transfer, by (producer's position, first consumer's
    position, tensor), starts if both its ports are free.
    Operators of zero duration end at the instant they start.
    """

    def step_times(self, devices: IntArray, order: IntArray | None = None) -> FloatArray:
        """(B,) seconds of B placements `devices` (B, N)."""
        return np.array([self.run(device, order).step_time for device in devices])

    def run(self, device: IntArray, order: IntArray | None = None) -> Timeline:
        """The whole step of placement `device` (N,), ranked by `order` or the order rule."""
        device = np.ascontiguousarray(device, dtype=np.int64)
        ranked = self.order(device) if order is None else np.asarray(order, np.int64)
        log = self._log()
        _run(self.arrays, self.scratch, self._num_ports, device, ranked, log)
        return self._timeline(device, log)


@compiled
def _run(
    arrays: StepArrays,
    work: Scratch,
    num_ports: int,
    device: IntArray,  # (N,)
    ranked: IntArray,  # (N,)
    log: Log,  # out
) -> None:
    start = np.empty(len(device))
    work.order[:] = ranked
    use_order(arrays, work)
    runtime_starts(arrays, work, num_ports, device, start, log)
    for p in range(len(device)):
        op = ranked[p]
        log.op_start[op], log.op_finish[op] = start[p], start[p] + arrays.op_seconds[op, device[op]]


@compiled_inner
def runtime_starts(
    arrays: StepArrays,
    work: Scratch,
    num_ports: int,
    device: IntArray,  # (N,)
    start: FloatArray,  # (N,) out: seconds, by position; inf where that never happens
    log: Log | None = None,  # out: the transfers; compiled away where there is none
    window: int = 0,  # micro-batches under way on a device, at most; 0: any number
) -> None:
    """When the operators start by the rules of `ReadySimulator`.

    They are ranked by the order that `use_order` was called for. Under a window a device begins
    the forward operators of micro-batch m when it has run all its backward operators of micro-batch
    m - window. Few devices are assumed: every event looks at all of them, and at all pairs of them
    with transfers under way or waiting.
    """
    n, devices = len(device), arrays.op_seconds.shape[1]
    for p in range(n):
        work.device[p] = device[work.order[p]]
    transfer, pair, producer, seconds, missing = _transfers(arrays, work, num_ports)
    # by device and micro-batch: backward operators to be run, forward ones that wait for them
    left, held, held_ptr = _held(arrays, work, window, missing)
    start[:] = np.inf
    if log is not None:
        log.moves[0] = len(pair)
        log.moved_time[:] = np.inf
        for k in range(len(transfer)):
            m = transfer[k]
            if m != NONE:
                log.moved[m, 0] = work.use_tensor[k]
                log.moved[m, 1], log.moved[m, 2] = pair[m] // devices, pair[m] % devices
    op_heap, op_ptr, op_size = _heaps(work.device, devices)
    heap, heap_ptr, size = _heaps(pair, devices * devices)
    instant, instants = np.empty(len(pair), dtype=np.int64), 0  # transfers of zero duration
    running, op_end = np.full(devices, NONE), np.full(devices, np.inf)
    moving, end = np.full(devices * devices, NONE), np.full(devices * devices, np.inf)
    sending, waiting = np.empty((2, devices * devices), dtype=np.int64)  # pairs, in any order
    num_sending, num_waiting = 0, 0
    busy = np.zeros(max(num_ports, 1), dtype=np.bool_)
    for p in range(n):
        if missing[p] == 0:
            _push(op_heap, op_ptr[work.device[p]], op_size, work.device[p], p)
    now, changed = 0.0, False  # changed: a port became idle or a transfer began to wait
    while True:
        for d in range(devices if instants == 0 else 0):  # what comes at this instant comes first
            if running[d] == NONE and op_size[d] > 0:
                p = _pop(op_heap, op_ptr[d], op_size, d)
                running[d], start[p] = p, now
                op_end[d] = now + arrays.op_seconds[work.order[p], d]
        while changed:
            first, of, place = len(pair), NONE, 0
            for x in range(num_waiting):
                q = waiting[x]
                if heap[heap_ptr[q]] >= first:
                    continue
                i, j = q // devices, q % devices
                if not busy[arrays.send_port[i, j]] and not busy[arrays.receive_port[i, j]]:
                    first, of, place = heap[heap_ptr[q]], q, x
            if of == NONE:
                changed = False
                break
            moving[of], end[of] = _pop(heap, heap_ptr[of], size, of), now + seconds[first]
            if size[of] == 0:
                num_waiting -= 1
                waiting[place] = waiting[num_waiting]
            sending[num_sending] = of
            num_sending += 1
            busy[arrays.send_port[of // devices, of % devices]] = True
            busy[arrays.receive_port[of // devices, of % devices]] = True
            if log is not None:
                log.moved_time[first, 0], log.moved_time[first, 1] = now, end[of]
        following = now if instants > 0 else op_end.min()
        for x in range(num_sending):
            following = min(following, end[sending[x]])
        if following == np.inf:
            break
        now, ended, instants = following, instants, 0
        for x in range(ended):
            _arrive(instant[x], transfer, producer, work, missing, op_heap, op_ptr, op_size)
        for x in range(num_sending - 1, -1, -1):
            q = sending[x]
            if end[q] == now:
                _arrive(moving[q], transfer, producer, work, missing, op_heap, op_ptr, op_size)
                moving[q], end[q], changed = NONE, np.inf, True
                num_sending -= 1
                sending[x] = sending[num_sending]
                busy[arrays.send_port[q // devices, q % devices]] = False
                busy[arrays.receive_port[q // devices, q % devices]] = False
        for d in range(devices):
            if op_end[d] != now:
                continue
            p = running[d]
            running[d], op_end[d] = NONE, np.inf
            if window > 0 and arrays.phase[work.order[p]] == Phase.BACKWARD:
                m = arrays.micro_batch[work.order[p]]
                if m >= 0:
                    left[d, m] -= 1
                    row = d * left.shape[1] + m
                    for i in range(held_ptr[row], held_ptr[row + 1] if left[d, m] == 0 else 0):
                        missing[held[i]] -= 1
                        if missing[held[i]] == 0:
                            _push(op_heap, op_ptr[d], op_size, d, held[i])
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
                        if size[pair[m]] == 0:
                            waiting[num_waiting] = pair[m]
                            num_waiting += 1
                        _push(heap, heap_ptr[pair[m]], size, pair[m], m)
                        changed = True
                    else:
                        instant[instants] = m
                        instants += 1
                        if log is not None:
                            log.moved_time[m, 0] = log.moved_time[m, 1] = now


@compiled_inner
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
    transfer, missing = np.full(uses, NONE), np.zeros(n, np.int64)
    pair, producer = np.empty(uses, np.int64), np.empty(uses, np.int64)
    seconds = np.zeros(uses)
    stamp = np.full(work.stamp.shape, NONE)
    number = np.zeros(work.stamp.shape, np.int64)
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


@compiled_inner
def _held(
    arrays: StepArrays, work: Scratch, window: int, missing: IntArray
) -> tuple[IntArray, IntArray, IntArray]:
    """What a window holds up; one more is `missing` for each of those operators.

    Returns:
        (D, M) backward operators of each device and micro-batch; the forward operators that each of
        these rows holds up, and where its part begins.
    """
    devices, parts = arrays.op_seconds.shape[1], arrays.num_micro_batches
    left = np.zeros((devices, parts), dtype=np.int64)
    begin = np.zeros(devices * parts + 1, np.int64)
    if window == 0:
        return left, np.empty(0, np.int64), begin
    n = len(work.device)
    for p in range(n):
        op = work.order[p]
        if arrays.phase[op] == Phase.BACKWARD and arrays.micro_batch[op] >= 0:
            left[work.device[p], arrays.micro_batch[op]] += 1
    row = np.full(n, NONE)
    for p in range(n):
        op, d = work.order[p], np.int64(work.device[p])
        m = arrays.micro_batch[op] - window
        if arrays.phase[op] == Phase.FORWARD and m >= 0 and left[d, m] > 0:
            row[p] = d * parts + m
            missing[p] += 1
            begin[row[p] + 1] += 1
    for r in range(devices * parts):
        begin[r + 1] += begin[r]
    held, at = np.empty(begin[-1], np.int64), begin[:-1].copy()
    for p in range(n):
        if row[p] != NONE:
            held[at[row[p]]] = p
            at[row[p]] += 1
    return left, held, begin


@compiled_inner
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


@compiled_inner
def _heaps(owner: IntArray, owners: int) -> tuple[IntArray, IntArray, IntArray]:
    """Room for an empty heap of each owner's items, where the heaps begin, and their sizes."""
    begin = np.zeros(owners + 1, np.int64)
    for o in owner:
        begin[o + 1] += 1
    for o in range(owners):
        begin[o + 1] += begin[o]
    return np.empty(len(owner), dtype=np.int64), begin, np.zeros(owners, np.int64)


@compiled_inner
def _push(heap: IntArray, begin: int, size: IntArray, owner: int, item: int) -> None:
    push_number(heap, begin, size[owner], item)
    size[owner] += 1


@compiled_inner
def _pop(heap: IntArray, begin: int, size: IntArray, owner: int) -> int:
    """The least item."""
    least = int(heap[begin])
    pop_number(heap, begin, size[owner])
    size[owner] -= 1
    return least


class FasterOrder(StepSimulator):
    """As `StepSimulator`; a bare placement gets the faster of two orders.

    One is that of the order rule (1F1B by default). The other is the order in which a dynamic
    runtime that ranks ready operators by the first would start them (`ReadySimulator`):
    where the rule has a device wait for an input, such a runtime goes on with the next operator.
    """

    def order(self, device: IntArray) -> IntArray:
        """(N,) the faster order of placement `device` (N,)."""
        return self._faster(np.ascontiguousarray(device, dtype=np.int64))[1]

    def step_times(self, devices: IntArray, order: IntArray | None = None) -> FloatArray:
        """(B,) seconds of B placements `devices` (B, N), each in `order` or in its faster one."""
        if order is not None:
            return super().step_times(devices, order)
        devices = np.ascontiguousarray(devices, dtype=np.int64)
        return np.array([self._faster(device)[0] for device in devices])

    def _faster(self, device: IntArray) -> tuple[float, IntArray]:
        ranked = self.order_rule(self.problem.graph, device)
        order = np.empty(len(device), dtype=np.int64)
        seconds = _faster_order(self.arrays, self.scratch, self._num_ports, device, ranked, order)
        return seconds, order


@compiled
def _faster_order(
    arrays: StepArrays,
    work: Scratch,
    num_ports: int,
    device: IntArray,  # (N,)
    ranked: IntArray,  # (N,) the order of the rule
    order: IntArray,  # (N,) out
) -> float:
    """Seconds of placement `device` in the faster order, which is written to `order`."""
    n = len(device)
    for p in range(n):
        work.order[p] = ranked[p]
        order[p] = ranked[p]
    use_order(arrays, work)
    seconds: float = step_time_in_order(arrays, work, device)
    start = np.empty(n)
    runtime_starts(arrays, work, num_ports, device, start)
    by_start = ranked[np.argsort(start, kind="mergesort")]  # stable: equal starts as ranked
    for p in range(n):
        work.order[p] = by_start[p]
    use_order(arrays, work)
    other: float = step_time_in_order(arrays, work, device)
    if other < seconds:
        order[:] = by_start
        return other
    return seconds
