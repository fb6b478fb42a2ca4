"""The communication model `fair`: all transfers share the physical links at once.

A step is played as a sequence of events.

All transfers of an ordered pair of devices drain at one rate, so that a pair has a clock of its
own: the bytes that a transfer of the pair drains since the pair became busy. A transfer that enters
at clock v with b bytes leaves at clock v + b; the transfers of a pair stand in a heap by that
reading, and the earliest leaving of all pairs is the next event of the network. Rates are worked
out anew only when the transfers under way have changed.

`envs.network.max_min` fills links with flows that take the same of every link they cross. Here a
flow is a class of equal paths of a pair (`envs.step.bottlenecks`), which takes several shares of a
link that several of its paths cross.

The phases of the loop stand inside it, where numba inlines them and the arrays are at hand: passing
tuples of arrays to functions costs more than what these do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numba
import numpy as np

from envs.arrays import FloatArray, IntArray
from envs.compilation import compiled_inner
from envs.heap import pop, push
from envs.step.bottlenecks import Bottlenecks, bottlenecks
from envs.step.kernel import StepArrays, step_arrays
from envs.step.order import OneFOneB, OrderRule
from envs.step.plans import PairWeights
from envs.step.problem import StepProblem
from envs.step.timeline import Timeline

_NONE = -1


class RateScratch(NamedTuple):
    """Working memory of `fair_rates`; one per thread."""

    links: IntArray  # (K,) those that are crossed
    seen: IntArray  # (K,) the filling that crossed each last
    room: FloatArray  # (K,) bytes/s that are not taken
    rest: FloatArray  # (K,) subflows without a rate
    share: FloatArray  # (K,) the level at which these fill the room
    first: IntArray  # (K,) the first row of `Bottlenecks.path_link` on each link
    after: IntArray  # the next row on the same link
    frozen: IntArray  # (P,) the filling in which each class got its rate last
    ticket: IntArray  # (1,) number of the filling


def rate_scratch(network: Bottlenecks) -> RateScratch:
    """Fresh working memory."""
    k, rows = len(network.capacity), len(network.path_link)
    return RateScratch(
        links=np.zeros(k, np.int64),
        seen=np.zeros(k, np.int64),
        room=np.zeros(k),
        rest=np.zeros(k),
        share=np.zeros(k),
        first=np.zeros(k, np.int64),
        after=np.zeros(rows, np.int64),
        frozen=np.zeros(len(network.pair), dtype=np.int64),
        ticket=np.zeros(1, np.int64),
    )


@numba.njit(cache=True, nogil=True, error_model="numpy")
def fair_rates(
    network: Bottlenecks,
    work: RateScratch,
    busy: IntArray,  # (B or more,) pairs that have transfers
    count: int,  # B
    flows: FloatArray,  # (D * D,) transfers of each pair
    rate: FloatArray,  # (D * D,) out: bytes/s of one transfer of each busy pair
) -> None:
    """Progressive filling of the links that busy pairs cross.

    All classes of paths rise at one level until a link is full; the classes on it keep that rate
    and the others go on (Bertsekas and Gallager, "Data Networks", 1992, section 6.5.2). One filling
    takes a pass over the links of the busy pairs and one over those links for every level.
    """
    capacity, pair_ptr, path_ptr = network.capacity, network.pair_ptr, network.path_ptr
    path_link, path_load = network.path_link, network.path_load
    links, seen, room, rest, share = work.links, work.seen, work.room, work.rest, work.share
    first, after, frozen = work.first, work.after, work.frozen
    work.ticket[0] += 1
    ticket = work.ticket[0]
    crossed = 0
    for b in range(count):
        pair = busy[b]
        rate[pair] = 0.0
        for x in range(path_ptr[pair_ptr[pair]], path_ptr[pair_ptr[pair + 1]]):
            link = path_link[x]
            if seen[link] != ticket:
                seen[link] = ticket
                links[crossed] = link
                crossed += 1
                room[link], rest[link], first[link] = capacity[link], 0.0, _NONE
            rest[link] += flows[pair] * path_load[x]
            after[x] = first[link]
            first[link] = x
    for y in range(crossed):
        share[links[y]] = room[links[y]] / rest[links[y]]
    reached = 0.0
    while True:
        level = np.inf
        tight = links[0]
        y = 0
        while y < crossed:
            link = links[y]
            if rest[link] <= 0.0:  # everything on it has its rate
                crossed -= 1
                links[y] = links[crossed]
                continue
            if share[link] < level:
                tight, level = link, share[link]
            y += 1
        if crossed == 0:
            break
        reached = level = max(level, reached)  # rounding may not lower it
        row = first[tight]
        while row != _NONE:
            p = network.path[row]
            if frozen[p] != ticket:
                frozen[p] = ticket
                pair = network.pair[p]
                rate[pair] += network.size[p] * level
                for x in range(path_ptr[p], path_ptr[p + 1]):
                    link, taken = path_link[x], flows[pair] * path_load[x]
                    rest[link] -= taken
                    room[link] -= taken * level
                    share[link] = room[link] / rest[link]
            row = after[row]


_UNKNOWN = -1.0  # when the first transfer of a pair leaves, until its rate is known


class FairState(NamedTuple):
    """Working memory of one simulation at a time; one per thread."""

    producer: IntArray  # (C,) operator whose tensor a use takes; never changes
    inputs: IntArray  # (N,) uses that each operator takes; never changes
    missing: IntArray  # (N,) of them, those that are not there
    queue_ptr: IntArray  # (D + 1,)
    queue: IntArray  # (N,) operators of each device in order
    head: IntArray  # (D,) first of them that has not started
    running: IntArray  # (D,) operator under way
    began: FloatArray  # (D,) when it started
    stamp: IntArray  # (slots, D) who has sent a tensor there
    # operators that end, latencies that pass and arrivals: a binary heap
    event_time: FloatArray  # (D + C,)
    event: IntArray  # (D + C,) operator, or N + use, or N + C + use
    # transfers by their first use
    leave: FloatArray  # (C,) the pair's clock when it has drained
    left: IntArray  # (C,) children in the heap of the pair
    right: IntArray  # (C,)
    # pairs i * D + j
    root: IntArray  # (D * D,) transfer that leaves first
    flows: FloatArray  # (D * D,) transfers draining
    clock: FloatArray  # (D * D,) bytes per transfer since the pair became busy, at `since`
    since: FloatArray  # (D * D,) seconds
    rate: FloatArray  # (D * D,) bytes/s of one transfer
    fresh: FloatArray  # (D * D,) the same from now on
    done: FloatArray  # (D * D,) when the first transfer leaves
    busy: IntArray  # (D * D,) pairs with transfers, in no order


def fair_state(arrays: StepArrays) -> FairState:
    """Fresh working memory."""
    n, d = arrays.op_seconds.shape
    uses, pairs = len(arrays.use_op), d * d
    slots = int(arrays.use_slot.max(initial=0)) + 1

    def ints(*shape: int) -> IntArray:
        return np.zeros(shape, np.int64)

    return FairState(
        producer=np.repeat(np.arange(n), np.diff(arrays.use_ptr)),
        inputs=np.bincount(arrays.use_op, minlength=n).astype(np.int64),
        missing=ints(n),
        queue_ptr=ints(d + 1),
        queue=ints(n),
        head=ints(d),
        running=ints(d),
        began=np.zeros(d),
        stamp=ints(slots, d),
        event_time=np.zeros(d + uses),
        event=ints(d + uses),
        leave=np.zeros(uses),
        left=ints(uses),
        right=ints(uses),
        root=ints(pairs),
        flows=np.zeros(pairs),
        clock=np.zeros(pairs),
        since=np.zeros(pairs),
        rate=np.zeros(pairs),
        fresh=np.zeros(pairs),
        done=np.zeros(pairs),
        busy=ints(pairs),
    )


@compiled_inner
def _meld(leave: FloatArray, left: IntArray, right: IntArray, a: int, b: int) -> int:
    """The root of two skew heaps made one (Sleator and Tarjan, 1986)."""
    if a == _NONE:
        return b
    if b == _NONE:
        return a
    if leave[b] < leave[a]:
        a, b = b, a
    root = a
    while b != _NONE:  # b sinks along the right spine; children change sides on the way
        spine = right[a]
        right[a] = left[a]
        if spine != _NONE and leave[spine] <= leave[b]:
            left[a] = spine
            a = spine
        else:
            left[a] = b
            a, b = b, spine
    return root


@numba.njit(cache=True, nogil=True, error_model="numpy")
def play_fair(
    a: StepArrays,
    network: Bottlenecks,
    latency: FloatArray,  # (L,) seconds
    w: FairState,
    work: RateScratch,
    device: IntArray,  # (N,)
    order: IntArray,  # (N,)
    times: FloatArray,  # (4, max(N, C)) out: starts, finishes of operators, of transfers; or (4, 0)
) -> float:
    """Seconds until the last operator ends."""
    op_seconds, transfer_seconds, link_class = a.op_seconds, a.transfer_seconds, a.link_class
    use_ptr, use_op, use_tensor, use_slot = a.use_ptr, a.use_op, a.use_tensor, a.use_slot
    producer, missing, queue_ptr, queue = w.producer, w.missing, w.queue_ptr, w.queue
    head, running, began, stamp = w.head, w.running, w.began, w.stamp
    time, event, leave, left, right = w.event_time, w.event, w.leave, w.left, w.right
    root, flows, clock, since, rate = w.root, w.flows, w.clock, w.since, w.rate
    fresh, done, busy, scale = w.fresh, w.done, w.busy, network.scale
    n, devices = op_seconds.shape
    drains, arrives = n, n + len(use_op)  # the first event of each kind
    recording = times.shape[1] > 0

    def next_event(events: int, pairs: int) -> float:
        """When the next operator ends, or the next transfer drains, leaves or arrives."""
        following = time[0] if events > 0 else np.inf
        for x in range(pairs):
            following = min(following, done[busy[x]])
        return following

    def start(e: int, now: float, events: int) -> int:
        """Device e starts its next operator if it can; the size of the heap of events."""
        if running[e] == _NONE and head[e] < queue_ptr[e + 1] and missing[queue[head[e]]] <= 0:
            i = queue[head[e]]
            head[e] += 1
            running[e], began[e] = i, now
            events = push(time, event, events, now + op_seconds[i, e], i)
        return events

    def end_operator(i: int, now: float, events: int) -> int:
        """Operator i ends and sends its tensors; the size of the heap of events."""
        e = device[i]
        running[e] = _NONE
        if recording:
            times[0, i], times[1, i] = began[e], now
        for k in range(use_ptr[i], use_ptr[i + 1]):
            target = device[use_op[k]]
            if target == e:
                missing[use_op[k]] -= 1
            elif stamp[use_slot[k], target] != i:
                stamp[use_slot[k], target] = i
                link = link_class[e, target]
                seconds = transfer_seconds[use_tensor[k], link]
                if recording:
                    times[2, k] = now
                if seconds > latency[link] and seconds < np.inf:
                    events = push(time, event, events, now + latency[link], drains + k)
                elif seconds < np.inf:
                    arrival = now + max(0.0, seconds)
                    events = push(time, event, events, arrival, arrives + k)
        return events

    def drain(k: int, now: float, pairs: int) -> int:
        """The transfer of use k begins to drain; the number of busy pairs."""
        source, e = device[producer[k]], device[use_op[k]]
        link, pair = link_class[source, e], source * devices + e
        volume = (transfer_seconds[use_tensor[k], link] - latency[link]) * scale[link]
        if flows[pair] == 0.0:
            clock[pair], rate[pair] = 0.0, 0.0
            busy[pairs] = pair
            pairs += 1
        else:
            clock[pair] += rate[pair] * (now - since[pair])
        since[pair] = now
        leave[k] = clock[pair] + volume
        left[k] = right[k] = _NONE
        root[pair] = _meld(leave, left, right, root[pair], k)
        flows[pair] += 1.0
        done[pair] = _UNKNOWN
        return pairs

    def deliver(k: int, now: float) -> None:
        """The tensor of use k is on the device of that use."""
        if recording:
            times[3, k] = now
        e, slot = device[use_op[k]], use_slot[k]
        for j in range(k, use_ptr[producer[k] + 1]):
            if use_slot[j] == slot and device[use_op[j]] == e:
                missing[use_op[j]] -= 1

    def end_transfers(pair: int, now: float) -> None:
        """The first transfers of a pair have drained."""
        clock[pair], since[pair] = leave[root[pair]], now
        while root[pair] != _NONE and leave[root[pair]] <= clock[pair]:
            k = root[pair]
            root[pair] = _meld(leave, left, right, left[k], right[k])
            flows[pair] -= 1.0
            deliver(k, now)
        done[pair] = _UNKNOWN

    def foresee(now: float, pairs: int) -> None:
        """When the first transfer of every busy pair leaves, at the rates from now on."""
        for x in range(pairs):
            pair = busy[x]
            if fresh[pair] != rate[pair] or done[pair] == _UNKNOWN:
                clock[pair] += rate[pair] * (now - since[pair])
                since[pair], rate[pair] = now, fresh[pair]
                ahead = max(0.0, leave[root[pair]] - clock[pair])
                done[pair] = now + ahead / rate[pair]

    _line_up(w, device, order)
    events, pairs, ended = 0, 0, 0  # in the heap; busy; operators
    now, end = 0.0, 0.0
    for e in range(devices):
        events = start(e, now, events)
    while True:
        now = next_event(events, pairs)
        if now == np.inf:
            return end if ended == n else np.inf
        changed = False
        while events > 0 and time[0] <= now:
            what = event[0]
            events = pop(time, event, events)
            if what < drains:
                e = device[what]
                events = end_operator(what, now, events)
                ended, end = ended + 1, now
            elif what < arrives:
                e = device[use_op[what - drains]]
                pairs = drain(what - drains, now, pairs)
                changed = True
            else:
                e = device[use_op[what - arrives]]
                deliver(what - arrives, now)
            events = start(e, now, events)
        x = 0
        while x < pairs:
            pair = busy[x]
            if done[pair] > now or done[pair] == _UNKNOWN:
                x += 1
                continue
            end_transfers(pair, now)
            events = start(pair % devices, now, events)
            changed = True
            if root[pair] == _NONE:
                pairs -= 1
                busy[x] = busy[pairs]
            else:
                x += 1
        if changed and pairs > 0:
            fair_rates(network, work, busy, pairs, flows, fresh)
            foresee(now, pairs)


@compiled_inner
def _line_up(w: FairState, device: IntArray, order: IntArray) -> None:
    """The state before the step: the operators of every device in order, nothing under way."""
    w.missing[:] = w.inputs
    w.stamp[:] = _NONE
    w.running[:] = _NONE
    w.root[:] = _NONE
    w.flows[:] = 0.0
    w.queue_ptr[:] = 0
    for i in range(len(device)):
        w.queue_ptr[device[i] + 1] += 1
    for e in range(len(w.head)):
        w.queue_ptr[e + 1] += w.queue_ptr[e]
        w.head[e] = w.queue_ptr[e]
    for i in order:
        w.queue[w.head[device[i]]] = i
        w.head[device[i]] += 1
    w.head[:] = w.queue_ptr[:-1]


_UNRECORDED = np.zeros((4, 0))


class FairSimulator:
    """Plays plans of one problem whose transfers share the links of the network max-min fairly.

    Devices run their operators as under `envs.step.step.StepSimulator`. A tensor is sent
    once per receiving device, as soon as its producer has ended. The transfer waits for the latency
    of its link class; then it drains (seconds - latency) x bandwidth bytes, the figures of the
    class, over links that all transfers under way share: the rates are max-min fair at every
    instant (Bertsekas and Gallager, "Data Networks", 1992, section 6.5.2). With `multipath` a
    transfer has a subflow on every path of its pair, fair by themselves, and drains at the sum of
    their rates; else it takes the path that leaves by the NIC of the pair's route, chosen by the
    receiving device where there are several. A transfer that takes no longer than its latency takes
    its time and moves nothing. Alone on one path a transfer takes its `transfer_seconds`.

    The order decides only who computes first: no port serves anyone before others.

    `weigh` gives the transfers of some pairs of devices more than those of others. A transfer of
    weight w is to the kernel as w transfers of weight 1: it puts w times as many subflows on its
    links, and rises w times as fast.

    Not thread safe: each thread makes its own. Copies and pickles freely.

    Args:
        multipath: whether transfers take all paths of their pair.

    Raises:
        InputError: no path leads from a device to another one.
    """

    def __init__(
        self, problem: StepProblem, *, multipath: bool, order_rule: OrderRule | None = None
    ) -> None:
        self.problem = problem
        self.order_rule: OrderRule = order_rule if order_rule is not None else OneFOneB()
        self._arrays = step_arrays(problem)
        self._links = self._unweighted = bottlenecks(problem.topology, multipath)
        self._latency = np.ascontiguousarray(problem.topology.class_latency, dtype=np.float64)
        self._state = fair_state(self._arrays)
        self._rates = rate_scratch(self._links)

    def weigh(self, weight: IntArray) -> None:
        """Play at weights (D, D) of the transfers of each pair of devices, at least 1."""
        links, by_pair = self._unweighted, weight.ravel().astype(np.float64)
        self._links = links._replace(
            size=links.size * by_pair[links.pair],
            path_load=links.path_load * by_pair[links.pair[links.path]],
        )

    def order(self, device: IntArray) -> IntArray:
        """(N,) the order the rule gives to placement `device` (N,)."""
        return self.order_rule(self.problem.graph, device)

    def step_time(self, device: IntArray, order: IntArray | None = None) -> float:
        """Seconds of one step of placement `device` (N,); without `order` the rule decides."""
        device = np.ascontiguousarray(device, dtype=np.int64)
        return self._play(device, order, _UNRECORDED)

    def step_times(self, devices: IntArray, order: IntArray | None = None) -> FloatArray:
        """(B,) seconds of B placements `devices` (B, N), each in `order` or as the rule decides."""
        return np.array([self.step_time(device, order) for device in devices])

    def run(self, device: IntArray, order: IntArray | None = None) -> Timeline:
        """The whole step of placement `device` (N,), with its peak memory.

        A transfer starts when its producer ends and finishes when its last byte has arrived.
        """
        device = np.ascontiguousarray(device, dtype=np.int64)
        n, uses = len(device), len(self._arrays.use_op)
        times = np.full((4, max(n, uses)), np.inf)
        self._play(device, order, times)
        start, finish = times[0, :n].copy(), times[1, :n].copy()
        moved = np.flatnonzero(np.isfinite(times[2, :uses]))
        moved = moved[np.argsort(times[2, moved], kind="stable")]
        return Timeline.of(
            self.problem, device, start, finish, self._arrays.use_tensor[moved],
            device[self._state.producer[moved]], device[self._arrays.use_op[moved]],
            times[2, moved], times[3, moved],
        )  # fmt: skip

    def _play(self, device: IntArray, order: IntArray | None, times: FloatArray) -> float:
        order = self.order(device) if order is None else np.asarray(order, dtype=np.int64)
        seconds: float = play_fair(
            self._arrays, self._links, self._latency, self._state, self._rates, device, order,
            times,
        )  # fmt: skip
        return seconds


@dataclass(frozen=True)
class Fair:
    """All transfers under way share the links of the network max-min fairly.

    Args:
        multipath: whether a transfer takes all paths of its pair of devices, or one.
        weights: of the transfers of each pair of devices; None: all are equal.
    """

    name: str = "fair"
    multipath: bool = True
    weights: PairWeights | None = None

    def simulator(self, problem: StepProblem, order_rule: OrderRule | None = None) -> FairSimulator:
        """The simulator of `problem`."""
        made = FairSimulator(problem, multipath=self.multipath, order_rule=order_rule)
        if self.weights is not None:
            made.weigh(self.weights.weight)
        return made
