"""The price of a placement: its fastest order among those allowed, and the memory that takes.

Plans are played by `envs.step.incremental`, which leaves what `envs.step.live_memory` needs to work
out the peak memory of every device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from envs.arrays import FloatArray, IntArray
from envs.compilation import compiled, lean
from envs.step.incremental import Schedule, no_schedule, settle_times
from envs.step.kernel import Scratch, StepArrays, scratch, step_arrays
from envs.step.live_memory import Stored, Streams, bound_peaks, peak_bytes, stored_of, streams_of
from envs.step.order import OrderRule, Rule, rules_of, sort_by_key
from envs.step.problem import StepProblem
from envs.step.ready import runtime_starts
from envs.step.step import SINGLE_PORT, Ports, StepSimulator, use_order


class OrderRoom(NamedTuple):
    """The order of a rule, and working memory for it."""

    order: IntArray  # (N,)
    base: IntArray  # (N,) the order of a ranking
    start: FloatArray  # (N,) seconds, by operator
    key: IntArray  # (N,)
    depth: IntArray  # (N,)
    by_depth: IntArray  # (N,)


class Pricing(NamedTuple):
    """A problem, and working memory to price its placements."""

    arrays: StepArrays
    ready: Scratch
    orders: OrderRoom
    schedule: Schedule  # without tails
    stored: Stored
    streams: Streams
    capacity: FloatArray  # (D,) bytes
    peak: FloatArray  # (D,) bytes, of the placement priced last


@lean
def price_in_order(
    work: Pricing, device: IntArray, order: IntArray, exact: bool
) -> tuple[float, float]:
    """Seconds of placement `device` (N,) in `order` (N,), and bytes that do not fit, in all.

    `work.peak` then holds the peaks of the devices, exact ones if `exact`: otherwise bounds of
    those that cannot overflow.
    """
    facts, chosen, times, probe = work.schedule
    peak, capacity = work.peak, work.capacity
    for i in range(len(order)):
        chosen.device[i] = device[i]
        chosen.order[i] = order[i]
    seconds: float = settle_times(facts, chosen, times, probe)
    bound_peaks(facts, chosen, times, work.stored, peak)
    binds = exact
    for d in range(len(peak)):
        binds |= peak[d] > capacity[d]
    if not binds:
        return seconds, 0.0
    peak_bytes(facts, chosen, times, work.stored, work.streams, peak)
    excess = 0.0
    for d in range(len(peak)):
        excess += max(peak[d] - capacity[d], 0.0)
    return seconds, excess


_ROUNDING = 1e-9  # relative: orders that are no faster than that are equals


@compiled
def order_of(rule: int, work: Pricing, device: IntArray) -> None:
    """Write the order that `rule` gives placement `device` (N,) to `work.orders.order`."""
    arrays, ready, orders = work.arrays, work.ready, work.orders
    order = orders.order
    by_key = rule if rule < Rule.WINDOW_S else Rule.ONE_F_ONE_B  # those before sort by a key
    stages = sort_by_key(
        by_key, device, arrays.phase, arrays.micro_batch, arrays.num_micro_batches,
        arrays.use_ptr, arrays.use_op, orders.key, orders.depth, orders.by_depth, order,
    )  # fmt: skip
    if rule < Rule.WINDOW_S:
        return
    n, base = len(order), orders.base
    for p in range(n):
        base[p] = order[p]
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
        least = np.empty(n)
        for p in range(n):
            least[p] = -tail[base[p]]
        for p, at in enumerate(np.argsort(least, kind="mergesort")):
            ready.order[p] = base[at]
    elif rule in (Rule.READY, Rule.WINDOW_ONE):
        for p in range(n):
            ready.order[p] = base[p]
        window = 1 if rule == Rule.WINDOW_ONE else 0
    else:
        at = 0
        for late in (False, True):
            for op in base:
                if arrays.weight_gradient[op] == late:
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
    _play_ranking(work, device, window)


@compiled
def _play_ranking(work: Pricing, device: IntArray, window: int) -> None:
    """What a dynamic runtime makes of the ranking `ready.order`; `orders.base` where starts tie."""
    ready, orders, start = work.ready, work.orders, np.empty(len(device))
    use_order(work.arrays, ready)
    runtime_starts(work.arrays, ready, len(ready.port_free), device, start, None, window)
    if not np.isfinite(start).all():
        return  # the window can never be kept: the order of its ranking stays
    for p in range(len(device)):
        orders.start[ready.order[p]] = start[p]
    for p in range(len(device)):
        start[p] = orders.start[orders.base[p]]
    for p, at in enumerate(np.argsort(start, kind="mergesort")):
        orders.order[p] = orders.base[at]


@compiled
def price(rule: int, work: Pricing, device: IntArray) -> tuple[float, float]:
    """As `price_in_order`, in the order that `rule` gives placement `device` (N,)."""
    order_of(rule, work, device)
    priced: tuple[float, float] = price_in_order(work, device, work.orders.order, False)
    return priced


@compiled
def _price_all(
    rule: int,
    work: Pricing,
    devices: IntArray,  # (B, N)
    seconds: FloatArray,  # (B,) out
    excess: FloatArray,  # (B,) out: bytes
) -> None:
    for b in range(len(devices)):
        seconds[b], excess[b] = price(rule, work, devices[b])


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
        inner: (N,) bytes more that an operator needs while it runs.
    """

    def __init__(
        self,
        problem: StepProblem,
        communication: Ports = SINGLE_PORT,
        inner: FloatArray | None = None,
    ) -> None:
        n, d = problem.op_seconds.shape
        played = arrays = step_arrays(problem)
        num_ports = problem.topology.num_ports
        if not communication.uses_ports:
            free = np.zeros_like(arrays.transfer_seconds)
            num_ports, played = 0, arrays._replace(transfer_seconds=free)
        whole = {name: np.zeros(n, np.int64) for name in OrderRoom._fields if name != "start"}
        self.work = Pricing(
            arrays=arrays,
            ready=scratch(arrays, num_ports),
            orders=OrderRoom(start=np.zeros(n), **whole),
            schedule=no_schedule(problem, played),
            stored=stored_of(problem, inner),
            streams=streams_of(problem),
            capacity=np.array(problem.capacity, dtype=np.float64),
            peak=np.zeros(d),
        )
        self.rules = rules_of(problem.orders, problem.graph.num_micro_batches)

    def price(self, device: IntArray, rules: tuple[Rule, ...] = ()) -> Price:
        """The fastest of the orders in which placement `device` (N,) fits, else the tightest.

        `rules` are tried, by default all that the problem allows; of equals the first.
        """
        device = np.ascontiguousarray(device, dtype=np.int64)
        best: Price | None = None
        for rule in rules or self.rules:
            seconds, excess = price(int(rule), self.work, device)
            faster = best is None or seconds < best.seconds * (1.0 - _ROUNDING)
            if best is None or excess < best.excess or (excess == best.excess and faster):
                best = Price(seconds, excess, rule, self.work.orders.order.copy())
        assert best is not None
        return best

    def prices(self, devices: IntArray, rule: Rule) -> tuple[FloatArray, FloatArray]:
        """Seconds (B,) and bytes that do not fit (B,) of B placements `devices` (B, N)."""
        devices = np.ascontiguousarray(devices, dtype=np.int64)
        seconds, excess = np.empty((2, len(devices)))
        _price_all(int(rule), self.work, devices, seconds, excess)
        return seconds, excess

    def windowed(self, device: IntArray, ranking: IntArray, window: int) -> IntArray:
        """(N,) the order a dynamic runtime makes of `ranking` (N,), topological.

        On each device at most `window` micro-batches are under way.
        """
        orders = self.work.orders
        orders.base[:], orders.order[:], self.work.ready.order[:] = ranking, ranking, ranking
        _play_ranking(self.work, np.ascontiguousarray(device, dtype=np.int64), window)
        return orders.order.copy()

    def peaks(self, device: IntArray, order: IntArray) -> tuple[float, FloatArray]:
        """Seconds and (D,) bytes of peak memory of a plan."""
        device, order = (np.ascontiguousarray(x, dtype=np.int64) for x in (device, order))
        seconds, _ = price_in_order(self.work, device, order, True)
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
