"""`WeightedStep`: a fused training step under a placement and pipe weights that both may change."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np

from envs.arrays import BoolArray, FloatArray, IntArray
from envs.compilation import unchecked
from envs.graphs.contraction import Fusion
from envs.graphs.op_graph import NONE
from envs.hardware.network import Network
from envs.network.max_min import Filling, fill, filling
from envs.step.allocated import (
    PipeTable,
    piped_problem,
    set_pipe_rates,
    set_some_pipe_rates,
    weighted_allocation,
)
from envs.step.kernel import Scratch, StepArrays
from envs.step.order import OrderRule
from envs.step.plans import BandwidthAllocation
from envs.step.problem import StepProblem
from envs.step.step import StepSimulator, step_time_in_order, use_order


class MakeSimulator(Protocol):
    """Makes the simulator of a problem, which gives bare placements their order."""

    def __call__(
        self, problem: StepProblem, *, order_rule: OrderRule | None = None
    ) -> StepSimulator: ...


class WeightedStep:
    """Simulates the pieces of a fusion through pipes whose weights are 2^(level x step).

    Args:
        top: levels go from -top to top.
        step: octaves from a level to the next.
        simulator: plays a problem; a `StepSimulator` by default.

    Raises:
        InputError: a link class between servers has no bandwidth, only tabulated times.
    """

    def __init__(
        self,
        problem: StepProblem,
        fusion: Fusion,
        top: int,
        step: float,
        simulator: MakeSimulator = StepSimulator,
        order_rule: OrderRule | None = None,
    ) -> None:
        self.network: Network = problem.topology.network
        servers = self.network.num_servers
        self.top = top
        self._shares = shares_of(self.network, step)
        self.level: IntArray = np.zeros((servers, servers), dtype=np.int64)
        self.rate: FloatArray = np.zeros((servers, servers))  # bytes/s
        pipe_rates(self._shares, self.level.ravel(), self.rate.ravel())
        piped = piped_problem(problem, self.rate, fusion)
        self.problem: StepProblem = piped.problem  # the pieces, at equal weights
        self._table = piped.table
        self.equal_rate: FloatArray = self.rate.copy()  # (S, S) bytes/s at equal weights
        own = replace(piped.problem, transfer_seconds=piped.problem.transfer_seconds.copy())
        self.simulator = simulator(own, order_rule=order_rule)
        self.crossings = crossings_of(self.simulator.arrays, servers)
        self._fixed_total = piped.table.fixed.sum(axis=0)  # (L,)
        self._bytes_total = piped.table.nbytes.sum(axis=0)  # (L,)

    @property
    def allocation(self) -> BandwidthAllocation:
        """The rates of the channels at the present levels."""
        weight = np.exp2(self.level * self._shares.step).ravel()
        return weighted_allocation(self.network, weight[self._shares.pipe])

    @property
    def class_seconds(self) -> FloatArray:
        """(L,) seconds all tensors together would take on each link class."""
        table = self._table
        given = np.minimum(self.rate.ravel()[np.maximum(table.pipe, 0)], table.inner)
        moving = np.divide(
            self._bytes_total, given, out=np.zeros_like(given), where=self._bytes_total > 0
        )
        return np.asarray(self._fixed_total + moving)

    def set_levels(self, level: IntArray) -> None:
        """Give the pipes `level` (S, S) and the rates that follow."""
        self.level[:] = level
        pipe_rates(self._shares, self.level.ravel(), self.rate.ravel())
        set_pipe_rates(self._table, self.rate.ravel(), self.simulator.arrays.transfer_seconds)

    def play(self, device: IntArray) -> tuple[float, IntArray]:
        """Seconds of placement `device` (N,) at the present rates, and (N,) its order."""
        order = self.simulator.order(device)
        return self.simulator.step_time(device, order), order

    def look(
        self, device: IntArray, order: IntArray | None = None, turn: int | None = None
    ) -> FloatArray:
        """Find the crossings of placement `device` (N,) and what every change of a level does.

        Args:
            order: (N,) in which it is played, whatever the levels; that of the simulator if None.
            turn: the only server whose pipes are changed, or None for all.

        Returns:
            (S, S, 2) step time in seconds with the level of a pipe one higher, one lower; inf where
            there is no such level.
        """
        arrays, servers = self.simulator.arrays, len(self.level)
        if order is None:
            order = self.simulator.order(device)
        asked = np.full((servers, servers), turn is None)
        if turn is not None:
            asked[turn] = True
        find_crossings(arrays, self._table, device, self.crossings)
        seconds = np.empty((servers * servers, 2))
        changed_step_times(
            arrays, self.simulator.scratch, self._table, self._shares, self.crossings, device,
            order, self.level.ravel(), self.top, asked.ravel(),
            self.rate.ravel(), np.empty(servers * servers), seconds,
        )  # fmt: skip
        return seconds.reshape(servers, servers, 2)

    def alone_rate(self) -> FloatArray:
        """(S, S) bytes/s each pipe would have if no other had any; 0 on the diagonal."""
        pipe = self._shares.pipe
        alone = np.zeros(self.rate.size)
        for number in np.unique(pipe):
            allocation = weighted_allocation(self.network, (pipe == number).astype(np.float64))
            alone[number] = allocation.rate.sum()
        return alone.reshape(self.rate.shape)


class Crossings(NamedTuple):
    """The transfers between servers of one placement, with room for all uses of tensors."""

    tensor: IntArray  # (uses,)
    kind: IntArray  # (uses,) link class
    size: IntArray  # (1,) how many there are
    seconds: FloatArray  # (S * S,) that the transfers of each pipe take
    nbytes: FloatArray  # (S * S,) of each pipe
    transfers: IntArray  # (S * S,) of each pipe
    sent: IntArray  # (slots, D) scratch


def crossings_of(arrays: StepArrays, servers: int) -> Crossings:
    """Room for the transfers of any placement."""
    uses, devices = len(arrays.use_op), arrays.op_seconds.shape[1]
    return Crossings(
        tensor=np.zeros(uses, dtype=np.int64),
        kind=np.zeros(uses, dtype=np.int64),
        size=np.zeros(1, dtype=np.int64),
        seconds=np.zeros(servers * servers),
        nbytes=np.zeros(servers * servers),
        transfers=np.zeros(servers * servers, dtype=np.int64),
        sent=np.zeros((int(arrays.use_slot.max(initial=0)) + 1, devices), dtype=np.int64),
    )


@unchecked
def find_crossings(
    arrays: StepArrays, table: PipeTable, device: IntArray, found: Crossings
) -> None:
    """Fill `found` for placement `device` (N,) at the present transfer times."""
    found.seconds[:], found.nbytes[:], found.transfers[:] = 0.0, 0.0, 0
    found.sent[:] = NONE
    count = 0
    for op in range(len(device)):
        for k in range(arrays.use_ptr[op], arrays.use_ptr[op + 1]):
            e = device[arrays.use_op[k]]
            kind, slot = arrays.link_class[device[op], e], arrays.use_slot[k]
            pipe = table.pipe[kind]
            if pipe == NONE or found.sent[slot, e] == op:
                continue
            found.sent[slot, e] = op
            tensor = arrays.use_tensor[k]
            if arrays.transfer_seconds[tensor, kind] > 0.0:
                found.tensor[count], found.kind[count] = tensor, kind
                found.seconds[pipe] += arrays.transfer_seconds[tensor, kind]
                found.nbytes[pipe] += table.nbytes[tensor, kind]
                found.transfers[pipe] += 1
                count += 1
    found.size[0] = count


@unchecked
def changed_step_times(
    arrays: StepArrays,
    work: Scratch,
    table: PipeTable,
    shares: Shares,
    crossings: Crossings,  # of `device`
    device: IntArray,  # (N,)
    order: IntArray,  # (N,)
    level: IntArray,  # (S * S,)
    top: int,
    asked: BoolArray,  # (S * S,) the pipes that are changed
    rate: FloatArray,  # (S * S,) bytes/s of the pipes at `level`
    trial: FloatArray,  # (S * S,) scratch
    seconds: FloatArray,  # (S * S, 2) out
) -> None:
    """Step time with the level of each pipe one higher, one lower, all else as it is.

    inf where the level would leave -top..top, on the diagonal, and for pipes that are not `asked`.
    All arguments but scratch and `seconds` are left as they were.
    """
    for p in range(len(order)):
        work.order[p] = order[p]
    use_order(arrays, work)
    seconds[:] = np.inf
    count = crossings.size[0]
    for c in range(len(shares.pipe)):
        pipe = shares.pipe[c]
        if not asked[pipe] or seconds[pipe, 0] < np.inf or seconds[pipe, 1] < np.inf:
            continue  # the last two: another channel of the same pipe
        for way in range(2):
            change = 1 - 2 * way
            if abs(level[pipe] + change) > top:
                continue
            level[pipe] += change
            pipe_rates(shares, level, trial)
            level[pipe] -= change
            set_some_pipe_rates(
                table, trial, crossings.tensor, crossings.kind, count, arrays.transfer_seconds
            )
            seconds[pipe, way] = step_time_in_order(arrays, work, device)
    set_some_pipe_rates(
        table, rate, crossings.tensor, crossings.kind, count, arrays.transfer_seconds
    )


class Shares(NamedTuple):
    """A network whose channels have the weight of their pipe, with working memory.

    The pipe from server s to server e has number s x S + e and, at level l, the weight 2^(l step).
    """

    capacity: FloatArray  # (K,) bytes/s
    channel_ptr: IntArray  # (C + 1,)
    channel_links: IntArray
    pipe: IntArray  # (C,)
    active: IntArray  # (C,) 0..C-1
    priority: IntArray  # (C,) 0
    weight: FloatArray  # (C,) scratch
    rate: FloatArray  # (C,) scratch
    filling: Filling
    step: float  # octaves from a level to the next


def shares_of(network: Network, step: float) -> Shares:
    """The arrays of `network`."""
    c = network.num_channels
    return Shares(
        capacity=np.ascontiguousarray(network.link_capacity, dtype=np.float64),
        channel_ptr=np.ascontiguousarray(network.channel_ptr, dtype=np.int64),
        channel_links=np.ascontiguousarray(network.channel_links, dtype=np.int64),
        pipe=network.channel_pipe,
        active=np.arange(c),
        priority=np.zeros(c, dtype=np.int64),
        weight=np.zeros(c),
        rate=np.zeros(c),
        filling=filling(network.num_links, len(network.channel_links)),
        step=step,
    )


@unchecked
def pipe_rates(shares: Shares, level: IntArray, rate: FloatArray) -> None:
    """Write `rate` (S * S,) bytes/s of every pipe where all have `level` (S * S,).

    The weighted max-min shares of the channels (`envs.network.max_min`), added up by pipe.
    """
    top = level[shares.pipe[0]]
    for c in range(len(shares.pipe)):
        top = max(top, level[shares.pipe[c]])
    for c in range(len(shares.pipe)):
        shares.weight[c] = 2.0 ** ((level[shares.pipe[c]] - top) * shares.step)
    fill(
        shares.active, len(shares.active), shares.channel_ptr, shares.channel_links, shares.weight,
        shares.priority, shares.capacity, shares.rate, shares.filling,
    )  # fmt: skip
    rate[:] = 0.0
    for c in range(len(shares.pipe)):
        rate[shares.pipe[c]] += shares.rate[c]
