"""The compiled inside of `envs.step.phased`.

The operators are walked in the order of the plan, as in `envs.step.kernel`, one phase at a
time. An operator of a later phase may start before that phase begins; it is walked with its own
phase, and what it sends drains at the rates of the time at which it drains: all former rates are
kept. A transfer that ends after the phase in which it was first served is served anew, from the
same start, when the next rates are known.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from envs.network.pipes import pipe_of_pairs
from envs.step.kernel import relabel, step_arrays
from envs.step.problem import StepProblem

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

INSIDE = -1  # the pipe of a pair inside a server


class PhasedArrays(NamedTuple):
    """One plan of one problem, operators renumbered by the order; nothing here changes."""

    device: IntArray  # (N,) by position
    order: IntArray  # (N,) operator at each position
    seconds: FloatArray  # (N,) of each position on its device
    use_ptr: IntArray  # (N + 1,) by position
    use_op: IntArray  # (C,) consuming position, ascending in each row
    use_tensor: IntArray  # (C,)
    use_slot: IntArray  # (C,)
    producer: IntArray  # (C,) producing position
    transfer_seconds: FloatArray  # (T, L)
    link_class: IntArray  # (D, D)
    latency: FloatArray  # (L,) seconds
    bandwidth: FloatArray  # (L,) bytes/s
    send_port: IntArray  # (D, D)
    receive_port: IntArray  # (D, D)
    num_ports: int
    slots: int
    pair_pipe: IntArray  # (D, D) source server * S + destination server, or INSIDE
    inner: FloatArray  # (D, D) bytes/s: the slowest link of a pair besides its channels
    num_pipes: int  # S * S
    traffic: FloatArray  # (P, S * S) bytes the operators of each phase send


class PhasedState(NamedTuple):
    """What changes while a step is played; arrays only."""

    counts: IntArray  # (2,) pending transfers, phases played
    ready: FloatArray  # (N,) latest settled arrival at each position
    op_start: FloatArray  # (N,) by position
    op_finish: FloatArray  # (N,) by position
    device_free: FloatArray  # (D,)
    port_free: FloatArray  # (ports,)
    pipe_free: FloatArray  # (S * S,) when each pipe has served its settled transfers
    begin_time: FloatArray  # (P + 1,) when each phase began; the last: the end of the step
    rates: FloatArray  # (P, S * S) bytes/s
    pending: IntArray  # (C,) first uses of the transfers that are not settled, in order of service
    move_start: FloatArray  # (C,) by first use; -1: no transfer
    move_finish: FloatArray  # (C,)

    def copy(self) -> PhasedState:
        """The same state in arrays of its own."""
        return PhasedState(**{name: column.copy() for name, column in self._asdict().items()})

    @classmethod
    def fresh(cls, arrays: PhasedArrays) -> PhasedState:
        """Nothing has been played."""
        n, uses = len(arrays.order), len(arrays.use_op)
        phases, pipes = len(arrays.traffic), arrays.num_pipes
        return cls(
            counts=np.zeros(2, dtype=np.int64),
            ready=np.zeros(n),
            op_start=np.zeros(n),
            op_finish=np.zeros(n),
            device_free=np.zeros(len(arrays.link_class)),
            port_free=np.zeros(arrays.num_ports),
            pipe_free=np.zeros(pipes),
            begin_time=np.zeros(phases + 1),
            rates=np.zeros((phases, pipes)),
            pending=np.zeros(uses, dtype=np.int64),
            move_start=np.full(uses, -1.0),
            move_finish=np.full(uses, -1.0),
        )


def phased_arrays(
    problem: StepProblem,
    device: IntArray,  # (N,)
    order: IntArray,  # (N,)
    begins: IntArray,  # (P,)
) -> PhasedArrays:
    """The arrays of one plan."""
    topology = problem.topology
    base = step_arrays(problem)
    n, uses = len(order), len(base.use_op)
    position = np.zeros(n, dtype=np.int64)
    use_ptr = np.zeros(n + 1, dtype=np.int64)
    use_op, use_tensor, use_slot = np.zeros((3, uses), dtype=np.int64)
    relabel(order, base.use_ptr, base.use_op, base.use_tensor, base.use_slot,
            position, use_ptr, use_op, use_tensor, use_slot)  # fmt: skip
    servers = topology.num_servers
    apart, pipe = pipe_of_pairs(topology)
    arrays = PhasedArrays(
        device=device[order],
        order=order,
        seconds=base.op_seconds[order, device[order]],
        use_ptr=use_ptr,
        use_op=use_op,
        use_tensor=use_tensor,
        use_slot=use_slot,
        producer=np.repeat(np.arange(n), np.diff(use_ptr)),
        transfer_seconds=base.transfer_seconds,
        link_class=np.ascontiguousarray(topology.link_class),
        latency=topology.class_latency,
        bandwidth=topology.class_bandwidth,
        send_port=np.ascontiguousarray(topology.send_port),
        receive_port=np.ascontiguousarray(topology.receive_port),
        num_ports=topology.num_ports,
        slots=int(use_slot.max(initial=0)) + 1,
        pair_pipe=np.where(apart, pipe, INSIDE),
        inner=topology.network.inner_bandwidth,
        num_pipes=servers * servers,
        traffic=np.zeros((len(begins), servers * servers)),
    )
    _count_traffic(arrays, begins)
    return arrays


@numba.njit(cache=True, nogil=True)
def _bytes(a: PhasedArrays, k: int, d: int, e: int) -> float:
    """What the transfer of use k from device d to device e drains after its latency."""
    link = a.link_class[d, e]
    lasting = a.transfer_seconds[a.use_tensor[k], link] - a.latency[link]
    moving: float = max(0.0, lasting) * a.bandwidth[link]
    return moving


@numba.njit(cache=True, nogil=True)
def _count_traffic(a: PhasedArrays, begins: IntArray) -> None:
    phase = 0
    seen = np.full((a.slots, len(a.link_class)), -1)
    for q in range(len(a.order)):
        while phase + 1 < len(begins) and begins[phase + 1] <= q:
            phase += 1
        d = a.device[q]
        for k in range(a.use_ptr[q], a.use_ptr[q + 1]):
            e = a.device[a.use_op[k]]
            if a.pair_pipe[d, e] != INSIDE and seen[a.use_slot[k], e] != q:
                seen[a.use_slot[k], e] = q
                a.traffic[phase, a.pair_pipe[d, e]] += _bytes(a, k, d, e)


@numba.njit(cache=True, nogil=True)
def _drain(w: PhasedState, phase: int, pipe: int, inner: float, at: float, left: float) -> float:
    """When `left` bytes have passed `pipe`, from `at` on, under all rates up to `phase`."""
    if left <= 0.0 or at == np.inf:
        return at
    i = phase
    while i > 0 and w.begin_time[i] > at:
        i -= 1
    while True:
        rate: float = min(w.rates[i, pipe], inner)
        if i == phase:
            return at + left / rate if rate > 0.0 else np.inf
        end = w.begin_time[i + 1]
        if rate > 0.0:
            if left <= rate * (end - at):
                return at + left / rate
            left -= rate * (end - at)
        if end == np.inf:
            return np.inf
        at = end
        i += 1


@numba.njit(cache=True, nogil=True)
def _serve(a: PhasedArrays, w: PhasedState, phase: int, k: int, pipe_free: FloatArray) -> None:
    """Send the transfer whose first use is k through its pipe."""
    q = a.producer[k]
    d, e = a.device[q], a.device[a.use_op[k]]
    link, pipe = a.link_class[d, e], a.pair_pipe[d, e]
    start = max(w.op_finish[q], pipe_free[pipe])
    seconds = a.transfer_seconds[a.use_tensor[k], link]
    if seconds <= a.latency[link]:
        finish = start + seconds
    else:
        moving = (seconds - a.latency[link]) * a.bandwidth[link]
        finish = _drain(w, phase, pipe, a.inner[d, e], start + a.latency[link], moving)
    w.move_start[k], w.move_finish[k] = start, finish
    pipe_free[pipe] = finish


@numba.njit(cache=True, nogil=True)
def _arrive(a: PhasedArrays, w: PhasedState, k: int, at: float, last: int) -> None:
    """Tell the consumers before position `last` that the transfer of first use k is there."""
    q = a.producer[k]
    e = a.device[a.use_op[k]]
    for j in range(k, a.use_ptr[q + 1]):
        c = a.use_op[j]
        if c >= last:
            break
        if a.use_slot[j] == a.use_slot[k] and a.device[c] == e:
            w.ready[c] = max(w.ready[c], at)


@numba.njit(cache=True, nogil=True)
def play_phase(a: PhasedArrays, w: PhasedState, first: int, last: int) -> None:
    """Walk the positions `first` to `last` - 1 with the rates of the next phase."""
    phase, n = w.counts[1], len(a.order)
    pipe_free = w.pipe_free.copy()
    seen = np.full((a.slots, len(a.link_class)), -1)
    count = w.counts[0]
    for j in range(count):
        k = w.pending[j]
        _serve(a, w, phase, k, pipe_free)
        _arrive(a, w, k, w.move_finish[k], last)
    end = w.begin_time[phase]
    for q in range(first, last):
        d = a.device[q]
        w.op_start[q] = max(w.ready[q], w.device_free[d])
        finish = w.op_start[q] + a.seconds[q]
        w.op_finish[q] = finish
        w.device_free[d] = finish
        end = max(end, finish)
        for k in range(a.use_ptr[q], a.use_ptr[q + 1]):
            c, slot = a.use_op[k], a.use_slot[k]
            e = a.device[c]
            if e == d:
                w.ready[c] = max(w.ready[c], finish)
                continue
            if seen[slot, e] == q:
                continue
            seen[slot, e] = q
            seconds = a.transfer_seconds[a.use_tensor[k], a.link_class[d, e]]
            if seconds > 0.0 and a.pair_pipe[d, e] != INSIDE:
                w.pending[count] = k
                count += 1
                _serve(a, w, phase, k, pipe_free)
                _arrive(a, w, k, w.move_finish[k], last)
                continue
            begin = finish
            if seconds > 0.0:
                s, r = a.send_port[d, e], a.receive_port[d, e]
                begin = max(finish, w.port_free[s], w.port_free[r])
                w.port_free[s] = w.port_free[r] = begin + seconds
            w.move_start[k] = begin
            w.move_finish[k] = begin + seconds if seconds > 0.0 else begin
            _arrive(a, w, k, w.move_finish[k], n)
    w.begin_time[phase + 1] = end
    kept = 0
    for j in range(count):
        k = w.pending[j]
        if w.move_finish[k] <= end:
            pipe = a.pair_pipe[a.device[a.producer[k]], a.device[a.use_op[k]]]
            w.pipe_free[pipe] = w.move_finish[k]
            _arrive(a, w, k, w.move_finish[k], n)
        else:
            w.pending[kept] = k
            kept += 1
    w.counts[0], w.counts[1] = kept, phase + 1


@numba.njit(cache=True, nogil=True)
def backlog(a: PhasedArrays, w: PhasedState) -> FloatArray:
    """(S * S,) bytes of the pending transfers that have not drained when the next phase begins."""
    found = np.zeros(a.num_pipes)
    phase = w.counts[1]
    now = w.begin_time[phase]
    for j in range(w.counts[0]):
        k = w.pending[j]
        d, e = a.device[a.producer[k]], a.device[a.use_op[k]]
        pipe = a.pair_pipe[d, e]
        left = _bytes(a, k, d, e)
        at = w.move_start[k] + a.latency[a.link_class[d, e]]
        for i in range(phase):
            end = min(w.begin_time[i + 1], now)
            if end > at:
                left -= min(w.rates[i, pipe], a.inner[d, e]) * (end - at)
                at = end
        found[pipe] += max(0.0, left)
    return found
