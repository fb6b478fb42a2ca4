"""SwitchML: sums formed packet by packet in the slots of switches, executed on vectors.

Sapio et al., *Scaling Distributed Machine Learning with In-Network Aggregation*, NSDI 2021.

Block floating point: the integers of a packet share one exponent, and no sum of them overflows.

Sapio et al., *Scaling Distributed Machine Learning with In-Network Aggregation*, NSDI 2021:
switches add integers only. Every worker sends, one packet ahead, the exponent of what comes next
in a slot; the switch answers with the largest of all, by which all workers scale that packet.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge, Gt, Le, Lt

from envs.arrays import FloatArray, IntArray
from envs.bounds import Count, NonNegative, Positive, bounded
from envs.compilation import compiled
from envs.errors import InputError
from envs.heap import pop, push
from envs.synchronisation.plan import ELEMENT
from envs.synchronisation.sparsity import in_blocks

SMALLEST = -1022  # the exponent of a packet of zeros: below those of all others


def largest_integer(workers: int, bits: int) -> int:
    """What no worker's integers exceed, so that the sum of all fits into `bits` with its sign.

    Raises:
        InputError: there is no such integer but 0.
    """
    found = ((1 << (bits - 1)) - 1) // workers
    if found < 1:
        raise InputError(f"{bits} bits cannot hold the sum of {workers} workers", field="bits")
    return found


def exponents(values: FloatArray, elements: int) -> IntArray:
    """(W, P) the least e of every packet of `elements` values with |x| < 2^e.

    Raises:
        InputError: a value is not finite.
    """
    largest = np.abs(in_blocks(values, elements)).max(axis=2)
    if not np.isfinite(largest).all():
        worker = int(np.flatnonzero(~np.isfinite(largest).all(axis=1))[0])
        raise InputError("holds a value that is not finite", record=f"gradient of worker {worker}")
    found = np.frexp(largest)[1].astype(np.int64)
    return np.where(largest > 0.0, np.maximum(found, SMALLEST), SMALLEST)


def error_bound(values: FloatArray, elements: int, bits: int) -> FloatArray:
    """(E,) what the error of a sum of `values` (W, E) is at most.

    Every worker rounds to the nearest of the multiples of 2^e / f, where e is its packet's shared
    exponent and f is `largest_integer`: half of that for each worker. 2^e is at most twice the
    packet's largest value.
    """
    workers, length = values.shape
    shared = exponents(values, elements).max(axis=0)
    step = np.ldexp(1.0, shared) / largest_integer(workers, bits)
    bound: FloatArray = np.repeat(0.5 * workers * step, elements)[:length]
    return bound


# Of a packet: preamble 8, Ethernet 14, IP 20, UDP 8, SwitchML 16, check sequence 4, gap 12.
HEADERS = 82  # bytes
_NONE = -1
_UP, _DOWN, _TIMER, _START, _KINDS = 0, 1, 2, 3, 4


@bounded
@dataclass(frozen=True)
class SlotPool:
    """The slots of a job in every switch on its tree, and what its packets carry.

    A worker has one packet in every slot: the answer that brings a slot's sum lets it send the next
    packet there, so that the window clocks itself. Each slot has two versions, used in turn: the
    sum before stays until every worker is known to have it, and answers whoever asks again.

    Args:
        packet: bytes on the wire, headers included; all packets are as large.
        bits: of an integer.
        exponents: whether packets carry the exponent of the slot's next packet. A first round then
            carries nothing else.

    Raises:
        InputError: a packet has no room for an element; bits other than 8, 16 or 32.
    """

    slots: Count = 512  # packets on the way of each worker
    packet: Annotated[float, Gt(HEADERS), Lt(math.inf)] = 9000.0
    bits: Annotated[int, Ge(8), Le(32)] = 32
    exponents: bool = False

    def __post_init__(self) -> None:
        if self.bits not in (8, 16, 32):
            raise InputError(f"integers of {self.bits} bits", field="bits")
        if self.elements < 1:
            raise InputError(f"{self.packet} bytes hold no element", field="packet")

    @property
    def elements(self) -> int:
        """Of a gradient, in a packet."""
        return int((self.packet - HEADERS) // (self.bits // 8))

    @property
    def memory(self) -> int:
        """Bytes of the registers of a switch, in both versions."""
        return 2 * self.slots * self.elements * (self.bits // 8)

    def chunks(self, size: FloatArray | float) -> FloatArray:
        """That a gradient of `size` bytes is cut into, a packet each."""
        found: FloatArray = np.ceil(np.asarray(size) / (ELEMENT * self.elements))
        return found

    def packets(self, size: FloatArray | float) -> FloatArray:
        """That a gradient of `size` bytes takes from each worker, on a network that loses none."""
        chunks = self.chunks(size)
        return chunks + np.minimum(chunks, self.slots) if self.exponents else chunks

    def seconds(
        self, size: FloatArray | float, rate: float, latency: float, levels: int = 1
    ) -> FloatArray:
        """Until every worker has the sum, where all links are alike and none loses a packet.

        A slot turns over in 2 `levels` links; with fewer slots than packets fit into that time the
        window decides, and else the line rate.

        Args:
            size: bytes, of any shape.
            rate: bytes/s of every link.
            latency: seconds of every link.
            levels: links from a worker to the switch that all of them share.
        """
        packets = self.packets(size)
        serial = self.packet / rate
        turn = 2 * levels * (serial + latency)
        slots = np.minimum(self.slots, self.chunks(size))
        rounds = np.ceil(packets / slots)
        window = (rounds - 1) * np.maximum(turn, slots * serial)
        found: FloatArray = window + (packets - (rounds - 1) * slots - 1) * serial + turn
        return found


@dataclass(frozen=True, eq=False)
class SwitchTree:
    """N nodes: `workers` of them first, then switches; every node but the root has a link up.

    A link carries its rate both ways at once.
    """

    workers: int
    parent: IntArray  # (N,) switch above; -1: the root, the last node
    rate: FloatArray  # (N,) bytes/s of the link up
    latency: FloatArray  # (N,) seconds of the link up

    @staticmethod
    def racks(workers: Sequence[int], rate: float, latency: float) -> SwitchTree:
        """`workers` on each rack's switch, and one above those; a single rack has none above."""
        total, count = sum(workers), len(workers)
        parent = [total + rack for rack, size in enumerate(workers) for _ in range(size)]
        parent += [total + count] * count + [_NONE] if count > 1 else [_NONE]
        n = len(parent)
        return SwitchTree(total, np.array(parent), np.full(n, rate), np.full(n, latency))


@bounded
@dataclass(frozen=True)
class Faults:
    """What goes wrong on the way: lost packets, and workers that begin late.

    A worker sends a packet again `timeout` seconds after the last of it left, if its slot's sum has
    not come; without loss there is no timer.
    """

    loss: Annotated[float, Ge(0.0), Lt(1.0)] = 0.0  # probability, on every link
    timeout: Positive = 1e-3
    seed: Annotated[int, Ge(0)] = 0
    late: tuple[NonNegative, ...] = ()  # (W,) seconds; all begin at 0 where it is empty


@dataclass(frozen=True, eq=False)
class SwitchRun:
    """What an execution left."""

    result: FloatArray  # (W, E) what each worker has at the end
    finish: FloatArray  # (W,) seconds
    sent: IntArray  # (N,) packets that every node sent up
    answered: IntArray  # (N,) packets sent down to every node
    again: int  # packets that workers sent again
    lost: int
    largest: int  # |sum| in any slot, before it could overflow

    @property
    def seconds(self) -> float:
        """Until the last worker has the whole sum."""
        return float(self.finish.max())


def sum_integers(
    pool: SlotPool, tree: SwitchTree, values: IntArray, faults: Faults | None = None
) -> SwitchRun:
    """Sum (W, E) integers modulo 2^32, as registers do."""
    packets = -(-values.shape[1] // pool.elements)
    shared = np.zeros((tree.workers, packets), dtype=np.int64)
    return _execute(pool, tree, values.astype(np.float64), shared, 1, pool.elements, faults)


def sum_floats(
    pool: SlotPool, tree: SwitchTree, values: FloatArray, faults: Faults | None = None
) -> SwitchRun:
    """Sum (W, E) values in block floating point.

    Raises:
        InputError: packets carry no exponents, bits that cannot hold the sum, a value not finite.
    """
    if not pool.exponents:
        raise InputError("sums of fractions need packets with exponents", field="exponents")
    own = exponents(values, pool.elements)
    factor = largest_integer(tree.workers, pool.bits)
    return _execute(pool, tree, values.astype(np.float64), own, factor, pool.elements, faults)


def time_sum(
    pool: SlotPool, tree: SwitchTree, size: float, faults: Faults | None = None
) -> SwitchRun:
    """As `sum_integers` of vectors of `size` bytes, of which only the packets are made."""
    values = np.zeros((tree.workers, int(pool.chunks(size))))
    return _execute(pool, tree, values, values.astype(np.int64), 1, 1, faults)


def _execute(
    pool: SlotPool,
    tree: SwitchTree,
    values: FloatArray,
    own: IntArray,
    factor: int,
    elements: int,
    faults: Faults | None,
) -> SwitchRun:
    faults = Faults() if faults is None else faults
    late = np.array(faults.late or (0.0,) * tree.workers)
    slots = min(pool.slots, own.shape[1])
    run = _simulate(
        values, own, float(factor), tree.parent, pool.packet / tree.rate, tree.latency, late, slots,
        elements, slots if pool.exponents else 0, faults.timeout, faults.loss, faults.seed,
    )  # fmt: skip
    result, finish, sent, answered, counts = run
    return SwitchRun(result, finish, sent, answered, *(int(count) for count in counts))


@compiled
def _simulate(  # noqa: PLR0912, PLR0915 - one loop, compiled
    values: FloatArray,  # (W, E)
    own: IntArray,  # (W, C) exponent of every chunk
    factor: float,
    parent: IntArray,  # (N,)
    serial: FloatArray,  # (N,) seconds that a packet takes on the link up
    latency: FloatArray,  # (N,)
    late: FloatArray,  # (W,)
    slots: int,
    elements: int,
    lead: int,  # packets before the first chunk: those with exponents only
    timeout: float,
    loss: float,
    seed: int,
) -> tuple[FloatArray, FloatArray, IntArray, IntArray, IntArray]:
    """Packet q has slot q mod slots and version q // slots mod 2, and carries chunk q - lead."""
    # Knuth's linear congruential generator MMIX, of which the high bits are drawn.
    state, grow, step = (
        np.uint64(seed),
        np.uint64(6364136223846793005),
        np.uint64(1442695040888963407),
    )
    lost_below = np.uint64(loss * 2.0**53)
    workers, length = values.shape
    nodes, chunks = len(parent), own.shape[1]
    switches = nodes - workers
    packets = chunks + lead
    children = np.zeros(nodes, np.int64)
    for node in range(nodes - 1):
        children[parent[node]] += 1
    # Of a link: when it is free. Of a worker: the packet it waits for in a slot, when to send it
    # again, and whether a timer runs.
    up, down = np.zeros(nodes), np.zeros(nodes)
    pending = np.full((workers, slots), _NONE)
    deadline = np.zeros((workers, slots))
    timed = np.zeros((workers, slots), np.bool_)
    left = np.full(workers, packets)
    # Of a switch, slot and version: whose packets are in, how many, of which packet; the sum, the
    # largest exponent, and whether that is the sum of all workers. `shared` is what answers said.
    seen = np.zeros((nodes, slots, 2), np.bool_)
    count = np.zeros((switches, slots, 2), np.int64)
    holds = np.full((switches, slots, 2), _NONE)
    final = np.zeros((switches, slots, 2), np.bool_)
    total = np.zeros((switches, slots, 2, elements), np.int32)
    ahead = np.zeros((switches, slots, 2), np.int64)
    shared = np.zeros(packets + slots, np.int64)
    result, finish = np.zeros((workers, length)), np.zeros(workers)
    sent, answered = np.zeros(nodes, np.int64), np.zeros(nodes, np.int64)
    counts = np.zeros(3, np.int64)  # sent again, lost, largest sum
    room = 1024
    time, event, size = np.zeros(room), np.zeros(room, np.int64), 0
    for worker in range(workers):
        size = push(time, event, size, late[worker], _START * nodes + worker)
    while size > 0:
        now, what = time[0], event[0]
        size = pop(time, event, size)
        if size + nodes + 2 * slots + 2 > room:
            room = 2 * (room + nodes + slots)
            grown, moved = np.zeros(room), np.zeros(room, np.int64)
            grown[:size], moved[:size] = time[:size], event[:size]
            time, event = grown, moved
        q, kind = what // (_KINDS * nodes), what // nodes % _KINDS
        node = what % nodes
        slot, version = q % slots, q // slots % 2
        # What follows: packets first <= p < end, sent by `node` up or by `above` down.
        first, end, upward, downward, above, child = 0, 0, False, False, _NONE, _NONE
        if kind == _START:
            end, upward = min(slots, packets), True
            for p in range(end):
                pending[node, p] = p
        elif kind == _TIMER:
            if pending[node, slot] == _NONE:
                timed[node, slot] = False
            elif now < deadline[node, slot]:
                at = deadline[node, slot]
                size = push(time, event, size, at, what)
            else:
                first, end, upward = pending[node, slot], pending[node, slot] + 1, True
                timed[node, slot] = False
                counts[0] += 1
        elif kind == _UP:
            switch = parent[node]
            s = switch - workers
            if not seen[node, slot, version]:
                seen[node, slot, version], seen[node, slot, 1 - version] = True, False
                if count[s, slot, version] == 0:
                    holds[s, slot, version], final[s, slot, version] = q, False
                    ahead[s, slot, version] = -(1 << 62)
                    total[s, slot, version, :] = 0
                begin = (q - lead) * elements
                if node < workers:
                    follows = q + slots - lead
                    if follows < chunks:
                        ahead[s, slot, version] = max(ahead[s, slot, version], own[node, follows])
                    for i in range(max(begin, 0), min(begin + elements, length)):
                        scaled = np.rint(math.ldexp(values[node, i], -shared[q]) * factor)
                        value = np.int64(total[s, slot, version, i - begin]) + np.int64(scaled)
                        counts[2] = max(counts[2], abs(value))
                        total[s, slot, version, i - begin] = np.int32(value)
                else:
                    c = node - workers
                    ahead[s, slot, version] = max(ahead[s, slot, version], ahead[c, slot, version])
                    for i in range(elements):
                        value = np.int64(total[s, slot, version, i])
                        value += np.int64(total[c, slot, version, i])
                        counts[2] = max(counts[2], abs(value))
                        total[s, slot, version, i] = np.int32(value)
                count[s, slot, version] += 1
                if count[s, slot, version] == children[switch]:
                    count[s, slot, version] = 0
                    if parent[switch] == _NONE:
                        final[s, slot, version] = True
                        if lead > 0:
                            shared[q + slots] = ahead[s, slot, version]
                        downward, above = True, switch
                    else:
                        node, upward = switch, True
            elif holds[s, slot, version] == q and count[s, slot, version] == 0:
                if final[s, slot, version]:  # the answer again, to this one
                    downward, above, child = True, switch, node
                else:
                    node, upward = switch, True
            if upward:
                first, end = q, q + 1
        elif node >= workers:  # an answer at a switch
            s = node - workers
            if holds[s, slot, version] == q:
                if not final[s, slot, version]:
                    total[s, slot, version, :] = total[parent[node] - workers, slot, version, :]
                    final[s, slot, version] = True
                downward, above = True, node
        elif pending[node, slot] == q:  # an answer at a worker
            begin, s = (q - lead) * elements, parent[node] - workers
            for i in range(max(begin, 0), min(begin + elements, length)):
                value = total[s, slot, version, i - begin] / factor
                result[node, i] = math.ldexp(value, shared[q])
            left[node] -= 1
            finish[node] = now
            pending[node, slot] = _NONE
            if q + slots < packets:
                pending[node, slot] = q + slots
                first, end, upward = q + slots, q + slots + 1, True
        if upward:
            for p in range(first, end):
                up[node] = max(now, up[node]) + serial[node]
                sent[node] += 1
                if node < workers and loss > 0.0:
                    slot = p % slots
                    deadline[node, slot] = up[node] + timeout
                    if not timed[node, slot]:
                        timed[node, slot] = True
                        what = (p * _KINDS + _TIMER) * nodes + node
                        size = push(time, event, size, deadline[node, slot], what)
                state = state * grow + step
                if state >> np.uint64(11) < lost_below:
                    counts[1] += 1
                else:
                    what = (p * _KINDS + _UP) * nodes + node
                    size = push(time, event, size, up[node] + latency[node], what)
        if downward:
            for c in range(nodes - 1):
                if parent[c] == above and child in (_NONE, c):
                    down[c] = max(now, down[c]) + serial[c]
                    answered[c] += 1
                    state = state * grow + step
                    if state >> np.uint64(11) < lost_below:
                        counts[1] += 1
                    else:
                        what = (q * _KINDS + _DOWN) * nodes + c
                        size = push(time, event, size, down[c] + latency[c], what)
    return result, finish, sent, answered, counts
