"""A simulated plan that can be changed in part, and asked what a change would cost.

`Schedule` holds a plan with all its times. Two facts make a change cheap to judge:

*Forward.* The simulator settles the operators in the order of the plan. What lies before the first
changed position keeps its times, so a simulation may start at the last snapshot (when every device
and port becomes free) before it.

*Backward.* Behind the last changed position nothing changes but the times at which devices, ports
and tensors become available. Let the tail of a device, of a port or of an operator be the length of
the longest chain of waits that leads from there to the end of the step. Then the step takes

    max over all that cross a cut of (time at the cut) + (tail from the cut),

the heads-and-tails argument of job-shop scheduling (Taillard, "Parallel taboo search techniques for
the job shop scheduling problem", ORSA Journal on Computing 6(2), 1994), here with transfers and
their ports among the chains.

So `within` judges a change by simulating only the positions between its first and its last trace,
and `settle` works out the new times of a change that is kept, bit for bit those of
`envs.step.kernel.play`.

The kernels take tuples of arrays and allocate nothing, so they are compiled without reference
counting (`_nrt=False`), which would take half of their time.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from envs.arrays import BoolArray, FloatArray, IntArray
from envs.compilation import compiled, inlined, inlined_inner, lean, lean_inner
from envs.graphs.op_graph import NONE
from envs.step.kernel import IndexArray, StepArrays, step_arrays
from envs.step.problem import StepProblem

_BLOCK = 8  # positions between two snapshots
_ROUNDING = 1e-12  # relative: tails are summed in another order than times


class Facts(NamedTuple):
    """A `StepProblem` under `SINGLE_PORT`, for kernels that walk both ways along its edges.

    A *use* is a tensor at one of its consumers; uses are numbered as in `OpGraph.uses`. The R
    *resources* are the D devices and, behind them, the ports.
    """

    op_seconds: FloatArray  # (N, D)
    use_ptr: IndexArray  # (N + 1,) uses by producer
    uses: IndexArray  # (C, 4) consumer, tensor, slot, index among the inputs
    input_ptr: IndexArray  # (N + 1,) inputs by consumer
    inputs: IndexArray  # (C,) producer
    transfer_seconds: FloatArray  # (T, L)
    routes: IndexArray  # (D, D, 3) link class, resource that sends, resource that receives
    least_tail: FloatArray  # (N,) seconds: longest path behind each operator, all at their fastest


class Chosen(NamedTuple):
    """The plan."""

    device: IndexArray  # (N,)
    order: IndexArray  # (N,) operators, first to last
    position: IndexArray  # (N,)
    row: IndexArray  # (C,) uses of each producer by (consumer's position, tensor)


class Times(NamedTuple):
    """When the plan does what, in seconds; B is the number of blocks of positions."""

    start: FloatArray  # (N,)
    tail: FloatArray  # (N,) from each operator's start to the end of the step
    arrival: FloatArray  # (C,) by input: when the tensor is on the consumer's device
    leads: BoolArray  # (C,) by use: a transfer is made for it
    departure: FloatArray  # (C,) by use: when that transfer starts
    free: FloatArray  # (B + 1, R) when each resource is free before each block, and at the end
    behind: FloatArray  # (B + 1, R) tail of each resource from there


class Probe(NamedTuple):
    """Working memory."""

    now: FloatArray  # (R,)
    sent: FloatArray  # (slots, D)
    stamp: IntArray  # (slots, D)
    ticket: IntArray  # (1,) larger than every stamp
    kept: FloatArray  # (C,) arrivals before a trial


class Schedule(NamedTuple):
    """A plan, its times and its tails."""

    facts: Facts
    chosen: Chosen
    times: Times
    probe: Probe


def facts_of(problem: StepProblem, arrays: StepArrays | None = None) -> Facts:
    """The arrays of `problem`; those of `arrays` are shared, so that their times may be changed."""
    a = step_arrays(problem) if arrays is None else arrays
    n, d = problem.op_seconds.shape
    producer = np.repeat(np.arange(n), np.diff(a.use_ptr))
    by_consumer = np.argsort(a.use_op, kind="stable")
    rank = np.empty(len(a.use_op), dtype=np.int64)
    rank[by_consumer] = np.arange(len(a.use_op))
    counts = np.bincount(a.use_op, minlength=n)
    least_tail = np.zeros(n)
    _least_tails(problem.op_seconds.min(axis=1), a.use_ptr, a.use_op, least_tail)
    return Facts(
        op_seconds=a.op_seconds,
        use_ptr=a.use_ptr.astype(np.uint32),
        uses=np.stack([a.use_op, a.use_tensor, a.use_slot, rank], axis=1).astype(np.uint32),
        input_ptr=np.concatenate([[0], np.cumsum(counts)]).astype(np.uint32),
        inputs=producer[by_consumer].astype(np.uint32),
        transfer_seconds=a.transfer_seconds,
        routes=np.stack(
            [a.link_class, a.send_port + np.uint32(d), a.receive_port + np.uint32(d)], axis=2
        ),
        least_tail=least_tail,
    )


def schedule_of(problem: StepProblem, device: IntArray, order: IntArray) -> Schedule:
    """The settled schedule of placement `device` (N,) in the topological `order` (N,)."""
    schedule = no_schedule(problem)
    schedule.chosen.device[:], schedule.chosen.order[:] = device, order
    settle_all(*schedule)
    return schedule


def no_schedule(problem: StepProblem, arrays: StepArrays | None = None) -> Schedule:
    """Room for the schedules of `problem`; `arrays` as in `facts_of`."""
    facts = facts_of(problem, arrays)
    n, d = problem.op_seconds.shape
    uses, resources = len(facts.uses), d + problem.topology.num_ports
    slots = int(facts.uses[:, 2].max(initial=0)) + 1
    blocks = -(-n // _BLOCK)
    return Schedule(
        facts,
        Chosen(
            device=np.zeros(n, np.uint32),
            order=np.arange(n, dtype=np.uint32),
            position=np.zeros(n, np.uint32),
            row=np.arange(uses, dtype=np.uint32),
        ),
        Times(
            start=np.zeros(n),
            tail=np.zeros(n),
            arrival=np.zeros(uses),
            leads=np.zeros(uses, np.bool_),
            departure=np.zeros(uses),
            free=np.zeros((blocks + 1, resources)),
            behind=np.zeros((blocks + 1, resources)),
        ),
        Probe(
            now=np.zeros(resources),
            sent=np.zeros((slots, d)),
            stamp=np.full((slots, d), NONE),
            ticket=np.zeros(1, np.int64),
            kept=np.zeros(uses),
        ),
    )


@compiled
def _least_tails(
    fastest: FloatArray, use_ptr: IntArray, use_op: IntArray, tail: FloatArray
) -> None:
    for op in range(len(fastest) - 1, -1, -1):
        for k in range(use_ptr[op], use_ptr[op + 1]):
            tail[op] = max(tail[op], fastest[use_op[k]] + tail[use_op[k]])


@inlined
def sort_row(facts: Facts, chosen: Chosen, op: int) -> bool:
    """Sort the uses of producer `op` by (consumer's position, tensor); whether any moved."""
    uses, row, position = facts.uses, chosen.row, chosen.position
    first, last = facts.use_ptr[op], facts.use_ptr[op + 1]
    moved = False
    for i in range(first + 1, last):
        use = row[i]
        reader, tensor = position[uses[use, 0]], uses[use, 1]
        j = i
        while j > first:
            other = row[j - 1]
            where = position[uses[other, 0]]
            if where < reader or (where == reader and uses[other, 1] < tensor):
                break
            row[j] = other
            moved = True
            j -= 1
        row[j] = use
    return moved


@compiled
def settle_all(facts: Facts, chosen: Chosen, times: Times, probe: Probe) -> float:
    """Work out all times and tails of `chosen.device` and `chosen.order`.

    Returns the step time in seconds, exactly that of the simulator.
    """
    _arrange(facts, chosen)
    seconds: float = settle(facts, chosen, times, probe, 0, len(chosen.order) - 1)
    return seconds


@lean
def settle_times(facts: Facts, chosen: Chosen, times: Times, probe: Probe) -> float:
    """As `settle_all`, for a plan that is not changed in part: no tails and no snapshots."""
    _arrange(facts, chosen)
    _forward(facts, chosen, times, probe, 0, len(chosen.order) - 1, False)
    seconds: float = _longest(facts, times)
    return seconds


@lean_inner
def _arrange(facts: Facts, chosen: Chosen) -> None:
    """Positions and rows of `chosen.order`."""
    for p in range(len(chosen.order)):
        chosen.position[chosen.order[p]] = p
    for op in range(len(chosen.order)):
        sort_row(facts, chosen, op)


@lean
def within(
    facts: Facts, chosen: Chosen, times: Times, probe: Probe, low: int, high: int, limit: float
) -> bool:
    """Whether a change between positions `low` and `high` keeps the step time within `limit`.

    `chosen` is the plan after the change; `times` are those before it, and so they stay. Between
    `low` and `high` are all operators that the change moves or puts on another device, and all
    producers that send them something or whose row it changes. Exact, but for rounding, where
    `limit` is at least the step time before the change; below, True may be wrong.
    """
    op_seconds, use_ptr, uses = facts.op_seconds, facts.use_ptr, facts.uses
    input_ptr, transfer_seconds = facts.input_ptr, facts.transfer_seconds
    routes, least_tail = facts.routes, facts.least_tail
    device, order, position, row = chosen.device, chosen.order, chosen.position, chosen.row
    tail, arrival, behind = times.tail, times.arrival, times.behind
    now, sent, stamp, kept = probe.now, probe.sent, probe.stamp, probe.kept
    first, last = low // _BLOCK, high // _BLOCK + 1
    begin, end = first * _BLOCK, min(last * _BLOCK, len(order))
    for r in range(len(now)):
        now[r] = times.free[first, r]
    bar = limit + limit * _ROUNDING
    ticket = probe.ticket[0]
    probe.ticket[0] = ticket + (end - begin)
    fits = True
    stop = begin
    for p in range(begin, end):
        op = order[p]
        d = device[op]
        at = now[d]
        for i in range(input_ptr[op], input_ptr[op + 1]):
            at = arrival[i] if arrival[i] > at else at
        finish = at + op_seconds[op, d]
        if finish + least_tail[op] > bar:
            fits = False
            break
        now[d] = finish
        mark = ticket + p - begin
        for i in range(use_ptr[op], use_ptr[op + 1]):
            use = row[i]
            c = uses[use, 0]
            e = device[c]
            at = finish
            if e != d:
                slot = uses[use, 2]
                if stamp[slot, e] == mark:
                    at = sent[slot, e]
                else:
                    seconds = transfer_seconds[uses[use, 1], routes[d, e, 0]]
                    if seconds > 0.0:
                        out, into = routes[d, e, 1], routes[d, e, 2]
                        at = now[out] if now[out] > at else at
                        at = (now[into] if now[into] > at else at) + seconds
                        now[out] = at
                        now[into] = at
                    stamp[slot, e] = mark
                    sent[slot, e] = at
            k = uses[use, 3]
            kept[i] = arrival[k]
            arrival[k] = at
            if position[c] >= end and at + tail[c] > bar:
                fits = False
        stop = p + 1
        if not fits:
            break
    if fits:
        for r in range(len(now)):
            if now[r] + behind[last, r] > bar:
                fits = False
                break
    for p in range(begin, stop):
        op = order[p]
        for i in range(use_ptr[op], use_ptr[op + 1]):
            arrival[uses[row[i], 3]] = kept[i]
    return fits


@numba.njit(cache=True, nogil=True, _nrt=False)
def settle(facts: Facts, chosen: Chosen, times: Times, probe: Probe, low: int, high: int) -> float:
    """Work out the times and tails after a change between `low` and `high`, as in `within`.

    Returns the step time in seconds, exactly that of the simulator.
    """
    _forward(facts, chosen, times, probe, low, high, True)
    _backward(facts, chosen, times, probe, low, high)
    seconds: float = _longest(facts, times)
    return seconds


@inlined_inner
def _longest(facts: Facts, times: Times) -> float:
    """Seconds until the last device is free."""
    longest = 0.0
    for d in range(facts.op_seconds.shape[1]):
        longest = max(longest, times.free[-1, d])
    return longest


@lean_inner
def _forward(
    facts: Facts, chosen: Chosen, times: Times, probe: Probe, low: int, high: int, again: bool
) -> None:
    """Times from `low` on, until nothing differs from before; snapshots only if `again`."""
    op_seconds, use_ptr, uses = facts.op_seconds, facts.use_ptr, facts.uses
    input_ptr, transfer_seconds, routes = facts.input_ptr, facts.transfer_seconds, facts.routes
    device, order, position, row = chosen.device, chosen.order, chosen.position, chosen.row
    start, arrival, free = times.start, times.arrival, times.free
    leads, departure = times.leads, times.departure
    now, sent, stamp = probe.now, probe.sent, probe.stamp
    n = len(order)
    first = low // _BLOCK
    for r in range(len(now)):
        now[r] = free[first, r]
    ticket = probe.ticket[0]
    probe.ticket[0] = ticket + n
    reach = np.int64(high)  # last position that may differ
    for p in range(first * _BLOCK, n):
        snapshot = again and p % _BLOCK == 0 and p > first * _BLOCK
        if snapshot and _keep(free, p // _BLOCK, now) and p > reach:
            return
        op = order[p]
        d = device[op]
        at = now[d]
        for i in range(input_ptr[op], input_ptr[op + 1]):
            at = arrival[i] if arrival[i] > at else at
        start[op] = at
        finish = at + op_seconds[op, d]
        now[d] = finish
        mark = ticket + p
        for i in range(use_ptr[op], use_ptr[op + 1]):
            use = row[i]
            c = uses[use, 0]
            e = device[c]
            at = finish
            first_of_device = False
            if e != d:
                slot = uses[use, 2]
                if stamp[slot, e] == mark:
                    at = sent[slot, e]
                else:
                    first_of_device = True
                    leaving = at
                    seconds = transfer_seconds[uses[use, 1], routes[d, e, 0]]
                    if seconds > 0.0:
                        out, into = routes[d, e, 1], routes[d, e, 2]
                        leaving = now[out] if now[out] > at else at
                        leaving = now[into] if now[into] > leaving else leaving
                        at = leaving + seconds
                        now[out] = at
                        now[into] = at
                    stamp[slot, e] = mark
                    sent[slot, e] = at
                    departure[use] = leaving
            leads[use] = first_of_device
            k = uses[use, 3]
            if arrival[k] != at:
                arrival[k] = at
                reach = max(reach, np.int64(position[c]))
    _keep(free, len(free) - 1, now)


@lean_inner
def _backward(
    facts: Facts, chosen: Chosen, times: Times, probe: Probe, low: int, high: int
) -> None:
    """Tails from `high` back, until nothing differs from before."""
    op_seconds, use_ptr, uses = facts.op_seconds, facts.use_ptr, facts.uses
    input_ptr, inputs = facts.input_ptr, facts.inputs
    transfer_seconds, routes = facts.transfer_seconds, facts.routes
    device, order, position, row = chosen.device, chosen.order, chosen.position, chosen.row
    tail, leads, behind = times.tail, times.leads, times.behind
    now, sent, stamp = probe.now, probe.sent, probe.stamp
    n = len(order)
    last = high // _BLOCK + 1
    for r in range(len(now)):
        now[r] = behind[last, r]
    ticket = probe.ticket[0]
    probe.ticket[0] = ticket + n
    reach = np.int64(low)  # first position that may differ
    end = min(last * _BLOCK, n)
    for back in range(end):
        p = end - 1 - back
        after = p + 1
        if after % _BLOCK == 0 and back > 0 and _keep(behind, after // _BLOCK, now) and p < reach:
            return
        op = order[p]
        d = device[op]
        longest = now[d]
        mark = ticket + p
        for j in range(use_ptr[op + 1] - use_ptr[op]):
            use = row[use_ptr[op + 1] - 1 - j]
            c = uses[use, 0]
            e = device[c]
            chain = tail[c]
            if e != d:
                slot = uses[use, 2]
                if stamp[slot, e] == mark and sent[slot, e] > chain:
                    chain = sent[slot, e]
                stamp[slot, e] = mark
                sent[slot, e] = chain
                if not leads[use]:
                    continue
                seconds = transfer_seconds[uses[use, 1], routes[d, e, 0]]
                if seconds > 0.0:
                    out, into = routes[d, e, 1], routes[d, e, 2]
                    chain = now[out] if now[out] > chain else chain
                    chain = (now[into] if now[into] > chain else chain) + seconds
                    now[out] = chain
                    now[into] = chain
            longest = chain if chain > longest else longest
        longest += op_seconds[op, d]
        now[d] = longest
        if tail[op] != longest:
            tail[op] = longest
            for i in range(input_ptr[op], input_ptr[op + 1]):
                reach = min(reach, np.int64(position[inputs[i]]))
    _keep(behind, 0, now)


@inlined_inner
def _keep(snapshots: FloatArray, block: int, now: FloatArray) -> bool:
    """Take the snapshot of `block`; whether it equals the one before."""
    same = True
    for r in range(len(now)):
        if snapshots[block, r] != now[r]:
            snapshots[block, r] = now[r]
            same = False
    return same
