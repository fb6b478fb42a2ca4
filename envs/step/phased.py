"""A step whose pipes between the servers have new rates in every phase.

The operators are walked in the order of the plan, as in `envs.step.kernel`, one phase at a
time. An operator of a later phase may start before that phase begins; it is walked with its own
phase, and what it sends drains at the rates of the time at which it drains: all former rates are
kept. A transfer that ends after the phase in which it was first served is served anew, from the
same start, when the next rates are known.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from envs.arrays import FloatArray, IntArray
from envs.compilation import compiled, compiled_inner
from envs.errors import InputError
from envs.network.pipes import check_bandwidth, pipe_of_pairs
from envs.step.kernel import relabel, step_arrays
from envs.step.order import OneFOneB, OrderRule
from envs.step.problem import StepProblem
from envs.step.timeline import Timeline

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
            counts=np.zeros(2, np.int64),
            ready=np.zeros(n),
            op_start=np.zeros(n),
            op_finish=np.zeros(n),
            device_free=np.zeros(len(arrays.link_class)),
            port_free=np.zeros(arrays.num_ports),
            pipe_free=np.zeros(pipes),
            begin_time=np.zeros(phases + 1),
            rates=np.zeros((phases, pipes)),
            pending=np.zeros(uses, np.int64),
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
    position = np.zeros(n, np.int64)
    use_ptr = np.zeros(n + 1, np.int64)
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


@compiled_inner
def _bytes(a: PhasedArrays, k: int, d: int, e: int) -> float:
    """What the transfer of use k from device d to device e drains after its latency."""
    link = a.link_class[d, e]
    lasting = a.transfer_seconds[a.use_tensor[k], link] - a.latency[link]
    moving: float = max(0.0, lasting) * a.bandwidth[link]
    return moving


@compiled
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


@compiled_inner
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


@compiled_inner
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


@compiled_inner
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


@compiled
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


@compiled
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


class PhasedStep:
    """One step under way: played up to the beginning of a phase, waiting for its rates.

    Made by `PhasedSimulator.begin`. Copies and pickles freely; copies share nothing that changes.

    Attributes:
        begins: (P,) first position of each phase.
        traffic: (P, S, S) bytes that the operators of each phase send from server to server.
    """

    def __init__(
        self,
        problem: StepProblem,
        device: IntArray,
        begins: IntArray,
        arrays: PhasedArrays,
        state: PhasedState,
    ) -> None:
        self.problem = problem
        self.begins = begins
        self._device = device
        self._arrays = arrays
        self._state = state
        servers = problem.topology.num_servers
        self.traffic: FloatArray = arrays.traffic.reshape(len(begins), servers, servers)

    @property
    def num_phases(self) -> int:
        """P."""
        return len(self.begins)

    @property
    def phase(self) -> int:
        """The phase that `advance` plays next; P at the end of the step."""
        return int(self._state.counts[1])

    @property
    def done(self) -> bool:
        """Whether all phases have been played."""
        return self.phase == self.num_phases

    @property
    def now(self) -> float:
        """Seconds until `phase` begins; of the whole step when done. inf: that never happens."""
        return float(self._state.begin_time[self.phase])

    @property
    def backlog(self) -> FloatArray:
        """(S, S) bytes that operators of former phases have yet to send at `now`."""
        left: FloatArray = backlog(self._arrays, self._state)
        return left.reshape(self.traffic.shape[1:])

    @property
    def pending(self) -> FloatArray:
        """(S, S) bytes to send from `now` to the end of `phase`: its traffic and the backlog.

        Operators of the phase that run ahead of its beginning may have sent some of it already, at
        the former rates.
        """
        return self.backlog if self.done else self.backlog + self.traffic[self.phase]

    def advance(self, pipes: FloatArray) -> float:
        """Play the next phase with `pipes` (S, S) bytes/s; returns the seconds it took.

        The rates hold from `now` on, also for the transfers under way. A transfer never runs faster
        than the slowest link between its devices and their NICs.

        Raises:
            InputError: the step is done, or the rates have another shape, are negative or no
                numbers.
        """
        if self.done:
            raise InputError(f"all {self.num_phases} phases have been played")
        pipes = np.ascontiguousarray(pipes, dtype=np.float64)
        shape = self.traffic.shape[1:]
        if pipes.shape != shape or not np.all(pipes >= 0.0):
            raise InputError(f"needs {shape} rates, none of them negative", field="pipes")
        phase, before = self.phase, self.now
        last = len(self._device) if phase + 1 == self.num_phases else int(self.begins[phase + 1])
        self._state.rates[phase] = pipes.ravel()
        play_phase(self._arrays, self._state, int(self.begins[phase]), last)
        return self.now - before if np.isfinite(before) else np.inf

    def copy(self) -> PhasedStep:
        """An independent step in the same state."""
        state = self._state.copy()
        return PhasedStep(self.problem, self._device, self.begins, self._arrays, state)

    def timeline(self) -> Timeline:
        """Everything that happened.

        Raises:
            InputError: phases remain.
        """
        if not self.done:
            raise InputError(f"{self.num_phases - self.phase} phases remain")
        arrays, state = self._arrays, self._state
        moved = np.flatnonzero(state.move_start >= 0.0)
        tensor = arrays.use_tensor[moved].astype(np.int64)
        source = arrays.device[arrays.producer[moved]].astype(np.int64)
        destination = arrays.device[arrays.use_op[moved]].astype(np.int64)
        start, finish = np.empty_like(state.op_start), np.empty_like(state.op_start)
        start[arrays.order], finish[arrays.order] = state.op_start, state.op_finish
        return Timeline.of(
            self.problem, self._device, start, finish, tensor, source, destination,
            state.move_start[moved], state.move_finish[moved],
        )  # fmt: skip


class PhasedSimulator:
    """Plays plans through pipes between the servers whose rates change with the phases of a step.

    Devices, ports inside the servers and the order of service are those of
    `envs.step.step.StepSimulator` on `envs.step.allocated.allocated_problem`: the pipe
    from one server to another serves its transfers one after another, each for its latency and
    then until its bytes have drained at the pipe's rate. Phase p begins when all operators at
    positions before `begins[p]` of the order have ended; from then on the pipes have the rates of
    that phase, and a transfer under way goes on at the new rate. With one phase nothing differs
    from the static allocation.

    A transfer that takes no longer than its latency holds its pipe for that time and moves nothing.

    Raises:
        InputError: the topology has no bandwidth between some servers, only tabulated times.
    """

    def __init__(self, problem: StepProblem, *, order_rule: OrderRule | None = None) -> None:
        check_bandwidth(problem.topology)
        self.problem = problem
        self.order_rule: OrderRule = order_rule if order_rule is not None else OneFOneB()

    def begin(
        self, device: IntArray, order: IntArray | None = None, begins: IntArray | None = None
    ) -> PhasedStep:
        """The step of placement `device` (N,) before its first phase.

        Args:
            order: (N,) operators, first to last; without it the rule decides.
            begins: (P,) first position of each phase: 0, then rising; without it one phase.

        Raises:
            InputError: `begins` is something else.
        """
        device = np.ascontiguousarray(device, dtype=np.int64)
        if order is None:
            order = self.order_rule(self.problem.graph, device)
        begins = np.zeros(1, np.int64) if begins is None else np.array(begins, dtype=np.int64)
        n = len(device)
        if len(begins) == 0 or begins[0] != 0 or begins[-1] >= n or np.any(np.diff(begins) <= 0):
            raise InputError(f"must be 0, then rise, below {n}", field="begins")
        arrays = phased_arrays(self.problem, device, np.asarray(order, dtype=np.int64), begins)
        return PhasedStep(self.problem, device, begins, arrays, PhasedState.fresh(arrays))

    def run(
        self,
        device: IntArray,  # (N,)
        order: IntArray | None,  # (N,)
        begins: IntArray,  # (P,)
        pipes: FloatArray,  # (P, S, S) bytes/s
    ) -> Timeline:
        """The whole step, its rates given in advance."""
        step = self.begin(device, order, begins)
        for rates in pipes:
            step.advance(rates)
        return step.timeline()
