"""The price of a placement: its fastest order among those allowed, and the memory that takes.

`price_in_order` plays a plan as `envs.step.kernel.play` does and works out the peak memory of
every device as `envs.step.timeline.peak_memory` does. It reads the graph as it is numbered, since
sorting it by an order pays only where that order is played more than once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from envs.arrays import FloatArray, IntArray
from envs.compilation import compiled, lean, lean_inner
from envs.step.kernel import IndexArray, Scratch, StepArrays, scratch, step_arrays
from envs.step.order import OrderRule, Rule, rules_of, sort_by_key
from envs.step.problem import StepProblem
from envs.step.ready import runtime_starts
from envs.step.step import SINGLE_PORT, Ports, StepSimulator, use_order


class Holdings(NamedTuple):
    """What the operators keep in memory, for kernels."""

    state: FloatArray  # (N,) bytes
    made: FloatArray  # (N,) bytes of all tensors an operator makes
    unread: FloatArray  # (N,) bytes of those of them that nobody reads
    tensor: FloatArray  # (T,) bytes
    producer: IntArray  # (T,)
    capacity: FloatArray  # (D,) bytes
    weight_gradient: IntArray  # (N,) 1: it is one


class Play(NamedTuple):
    """Working memory of `price_in_order`, and what it leaves: starts, finishes and peaks."""

    order: IntArray  # (N,) the order in question
    position: IndexArray  # (N,)
    ready: FloatArray  # (N,) zero between plays
    start: FloatArray  # (N,) seconds, by operator
    finish: FloatArray  # (N,) seconds, by operator
    device_free: FloatArray  # (D,)
    port_free: FloatArray  # (ports,); (0,) when transfers take no time
    arrival: FloatArray  # (slots, D)
    stamp: IntArray  # (slots, D)
    number: IntArray  # (slots, D) transfer that the stamp stands for
    ticket: IntArray  # (1,)
    row: IntArray  # (C,) uses of one operator on other devices
    user: IntArray  # (T,) the last operator on the producer's device that reads a tensor
    departed: FloatArray  # (T,) when the last transfer of a tensor ends
    freed: FloatArray  # (N,) bytes that go when an operator ends
    sent: IntArray  # (C, 3) of each transfer: tensor, destination, last reader there
    sent_at: FloatArray  # (C,) when it starts
    by_device: IntArray  # (N,) operators by device, in order
    ptr: IntArray  # (D + 1, 3) of each device: its operators, arrivals, departures
    came: IntArray  # (C,) transfers by destination and start
    left: IntArray  # (T,) tensors that go when their last transfer ends, by device and that time
    peak: FloatArray  # (D,) bytes
    base: IntArray  # (N,) the order of a ranking
    key: IntArray  # (N,)
    depth: IntArray  # (N,)
    by_depth: IntArray  # (N,)


def holdings(problem: StepProblem) -> Holdings:
    """The arrays of `problem`."""
    graph = problem.graph
    read = np.diff(graph.consumer_ptr) > 0
    n = graph.num_operators
    return Holdings(
        state=graph.state_bytes,
        made=_by_operator(graph.producer, graph.tensor_bytes, n),
        unread=_by_operator(graph.producer[~read], graph.tensor_bytes[~read], n),
        tensor=np.where(read, graph.tensor_bytes, 0.0),
        producer=np.ascontiguousarray(graph.producer, dtype=np.int64),
        capacity=np.ascontiguousarray(problem.capacity, dtype=np.float64),
        weight_gradient=graph.weight_gradient.astype(np.int64),
    )


def _by_operator(producer: IntArray, nbytes: FloatArray, operators: int) -> FloatArray:
    return np.bincount(producer, nbytes, operators).astype(np.float64)


def play_room(arrays: StepArrays, held: Holdings, num_ports: int) -> Play:
    """Fresh working memory; `num_ports` = 0 makes transfers free."""
    n, d = arrays.op_seconds.shape
    uses, tensors = len(arrays.use_op), len(held.tensor)
    slots = int(arrays.use_slot.max(initial=0)) + 1

    def whole() -> IntArray:
        return np.zeros(n, np.int64)

    return Play(
        position=np.zeros(n, np.uint32),
        device_free=np.zeros(d),
        port_free=np.zeros(num_ports),
        arrival=np.zeros((slots, d)),
        stamp=np.full((slots, d), -1),
        number=np.zeros((slots, d), dtype=np.int64),
        ticket=np.zeros(1, np.int64),
        row=np.zeros(uses, np.int64),
        user=np.zeros(tensors, np.int64),
        departed=np.zeros(tensors),
        sent=np.zeros((uses, 3), dtype=np.int64),
        sent_at=np.zeros(uses),
        ptr=np.zeros((d + 1, 3), dtype=np.int64),
        came=np.zeros(uses, np.int64),
        left=np.zeros(tensors, np.int64),
        peak=np.zeros(d),
        order=whole(),
        by_device=whole(),
        base=whole(),
        key=whole(),
        depth=whole(),
        by_depth=whole(),
        ready=np.zeros(n),
        start=np.zeros(n),
        finish=np.zeros(n),
        freed=np.zeros(n),
    )


@lean
def price_in_order(
    arrays: StepArrays, held: Holdings, work: Play, device: IntArray, exact: bool
) -> tuple[float, float]:
    """Seconds of placement `device` (N,) in `work.order`, and bytes that do not fit, in all.

    `work.peak` then holds the peaks of the devices, exact ones if `exact`: otherwise bounds of
    those that cannot overflow.
    """
    op_seconds, use_ptr, use_op = arrays.op_seconds, arrays.use_ptr, arrays.use_op
    use_tensor, use_slot, link_class = arrays.use_tensor, arrays.use_slot, arrays.link_class
    order, position, ready, finish = work.order, work.position, work.ready, work.finish
    device_free, port_free, row = work.device_free, work.port_free, work.row
    arrival, stamp, number, sent = work.arrival, work.stamp, work.number, work.sent
    peak, user, departed = work.peak, work.user, work.departed
    n, ticket = len(order), work.ticket[0]
    work.ticket[0] = ticket + n
    device_free[:] = 0.0
    port_free[:] = 0.0
    peak[:] = 0.0
    free_transfers = len(port_free) == 0
    end = 0.0
    transfers = 0
    for p in range(n):
        position[order[p]] = p
    for t in range(len(user)):
        user[t] = held.producer[t]
        departed[t] = 0.0
    for p in range(n):
        op = order[p]
        d = device[op]
        begin = ready[op] if ready[op] > device_free[d] else device_free[d]
        over = begin + op_seconds[op, d]
        ready[op] = 0.0
        device_free[d] = over
        work.start[op] = begin
        finish[op] = over
        work.freed[op] = held.unread[op]
        peak[d] += held.state[op] + held.made[op]
        end = over if over > end else end
        mark = ticket + p
        apart = 0
        for k in range(use_ptr[op], use_ptr[op + 1]):
            c = use_op[k]
            if device[c] == d:
                ready[c] = max(ready[c], over)
                t = use_tensor[k]
                if user[t] == op or position[c] > position[user[t]]:
                    user[t] = c
            else:
                i = apart
                while i > 0 and (
                    position[use_op[row[i - 1]]] > position[c]
                    or (
                        position[use_op[row[i - 1]]] == position[c]
                        and use_tensor[row[i - 1]] > use_tensor[k]
                    )
                ):
                    row[i] = row[i - 1]
                    i -= 1
                row[i] = k
                apart += 1
        for i in range(apart):
            k = row[i]
            c, t, slot = use_op[k], use_tensor[k], use_slot[k]
            e = device[c]
            if stamp[slot, e] == mark:
                at = arrival[slot, e]
                sent[number[slot, e], 2] = c
            else:
                at = over
                sending = over
                seconds = arrays.transfer_seconds[t, link_class[d, e]]
                if seconds > 0.0 and not free_transfers:
                    s, r = arrays.send_port[d, e], arrays.receive_port[d, e]
                    sending = port_free[s] if port_free[s] > sending else sending
                    sending = port_free[r] if port_free[r] > sending else sending
                    at = sending + seconds
                    port_free[s] = at
                    port_free[r] = at
                stamp[slot, e] = mark
                arrival[slot, e] = at
                number[slot, e] = transfers
                sent[transfers, 0], sent[transfers, 1], sent[transfers, 2] = t, e, c
                work.sent_at[transfers] = sending
                transfers += 1
                peak[e] += held.tensor[t]
                departed[t] = at if at > departed[t] else departed[t]
            ready[c] = at if at > ready[c] else ready[c]
    if not exact:
        binds = False
        for d in range(len(peak)):
            binds |= peak[d] > held.capacity[d]
        if not binds:
            return end, 0.0
    _peaks(held, work, device, transfers)
    excess = 0.0
    for d in range(len(peak)):
        excess += max(peak[d] - held.capacity[d], 0.0)
    return end, excess


@lean_inner
def _sort(items: IntArray, begin: int, end: int, key: FloatArray) -> None:
    """Sort a part of `items` by `key`; it nearly is, since ports serve in order."""
    for i in range(begin + 1, end):
        item = items[i]
        j = i
        while j > begin and key[items[j - 1]] > key[item]:
            items[j] = items[j - 1]
            j -= 1
        items[j] = item


@lean_inner
def _peaks(held: Holdings, work: Play, device: IntArray, transfers: int) -> None:
    """`work.peak` from what `price_in_order` left of a play."""
    order, start, finish, freed = work.order, work.start, work.finish, work.freed
    user, departed, sent, sent_at = work.user, work.departed, work.sent, work.sent_at
    by_device, came, left, ptr = work.by_device, work.came, work.left, work.ptr
    devices = len(work.peak)
    ptr[:] = 0
    for t in range(len(user)):  # a tensor goes with its last reader, or when it has departed
        if held.tensor[t] > 0.0:
            if departed[t] > finish[user[t]]:
                ptr[device[user[t]] + 1, 2] += 1
            else:
                freed[user[t]] += held.tensor[t]
    for m in range(transfers):
        freed[sent[m, 2]] += held.tensor[sent[m, 0]]
        ptr[sent[m, 1] + 1, 1] += 1
    for op in order:
        ptr[device[op] + 1, 0] += 1
    for d in range(devices):
        for kind in range(3):
            ptr[d + 1, kind] += ptr[d, kind]
    for op in order:
        d = device[op]
        by_device[ptr[d, 0]] = op
        ptr[d, 0] += 1
    for m in range(transfers):
        d = sent[m, 1]
        came[ptr[d, 1]] = m
        ptr[d, 1] += 1
    for t in range(len(user)):
        if held.tensor[t] > 0.0 and departed[t] > finish[user[t]]:
            d = device[user[t]]
            left[ptr[d, 2]] = t
            ptr[d, 2] += 1
    op, arrived, gone = 0, 0, 0
    for d in range(devices):
        last_op, last_arrived, last_gone = ptr[d, 0], ptr[d, 1], ptr[d, 2]
        _sort(came, arrived, last_arrived, sent_at)
        _sort(left, gone, last_gone, departed)
        state, now, highest = 0.0, 0.0, 0.0
        ended = op
        while op < last_op or arrived < last_arrived:
            at_op = start[by_device[op]] if op < last_op else np.inf
            at_arrival = sent_at[came[arrived]] if arrived < last_arrived else np.inf
            at = at_op if at_op < at_arrival else at_arrival
            while ended < last_op and finish[by_device[ended]] <= at:
                now -= freed[by_device[ended]]
                ended += 1
            while gone < last_gone and departed[left[gone]] <= at:
                now -= held.tensor[left[gone]]
                gone += 1
            if op < last_op and at_op <= at_arrival:
                state += held.state[by_device[op]]
                now += held.made[by_device[op]]
                op += 1
            else:
                now += held.tensor[sent[came[arrived], 0]]
                arrived += 1
            highest = now if now > highest else highest
        gone = last_gone
        work.peak[d] = state + highest


_ROUNDING = 1e-9  # relative: orders that are no faster than that are equals


@compiled
def order_of(
    rule: int,
    arrays: StepArrays,
    held: Holdings,
    work: Play,
    ready: Scratch,
    num_ports: int,
    device: IntArray,
) -> None:
    """Write the order that `rule` gives placement `device` (N,) to `work.order`."""
    order = work.order
    by_key = rule if rule < Rule.WINDOW_S else Rule.ONE_F_ONE_B  # those before sort by a key
    stages = sort_by_key(
        by_key, device, arrays.phase, arrays.micro_batch, arrays.num_micro_batches,
        arrays.use_ptr, arrays.use_op, work.key, work.depth, work.by_depth, order,
    )  # fmt: skip
    if rule < Rule.WINDOW_S:
        return
    n, base = len(order), work.base
    base[:] = order
    window = 0
    if rule == Rule.CRITICAL:
        tail = np.zeros(n)
        for op in range(n - 1, -1, -1):
            for k in range(arrays.use_ptr[op], arrays.use_ptr[op + 1]):
                c = arrays.use_op[k]
                link = arrays.link_class[device[op], device[c]]
                moved = arrays.transfer_seconds[arrays.use_tensor[k], link]
                tail[op] = max(tail[op], moved + tail[c])
            tail[op] += arrays.op_seconds[op, device[op]]
        for at, op in enumerate(base[np.argsort(-tail[base], kind="mergesort")]):
            ready.order[at] = op
    elif rule in (Rule.READY, Rule.WINDOW_ONE):
        for p in range(n):
            ready.order[p] = base[p]
        window = 1 if rule == Rule.WINDOW_ONE else 0
    else:
        at = 0
        for late in range(2):
            for op in base:
                if held.weight_gradient[op] == late:
                    ready.order[at] = op
                    at += 1
        if rule == Rule.WINDOW_S:
            window = stages
        elif rule == Rule.WINDOW_2S:
            window = 2 * stages - 1
        elif rule == Rule.WINDOW_MORE:
            window = stages + 1
        elif rule == Rule.WINDOW_HALF:
            window = (stages + 1) // 2
    _play_ranking(arrays, work, ready, num_ports, device, window)


@compiled
def _play_ranking(
    arrays: StepArrays, work: Play, ready: Scratch, num_ports: int, device: IntArray, window: int
) -> None:
    """What a dynamic runtime makes of the ranking `ready.order`; where starts tie, `work.base`."""
    base, order, start = work.base, work.order, np.empty(len(device))
    use_order(arrays, ready)
    runtime_starts(arrays, ready, num_ports, device, start, None, window)
    if not np.isfinite(start).all():
        return  # the window can never be kept: the order of its ranking stays
    for p in range(len(device)):
        work.start[ready.order[p]] = start[p]
    order[:] = base[np.argsort(work.start[base], kind="mergesort")]


@compiled
def _price_all(
    rule: int,
    arrays: StepArrays,
    held: Holdings,
    work: Play,
    ready: Scratch,
    num_ports: int,
    devices: IntArray,  # (B, N)
    seconds: FloatArray,  # (B,) out
    excess: FloatArray,  # (B,) out: bytes
) -> None:
    for b in range(len(devices)):
        order_of(rule, arrays, held, work, ready, num_ports, devices[b])
        seconds[b], excess[b] = price_in_order(arrays, held, work, devices[b], False)


@dataclass(frozen=True, eq=False)
class Price:
    """What a placement costs in one order."""

    seconds: float
    excess: float  # bytes that do not fit, of all devices together
    rule: Rule
    order: IntArray  # (N,)

    @property
    def rank(self) -> tuple[float, float]:
        """What plans are compared by: the bytes that do not fit, then the seconds."""
        return self.excess, self.seconds


class Pricer:
    """Prices placements of `problem` under the orders it allows. One per thread.

    Args:
        problem: what is placed.
        communication: whether transfers hold ports, or take no time.
    """

    def __init__(self, problem: StepProblem, communication: Ports = SINGLE_PORT) -> None:
        self.arrays = step_arrays(problem)
        self.held = holdings(problem)
        self.num_ports = problem.topology.num_ports if communication.uses_ports else 0
        self.work = play_room(self.arrays, self.held, self.num_ports)
        self.ready = scratch(self.arrays, self.num_ports)
        self.rules = rules_of(problem.orders, problem.graph.num_micro_batches)

    def price(self, device: IntArray, rules: tuple[Rule, ...] = ()) -> Price:
        """The fastest of the orders in which placement `device` (N,) fits, else the tightest.

        `rules` are tried, by default all that the problem allows; of equals the first.
        """
        device = np.ascontiguousarray(device, dtype=np.int64)
        best: Price | None = None
        for rule in rules or self.rules:
            order_of(
                int(rule), self.arrays, self.held, self.work, self.ready, self.num_ports, device
            )
            seconds, excess = price_in_order(self.arrays, self.held, self.work, device, False)
            faster = best is None or seconds < best.seconds * (1.0 - _ROUNDING)
            if best is None or excess < best.excess or (excess == best.excess and faster):
                best = Price(seconds, excess, rule, self.work.order.copy())
        assert best is not None
        return best

    def prices(self, devices: IntArray, rule: Rule) -> tuple[FloatArray, FloatArray]:
        """Seconds (B,) and bytes that do not fit (B,) of B placements `devices` (B, N)."""
        devices = np.ascontiguousarray(devices, dtype=np.int64)
        seconds, excess = np.empty((2, len(devices)))
        _price_all(
            int(rule), self.arrays, self.held, self.work, self.ready, self.num_ports, devices,
            seconds, excess,
        )  # fmt: skip
        return seconds, excess

    def windowed(self, device: IntArray, ranking: IntArray, window: int) -> IntArray:
        """(N,) the order a dynamic runtime makes of `ranking` (N,), topological.

        On each device at most `window` micro-batches are under way.
        """
        self.work.base[:], self.work.order[:], self.ready.order[:] = ranking, ranking, ranking
        device = np.ascontiguousarray(device, dtype=np.int64)
        _play_ranking(self.arrays, self.work, self.ready, self.num_ports, device, window)
        return self.work.order.copy()

    def peaks(self, device: IntArray, order: IntArray) -> tuple[float, FloatArray]:
        """Seconds and (D,) bytes of peak memory of a plan."""
        self.work.order[:] = order
        device = np.ascontiguousarray(device, dtype=np.int64)
        seconds, _ = price_in_order(self.arrays, self.held, self.work, device, True)
        return seconds, self.work.peak.copy()


def name_of_order(problem: StepProblem, device: IntArray, order: IntArray) -> str:
    """The first of the orders of `problem` that is `order` (N,) on this placement, else `free`."""
    pricer = Pricer(problem)
    for name in problem.orders:
        for rule in rules_of((name,), problem.graph.num_micro_batches):
            if np.array_equal(pricer.price(device, (rule,)).order, order):
                return name
    return "free"


class BestOrder(StepSimulator):
    """As `StepSimulator`; a bare placement gets the best order that its problem allows.

    The best is the fastest of those whose peak memory fits; where none fits, that which overflows
    the least.
    """

    def __init__(
        self,
        problem: StepProblem,
        *,
        communication: Ports = SINGLE_PORT,
        order_rule: OrderRule | None = None,
    ) -> None:
        super().__init__(problem, communication=communication, order_rule=order_rule)
        self.pricer = Pricer(problem, communication)

    def order(self, device: IntArray) -> IntArray:
        """(N,) the best order of placement `device` (N,)."""
        return self.pricer.price(device).order

    def step_times(self, devices: IntArray, order: IntArray | None = None) -> FloatArray:
        """(B,) seconds of B placements `devices` (B, N), each in `order` or in its best one."""
        if order is not None:
            return super().step_times(devices, order)
        return np.array([self.pricer.price(device).seconds for device in np.asarray(devices)])
