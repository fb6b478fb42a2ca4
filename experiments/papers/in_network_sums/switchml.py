"""SwitchML: sums formed packet by packet in the slots of switches, executed on vectors.

Switches add integers only. Every worker sends, one packet ahead, the exponent of what comes next
in a slot; the switch answers with the largest of all, by which all workers scale that packet: block
floating point, in which no sum overflows.

Sapio et al., *Scaling Distributed Machine Learning with In-Network Aggregation*, NSDI 2021.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import product
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Gt, Le, Lt

from envs.arrays import FloatArray, IntArray
from envs.bounds import Count, Positive, bounded
from envs.errors import InputError
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
    for worker in np.flatnonzero(~np.isfinite(largest).all(axis=1)):
        raise InputError("holds a value that is not finite", record=f"gradient of worker {worker}")
    found = np.where(largest > 0.0, np.maximum(np.frexp(largest)[1], SMALLEST), SMALLEST)
    return found.astype(np.int64)


def error_bound(values: FloatArray, elements: int, bits: int) -> FloatArray:
    """(E,) what the error of a sum of `values` (W, E) is at most.

    Every worker rounds to the nearest of the multiples of 2^e / f, where e is its packet's shared
    exponent and f is `largest_integer`: half of that for each worker. 2^e is at most twice the
    packet's largest value.
    """
    workers, length = values.shape
    shared = exponents(values, elements).max(axis=0)
    step = np.ldexp(1.0, shared) / largest_integer(workers, bits)
    return np.repeat(0.5 * workers * step, elements)[:length]


# Of a packet: preamble 8, Ethernet 14, IP 20, UDP 8, SwitchML 16, check sequence 4, gap 12.
HEADERS = 82  # bytes


@bounded
@dataclass(frozen=True)
class SlotPool:
    """The slots of a job in every switch on its tree, and what its packets carry.

    A worker has one packet in every slot: the answer that brings a slot's sum lets it send the next
    packet there, so that the window clocks itself. Each slot has two versions, used in turn: the
    sum before stays until every worker is known to have it, and is sent again to a worker
    that sends again.

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
        """Of a gradient, in a packet: integers of `bits`."""
        return int((self.packet - HEADERS) // (self.bits // 8))

    @property
    def payload(self) -> float:
        """Bytes of a gradient, in a packet."""
        return float(ELEMENT * self.elements)

    @property
    def memory(self) -> int:
        """Bytes of the registers of a switch, in both versions."""
        return 2 * self.slots * self.elements * (self.bits // 8)

    def chunks(self, size: FloatArray | float) -> FloatArray:
        """That a gradient of `size` bytes is cut into, a packet each."""
        return np.ceil(np.asarray(size) / self.payload)

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


@dataclass(frozen=True)
class SwitchTree:
    """Workers on a switch for each rack and, above several, one more; all links are alike.

    Nodes are the workers, then the switches, the root last. A link carries its rate both ways at
    once.
    """

    racks: Sequence[int]  # workers of each
    rate: float  # bytes/s
    latency: float  # seconds

    @property
    def workers(self) -> int:
        """W."""
        return sum(self.racks)

    @property
    def parent(self) -> list[int]:
        """(N,) the switch above each node, -1 above the root."""
        found = [self.workers + rack for rack, size in enumerate(self.racks) for _ in range(size)]
        count = len(self.racks)
        return [*found, *[self.workers + count] * count * (count > 1), -1]


@bounded
@dataclass(frozen=True)
class Faults:
    """Lost packets.

    A worker sends a packet again `timeout` seconds after the last of it left, if its slot's sum has
    not come; without loss there is no timer.
    """

    loss: Annotated[float, Ge(0.0), Lt(1.0)] = 0.0  # probability, on every link
    timeout: Positive = 1e-3
    seed: Annotated[int, Ge(0)] = 0


@dataclass(eq=False)
class SwitchRun:
    """What an execution leaves on W workers and N nodes."""

    result: FloatArray  # (W, E) what each worker has at the end
    sent: IntArray  # (N,) packets that every node sent up
    answered: IntArray  # (N,) packets sent down to every node
    again: int = 0  # packets that workers sent again
    lost: int = 0
    largest: int = 0  # |sum| in any slot, before it could overflow
    seconds: float = 0.0  # until the last worker has the whole sum


def sum_vectors(
    pool: SlotPool, tree: SwitchTree, values: FloatArray, faults: Faults = Faults()
) -> SwitchRun:
    """Sum (W, E) values: in block floating point where packets carry exponents.

    Else they are integers, summed modulo 2^32 as registers do.

    Raises:
        InputError: fractions without exponents, bits that cannot hold the sum, a value not finite.
    """
    blocks, factor = in_blocks(values, pool.elements), 1
    own = np.zeros(blocks.shape[:2], np.int64)
    if pool.exponents:
        own, factor = exponents(values, pool.elements), largest_integer(tree.workers, pool.bits)
    elif (blocks % 1.0 != 0.0).any():
        raise InputError("sums of fractions need packets with exponents", field="exponents")
    run = _execute(pool, tree, blocks, own, factor, faults)
    run.result = run.result.reshape(tree.workers, -1)[:, : values.shape[1]]
    return run


def time_sum(pool: SlotPool, tree: SwitchTree, size: float, faults: Faults = Faults()) -> SwitchRun:
    """As `sum_vectors` of `size` bytes, of which only the packets are made."""
    blocks = np.zeros((tree.workers, int(pool.chunks(size)), 1))
    own = np.zeros(blocks.shape[:2], np.int64)
    return _execute(pool, tree, blocks, own, 1, faults)


@dataclass
class _Register:
    """One version of a slot in a switch."""

    packet: int = -1
    seen: set[int] = field(default_factory=set)  # nodes below of which the packet is in
    count: int = 0  # of them, 0 again when all are
    final: bool = False  # whether the sum is that of all workers
    total: Any = 0  # 32-bit integers
    ahead: int = 0  # the largest exponent of the slot's next packet


_UP, _DOWN, _TIMER = 0, 1, 2
Slot = tuple[int, int]  # of a worker; of a switch two for each, the versions


def _execute(  # noqa: PLR0915 - one protocol
    pool: SlotPool,
    tree: SwitchTree,
    blocks: FloatArray,  # (W, C, elements)
    own: IntArray,  # (W, C) their exponents
    factor: int,
    faults: Faults,
) -> SwitchRun:
    """Packet q has slot q mod slots and version q // slots mod 2, and carries chunk q - lead."""
    workers, chunks, elements = blocks.shape
    parent, slots, serial = tree.parent, min(pool.slots, chunks), pool.packet / tree.rate
    nodes = len(parent)
    lead = slots if pool.exponents else 0  # packets before the first chunk, of exponents only
    below = [[c for c, above in enumerate(parent) if above == node] for node in range(nodes)]
    run = SwitchRun(np.zeros(blocks.shape), *np.zeros((2, nodes), np.int64))
    registers = defaultdict[Slot, _Register](_Register)
    shared = defaultdict[int, int](int)  # by packet, the exponent that answers said
    free = np.zeros((2, nodes))  # when each link is, up and down
    # Of a worker: the packet that a slot waits for, and when to send it again if a timer runs.
    pending, deadline, timed = dict[Slot, int](), dict[Slot, float](), set[Slot]()
    events, draws = list[tuple[float, int, int, int]](), _mmix(faults.seed)

    def move(now: float, kind: int, node: int, packet: int) -> float:
        """A packet over the link above `node`; returns when it has left."""
        left = free[kind, node] = max(now, float(free[kind, node])) + serial
        (run.answered if kind == _DOWN else run.sent)[node] += 1
        if next(draws) < faults.loss:
            run.lost += 1
        else:
            heappush(events, (left + tree.latency, packet, kind, node))
        return left

    def send(now: float, node: int, packet: int) -> None:
        left, slot = move(now, _UP, node, packet), (node, packet % slots)
        if node < workers and faults.loss > 0.0:
            deadline[slot] = left + faults.timeout
            if slot not in timed:
                timed.add(slot)
                heappush(events, (deadline[slot], packet, _TIMER, node))

    def arrive(now: float, node: int, packet: int) -> None:
        """A packet of `node` at the switch above it."""
        above, version, chunk = parent[node], packet % (2 * slots), packet - lead
        register, again = registers[above, version], node in registers[above, version].seen
        if not again:
            register.seen.add(node)
            registers[above, (packet + slots) % (2 * slots)].seen.discard(node)
            if register.count == 0:
                register.packet, register.final, register.ahead = packet, False, SMALLEST
                register.total = np.zeros(elements, np.int32)
            if node >= workers:
                added, ahead = registers[node, version].total, registers[node, version].ahead
            else:
                added = np.zeros(elements)
                if chunk >= 0:
                    added = np.rint(np.ldexp(blocks[node, chunk], -shared[packet]) * factor)
                ahead = int(own[node, chunk + slots]) if chunk + slots < chunks else SMALLEST
            total = register.total + added.astype(np.int64)
            run.largest = max(run.largest, int(np.abs(total).max()))
            register.total, register.ahead = total.astype(np.int32), max(register.ahead, ahead)
            register.count = (register.count + 1) % len(below[above])
            if register.count == 0 and parent[above] < 0:
                register.final, shared[packet + slots] = True, register.ahead
        if register.packet == packet and register.count == 0:  # all are in
            if not register.final:
                send(now, above, packet)
            else:
                for child in [node] if again else below[above]:
                    move(now, _DOWN, child, packet)

    def answer(now: float, node: int, packet: int) -> None:
        """The sum of all workers at `node`, from the switch above it."""
        above, version, slot = parent[node], packet % (2 * slots), (node, packet % slots)
        if node >= workers:
            register = registers[node, version]
            if register.packet == packet:
                if not register.final:
                    register.total, register.final = registers[above, version].total, True
                for child in below[node]:
                    move(now, _DOWN, child, packet)
        elif pending.get(slot) == packet:
            if packet >= lead:
                total = registers[above, version].total
                run.result[node, packet - lead] = np.ldexp(total / factor, shared[packet])
            run.seconds = now
            del pending[slot]
            if packet + slots < lead + chunks:
                pending[slot] = packet + slots
                send(now, node, packet + slots)

    for worker, packet in product(range(workers), range(slots)):
        pending[worker, packet] = packet
        send(0.0, worker, packet)
    while events:
        now, packet, kind, node = heappop(events)
        slot = node, packet % slots
        if kind == _UP:
            arrive(now, node, packet)
        elif kind == _DOWN:
            answer(now, node, packet)
        elif slot in pending and now < deadline[slot]:
            heappush(events, (deadline[slot], packet, _TIMER, node))
        else:
            timed.remove(slot)
            if slot in pending:
                run.again += 1
                send(now, node, pending[slot])
    return run


def _mmix(state: int) -> Iterator[float]:
    """Knuth's linear congruential generator MMIX: fractions of its high bits."""
    while True:
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        yield (state >> 11) / 2.0**53
