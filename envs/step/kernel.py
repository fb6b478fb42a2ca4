"""The play of a step in a given order, in one pass, and the arrays that compiled code takes.

One pass is exact since every device, port and tensor is served in the order of the plan: a device
runs its operators in it, a port serves transfers by their producers' places in it. So when the loop
comes to an operator, all that it may have to wait for, its inputs, its device and the ports of its
transfers, belongs to operators before it, whose times are final; nothing later can change them.

Index arrays of the inner loop are unsigned: compiled code then need not test every index for being
negative, which is worth a quarter of its time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.arrays import BoolArray, FloatArray, IntArray
from envs.compilation import compiled, unchecked_inner
from envs.step.problem import StepProblem

IndexArray = NDArray[np.uint32]


class StepArrays(NamedTuple):
    """A `StepProblem` for kernels; uses are rows of (consumer, tensor, slot) by producer."""

    op_seconds: FloatArray  # (N, D)
    use_ptr: IntArray  # (N + 1,)
    use_op: IntArray  # (C,)
    use_tensor: IntArray  # (C,)
    use_slot: IntArray  # (C,)
    transfer_seconds: FloatArray  # (T, L)
    link_class: IndexArray  # (D, D)
    send_port: IndexArray  # (D, D)
    receive_port: IndexArray  # (D, D)
    phase: IntArray  # (N,)
    micro_batch: IntArray  # (N,)
    num_micro_batches: int
    weight_gradient: BoolArray  # (N,)


class Scratch(NamedTuple):
    """Working memory of one simulation at a time; one per thread."""

    order: IndexArray  # (N,)
    position: IndexArray  # (N,)
    key: IntArray  # (N,)
    depth: IntArray  # (N,)
    by_depth: IndexArray  # (N,)
    device: IndexArray  # (N,) by position
    use_ptr: IndexArray  # (N + 1,) relabelled
    use_op: IndexArray  # (C,)
    use_tensor: IndexArray  # (C,)
    use_slot: IndexArray  # (C,)
    ready: FloatArray  # (N,) zero between simulations
    device_free: FloatArray  # (D,)
    port_free: FloatArray  # (ports,); (0,) when transfers take no time
    arrival: FloatArray  # (slots, D)
    stamp: IntArray  # (slots, D)
    ticket: IntArray  # (1,) larger than every stamp


def step_arrays(problem: StepProblem) -> StepArrays:
    """The arrays of `problem`."""
    graph, topology = problem.graph, problem.topology
    uses = graph.uses
    return StepArrays(
        op_seconds=np.ascontiguousarray(problem.op_seconds, dtype=np.float64),
        use_ptr=graph.use_ptr,
        use_op=graph.use_op,
        use_tensor=np.ascontiguousarray(uses[:, 1]),
        use_slot=np.ascontiguousarray(uses[:, 2]),
        transfer_seconds=np.ascontiguousarray(problem.transfer_seconds, dtype=np.float64),
        link_class=np.ascontiguousarray(topology.link_class).astype(np.uint32),
        send_port=np.ascontiguousarray(topology.send_port).astype(np.uint32),
        receive_port=np.ascontiguousarray(topology.receive_port).astype(np.uint32),
        phase=graph.phase,
        micro_batch=graph.micro_batch,
        num_micro_batches=graph.num_micro_batches,
        weight_gradient=graph.weight_gradient,
    )


def scratch(arrays: StepArrays, num_ports: int) -> Scratch:
    """Fresh working memory for `arrays`; `num_ports` = 0 makes transfers free."""
    n, d = arrays.op_seconds.shape
    uses = len(arrays.use_op)
    slots = int(arrays.use_slot.max(initial=0)) + 1
    return Scratch(
        order=np.arange(n, dtype=np.uint32),
        position=np.arange(n, dtype=np.uint32),
        key=np.zeros(n, np.int64),
        depth=np.zeros(n, np.int64),
        by_depth=np.zeros(n, np.uint32),
        device=np.zeros(n, np.uint32),
        use_ptr=np.zeros(n + 1, np.uint32),
        use_op=np.zeros(uses, np.uint32),
        use_tensor=np.zeros(uses, np.uint32),
        use_slot=np.zeros(uses, np.uint32),
        ready=np.zeros(n),
        device_free=np.zeros(d),
        port_free=np.zeros(num_ports),
        arrival=np.zeros((slots, d)),
        stamp=np.full((slots, d), -1),
        ticket=np.zeros(1, np.int64),
    )


class Log(NamedTuple):
    """What `play` writes down; a transfer of zero duration starts when it finishes."""

    op_start: FloatArray  # (N,) by operator
    op_finish: FloatArray  # (N,) by operator
    moves: IntArray  # (1,) transfers so far
    moved: IntArray  # (C, 3) of each: tensor, source, destination
    moved_time: FloatArray  # (C, 2) of each: start, finish


@compiled
def relabel(
    order: IndexArray,  # (N,) operators, first to last
    use_ptr: IntArray,  # (N + 1,) rows of uses by producing operator
    use_op: IntArray,  # (C,) consuming operator
    use_tensor: IntArray,  # (C,) tensor
    use_slot: IntArray,  # (C,) number of the tensor among its producer's outputs
    position: IndexArray,  # (N,) out: position of each operator
    new_ptr: IndexArray,  # (N + 1,) out: rows by producing position
    new_op: IndexArray,  # (C,) out: consuming position, ascending in each row
    new_tensor: IndexArray,  # (C,) out
    new_slot: IndexArray,  # (C,) out
) -> None:
    """Renumber the operators by `order`; uses are sorted by (consumer's position, tensor)."""
    for p in range(len(order)):
        position[order[p]] = p
    k = 0
    new_ptr[0] = 0
    for p in range(len(order)):
        first = k
        for j in range(use_ptr[order[p]], use_ptr[order[p] + 1]):
            target, tensor, slot = position[use_op[j]], use_tensor[j], use_slot[j]
            i = k
            while i > first and (
                new_op[i - 1] > target or (new_op[i - 1] == target and new_tensor[i - 1] > tensor)
            ):
                new_op[i], new_tensor[i] = new_op[i - 1], new_tensor[i - 1]
                new_slot[i] = new_slot[i - 1]
                i -= 1
            new_op[i], new_tensor[i], new_slot[i] = target, tensor, slot
            k += 1
        new_ptr[p + 1] = k


@unchecked_inner
def play(
    device: IndexArray,  # (N,) by position
    order: IndexArray,  # (N,) operator at each position
    op_seconds: FloatArray,  # (N, D) by operator
    use_ptr: IndexArray,  # (N + 1,) by position
    use_op: IndexArray,  # (C,) consuming position
    use_tensor: IndexArray,  # (C,)
    use_slot: IndexArray,  # (C,)
    transfer_seconds: FloatArray,  # (T, L)
    link_class: IndexArray,  # (D, D)
    send_port: IndexArray,  # (D, D)
    receive_port: IndexArray,  # (D, D)
    ready: FloatArray,  # (N,) scratch, zero on entry and on exit
    device_free: FloatArray,  # (D,) scratch
    port_free: FloatArray,  # (ports,) scratch; (0,): transfers take no time
    arrival: FloatArray,  # (slots, D) scratch
    stamp: IntArray,  # (slots, D) scratch: whose arrival stands there
    ticket: int,  # larger than any stamp left by an earlier call
    log: Log | None = None,  # out: what happened; compiled away where there is none
) -> float:
    """Seconds until the last operator ends."""
    device_free[:] = 0.0
    port_free[:] = 0.0
    free_transfers = len(port_free) == 0
    end = 0.0
    for p in range(len(device)):
        d = device[p]
        begin, free = ready[p], device_free[d]
        finish = (begin if begin > free else free) + op_seconds[order[p], d]
        ready[p] = 0.0
        device_free[d] = finish
        if log is not None:
            log.op_start[order[p]] = begin if begin > free else free
            log.op_finish[order[p]] = finish
        end = finish if finish > end else end
        mark = ticket + p
        for k in range(use_ptr[p], use_ptr[p + 1]):
            c = use_op[k]
            e = device[c]
            at = finish
            if e != d and (log is not None or not free_transfers):
                slot = use_slot[k]
                if stamp[slot, e] == mark:
                    at = arrival[slot, e]
                else:
                    sending = finish
                    seconds = transfer_seconds[use_tensor[k], link_class[d, e]]
                    if seconds > 0.0 and (log is None or not free_transfers):
                        s, r = send_port[d, e], receive_port[d, e]
                        sent, received = port_free[s], port_free[r]
                        sending = sent if sent > sending else sending
                        sending = received if received > sending else sending
                        at = sending + seconds
                        port_free[s] = at
                        port_free[r] = at
                    stamp[slot, e] = mark
                    arrival[slot, e] = at
                    if log is not None:
                        move = log.moves[0]
                        log.moves[0] += 1
                        log.moved[move, 0] = use_tensor[k]
                        log.moved[move, 1], log.moved[move, 2] = d, e
                        log.moved_time[move, 0], log.moved_time[move, 1] = sending, at
            before = ready[c]
            ready[c] = at if at > before else before
    return end
