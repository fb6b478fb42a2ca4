"""The peak memory of a settled schedule, in one pass over its plan.

What `envs.step.timeline.peak_memory` defines, without a sort: on a device operators start and end
in the order of the plan, so its events are merged from four streams in the order of time. Those
are what its operators take when they start and free when they end, what incoming transfers take
when they start, and what departing transfers free when they end. Ports serve transfers nearly in
the order of the plan; each finds its place in its stream from the end.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from envs.arrays import FloatArray
from envs.compilation import inlined_inner, lean, lean_inner
from envs.step.incremental import Chosen, Facts, Times
from envs.step.kernel import IndexArray
from envs.step.problem import StepProblem

_END = np.uint32(2**32 - 1)  # of a stream, or no operator


class Stored(NamedTuple):
    """What a problem keeps in memory."""

    state: FloatArray  # (N,) bytes of parameters, gradients and optimizer state
    output_ptr: IndexArray  # (N + 1,) row pointer into `output`
    output: FloatArray  # (T,) bytes of the tensors, by producer and slot
    inner: FloatArray  # (N,) bytes that live while the operator runs, and only then
    made: FloatArray  # (N,) bytes of all that and of its tensors


class Streams(NamedTuple):
    """Working memory: events by device, linked in the order of time."""

    finish: FloatArray  # (N,) seconds
    taken: FloatArray  # (N,) bytes that the operator takes when it starts
    freed: FloatArray  # (N,) bytes that it frees when it ends
    following: IndexArray  # (N,) next operator on the same device
    head: IndexArray  # (3, D) of operators that end, incoming transfers, departing transfers
    tail: IndexArray  # (3, D)
    incoming: IndexArray  # (C, 2) by use: the transfers before and behind it
    departing: IndexArray  # (T, 2) by output: the last transfers before and behind its last one
    gone: FloatArray  # (T,) by output: when its last transfer ends
    reader: IndexArray  # (slots, D) last consumer there
    here: IndexArray  # (slots,) last consumer on the producer's device, or the producer
    live: FloatArray  # (D,) bytes


def stored_of(problem: StepProblem, inner: FloatArray | None = None) -> Stored:
    """The bytes of `problem`, whose operators need `inner` (N,) bytes while they run."""
    graph = problem.graph
    inner = np.zeros(graph.num_operators) if inner is None else inner
    return Stored(
        state=np.ascontiguousarray(graph.state_bytes, dtype=np.float64),
        output_ptr=graph.output_ptr.astype(np.uint32),
        output=np.ascontiguousarray(graph.tensor_bytes[graph.output], dtype=np.float64),
        inner=np.ascontiguousarray(inner, dtype=np.float64),
        made=inner + np.bincount(graph.producer, graph.tensor_bytes, graph.num_operators),
    )


def streams_of(problem: StepProblem) -> Streams:
    """Working memory for schedules of `problem`."""
    graph = problem.graph
    n, d = problem.op_seconds.shape
    slots = int(np.diff(graph.output_ptr).max(initial=0)) + 1
    return Streams(
        finish=np.zeros(n),
        taken=np.zeros(n),
        freed=np.zeros(n),
        following=np.zeros(n, np.uint32),
        head=np.zeros((3, d), dtype=np.uint32),
        tail=np.zeros((3, d), dtype=np.uint32),
        incoming=np.zeros((len(graph.uses), 2), dtype=np.uint32),
        departing=np.zeros((graph.num_tensors, 2), dtype=np.uint32),
        gone=np.zeros(graph.num_tensors),
        reader=np.full((slots, d), _END),
        here=np.zeros(slots, np.uint32),
        live=np.zeros(d),
    )


@lean
def bound_peaks(
    facts: Facts, chosen: Chosen, times: Times, stored: Stored, peak: FloatArray
) -> None:
    """Write what no peak (D,) exceeds: all that a device ever holds."""
    uses, device, output, output_ptr = facts.uses, chosen.device, stored.output, stored.output_ptr
    for d in range(len(peak)):
        peak[d] = 0.0
    for op in range(len(device)):
        peak[device[op]] += stored.state[op] + stored.made[op]
        for use in range(facts.use_ptr[op], facts.use_ptr[op + 1]):
            if times.leads[use]:
                peak[device[uses[use, 0]]] += output[output_ptr[op] + uses[use, 2]]


@lean
def peak_bytes(
    facts: Facts,
    chosen: Chosen,
    times: Times,
    stored: Stored,
    streams: Streams,
    peak: FloatArray,  # (D,) out
) -> None:
    """The peak memory of every device, state and activations, of a settled schedule."""
    _note(facts, chosen, times, stored, streams)
    device, order, start, departure = chosen.device, chosen.order, times.start, times.departure
    incoming, head, live, taken = streams.incoming, streams.head, streams.live, streams.taken
    uses, output, output_ptr = facts.uses, stored.output, stored.output_ptr
    for d in range(len(live)):
        live[d] = 0.0
    for op in range(len(order)):
        live[device[op]] += stored.state[op]
    for d in range(len(live)):
        peak[d] = live[d]
    for p in range(len(order)):
        op = order[p]
        d = device[op]
        use = head[1, d]
        while use != _END and departure[use] <= start[op]:
            _free(stored, streams, d, departure[use])
            sender = facts.inputs[uses[use, 3]]
            live[d] += output[output_ptr[sender] + uses[use, 2]]
            peak[d] = live[d] if live[d] > peak[d] else peak[d]
            use = incoming[use, 1]
        head[1, d] = use
        if taken[op] > 0.0:
            _free(stored, streams, d, start[op])
            live[d] += taken[op]
            peak[d] = live[d] if live[d] > peak[d] else peak[d]


@inlined_inner
def _free(stored: Stored, streams: Streams, d: int, until: float) -> None:
    """Free what device `d` no longer needs at `until` seconds."""
    head, live = streams.head, streams.live
    op = head[0, d]
    while op != _END and streams.finish[op] <= until:
        live[d] -= streams.freed[op]
        op = streams.following[op]
    head[0, d] = op
    tensor = head[2, d]
    while tensor != _END and streams.gone[tensor] <= until:
        live[d] -= stored.output[tensor]
        tensor = streams.departing[tensor, 1]
    head[2, d] = tensor


@lean_inner
def _note(facts: Facts, chosen: Chosen, times: Times, stored: Stored, streams: Streams) -> None:
    """Write down what is taken and freed, and when."""
    use_ptr, uses, op_seconds = facts.use_ptr, facts.uses, facts.op_seconds
    device, order, row = chosen.device, chosen.order, chosen.row
    start, arrival, leads, departure = times.start, times.arrival, times.leads, times.departure
    finish, taken, freed, head = streams.finish, streams.taken, streams.freed, streams.head
    gone, reader, here, tail = streams.gone, streams.reader, streams.here, streams.tail
    output_ptr, output = stored.output_ptr, stored.output
    for stream in range(3):
        for d in range(head.shape[1]):
            head[stream, d], tail[stream, d] = _END, _END
    for p in range(len(order)):
        op = order[p]
        d = device[op]
        finish[op] = start[op] + op_seconds[op, d]
        freed[op] = stored.inner[op]
        streams.following[op] = _END
        if head[0, d] == _END:
            head[0, d] = op
        else:
            streams.following[tail[0, d]] = op
        tail[0, d] = op
    for p in range(len(order)):
        op = order[p]
        d = device[op]
        first = output_ptr[op]
        slots = output_ptr[op + 1] - first
        for slot in range(slots):
            here[slot] = op
            gone[first + slot] = -1.0
        begin = use_ptr[op]
        for back in range(use_ptr[op + 1] - begin):  # later consumers first
            use = row[use_ptr[op + 1] - 1 - back]
            c, slot = uses[use, 0], uses[use, 2]
            size = output[first + slot]
            if size == 0.0:
                continue
            e = device[c]
            if e == d:
                if here[slot] == op:
                    here[slot] = c
                continue
            if reader[slot, e] == _END:
                reader[slot, e] = c
            if not leads[use]:
                continue
            last = reader[slot, e]
            reader[slot, e] = _END
            at = arrival[uses[use, 3]]
            gone[first + slot] = at if at > gone[first + slot] else gone[first + slot]
            if finish[last] > departure[use]:
                freed[last] += size
                _insert(streams.incoming, departure, head, tail, 1, e, use)
        total = stored.inner[op]
        for slot in range(slots):
            size = output[first + slot]
            if size == 0.0:
                continue
            last = here[slot]
            if gone[first + slot] > finish[last]:
                if gone[first + slot] > start[op]:
                    total += size
                    _insert(streams.departing, gone, head, tail, 2, d, first + slot)
            elif finish[last] > start[op]:
                total += size
                freed[last] += size
        taken[op] = total


@inlined_inner
def _insert(
    links: IndexArray,  # (K, 2) the items before and behind each
    key: FloatArray,  # (K,) seconds
    head: IndexArray,  # (3, D)
    tail: IndexArray,  # (3, D)
    stream: int,
    d: int,
    item: int,
) -> None:
    """Link `item` into a stream of device `d`, behind all that are not later."""
    before, behind = tail[stream, d], _END
    while before != _END and key[before] > key[item]:
        behind = before
        before = links[before, 0]
    links[item, 0], links[item, 1] = before, behind
    if before == _END:
        head[stream, d] = item
    else:
        links[before, 1] = item
    if behind == _END:
        tail[stream, d] = item
    else:
        links[behind, 0] = item
