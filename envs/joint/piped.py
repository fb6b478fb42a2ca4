"""Fused groups on a network whose pipes have rates that change: one level, or all of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from envs.arrays import BoolArray, FloatArray, IntArray
from envs.compilation import unchecked
from envs.graphs.contraction import Fusion
from envs.graphs.op_graph import NONE
from envs.hardware.network import Network
from envs.network.max_min import Filling, fill, filling
from envs.placement.episodes import GroupPricer
from envs.step.allocated import (
    PipeTable,
    piped_problem,
    set_pipe_rates,
    set_some_pipe_rates,
    uniform_allocation,
    weighted_allocation,
)
from envs.step.kernel import Scratch, StepArrays
from envs.step.order import OrderRule
from envs.step.plans import BandwidthAllocation
from envs.step.price import Price
from envs.step.problem import StepProblem
from envs.step.step import StepSimulator, step_time_in_order, use_order

TOP, OCTAVE = 10, 2  # of whole plans: levels go from -TOP to TOP, OCTAVE of them double the weight
LEVELS = 2 * TOP + 1
PIPE, SERVER = 11, 6  # widths of the features of whole plans
LOW, HIGH = -4.0, 4.0  # bounds of all features
_LEAST = 1e-4  # what is added before a logarithm


class Piped:
    """The pieces of a fusion on a network, through pipes of rates that may change.

    Args:
        problem: of the operators, on the topology whose links are shared out.
        fusion: the groups.
        rate: (S, S) bytes/s of the pipes, of which `problem` tells.

    Raises:
        InputError: a link class between servers has no bandwidth, only tabulated times.
    """

    arrays: StepArrays  # of `own`, whose transfer times follow the rates

    def __init__(self, problem: StepProblem, fusion: Fusion, rate: FloatArray) -> None:
        self.network, self.fusion = problem.topology.network, fusion
        piped = piped_problem(problem, rate, fusion)
        self.problem, self.table = piped.problem, piped.table
        self.own = replace(piped.problem, transfer_seconds=piped.problem.transfer_seconds.copy())

    def set_rates(self, rate: FloatArray) -> None:
        """Give the pipes `rate` (S, S) bytes/s."""
        set_pipe_rates(self.table, rate.ravel(), self.arrays.transfer_seconds)

    @cached_property
    def crossings(self) -> Crossings:
        """What `find` has found last."""
        return crossings_of(self.arrays, self.network.num_servers)

    @property
    def sent(self) -> tuple[FloatArray, FloatArray, IntArray]:
        """(S, S) seconds, bytes and number of the transfers of every pipe, as found last."""
        count, found = self.network.num_servers, self.crossings
        shape = (count, count)
        return (
            found.seconds.reshape(shape),
            found.nbytes.reshape(shape),
            found.transfers.reshape(shape),
        )

    def find(self, device: IntArray) -> Crossings:
        """What the pieces on (N,) devices send, at the present rates."""
        find_crossings(self.arrays, self.table, device, self.crossings)
        return self.crossings


class MakeSimulator(Protocol):
    """Makes the simulator of a problem, which gives bare placements their order."""

    def __call__(
        self, problem: StepProblem, *, order_rule: OrderRule | None = None
    ) -> StepSimulator: ...


class WeightedStep(Piped):
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
        self.top, shape = top, (problem.topology.num_servers, problem.topology.num_servers)
        self._shares = shares_of(problem.topology.network, step)
        self.level: IntArray = np.zeros(shape, dtype=np.int64)
        self.rate: FloatArray = np.zeros(shape)  # bytes/s
        pipe_rates(self._shares, self.level.ravel(), self.rate.ravel())
        self.equal_rate: FloatArray = self.rate.copy()  # at equal weights, as `problem` is
        super().__init__(problem, fusion, self.rate)
        self.simulator = simulator(self.own, order_rule=order_rule)
        self.arrays = self.simulator.arrays

    @property
    def allocation(self) -> BandwidthAllocation:
        """The rates of the channels at the present levels."""
        weight = np.exp2(self.level * self._shares.step).ravel()
        return weighted_allocation(self.network, weight[self._shares.pipe])

    @property
    def class_seconds(self) -> FloatArray:
        """(L,) seconds all tensors together would take on each link class."""
        table, nbytes = self.table, self.table.nbytes.sum(axis=0)
        given = np.minimum(self.rate.ravel()[np.maximum(table.pipe, 0)], table.inner)
        moving = np.divide(nbytes, given, out=np.zeros_like(given), where=nbytes > 0)
        return np.asarray(table.fixed.sum(axis=0) + moving)

    def set_levels(self, level: IntArray) -> None:
        """Give the pipes `level` (S, S) and the rates that follow."""
        self.level[:] = level
        pipe_rates(self._shares, self.level.ravel(), self.rate.ravel())
        self.set_rates(self.rate)

    def look(self, device: IntArray, order: IntArray, turn: int | None = None) -> FloatArray:
        """Find the crossings of placement `device` (N,) and what every change of a level does.

        Args:
            order: (N,) in which it is played, whatever the levels.
            turn: the only server whose pipes are changed, or None for all.

        Returns:
            (S, S, 2) step time in seconds with the level of a pipe one higher, one lower; inf where
            there is no such level.
        """
        asked = np.full(self.level.shape, turn is None)
        if turn is not None:
            asked[turn] = True
        seconds = np.empty((self.level.size, 2))
        changed_step_times(
            self.arrays, self.simulator.scratch, self.table, self._shares, self.find(device),
            device, order, self.level.ravel(), self.top, asked.ravel(),
            self.rate.ravel(), np.empty(self.level.size), seconds,
        )  # fmt: skip
        return seconds.reshape(*self.level.shape, 2)

    @cached_property
    def alone_rate(self) -> FloatArray:
        """(S, S) bytes/s each pipe would have if no other had any; 0 on the diagonal."""
        pipe = self._shares.pipe
        alone = np.zeros(self.rate.size)
        for number in np.unique(pipe):
            allocation = weighted_allocation(self.network, (pipe == number).astype(np.float64))
            alone[number] = allocation.rate.sum()
        return alone.reshape(self.rate.shape)


@dataclass(frozen=True, eq=False)
class Traffic:
    """What a placement sends between S servers, from source to destination; rates at even shares.

    Pipe features are logarithms where they span decades; *load* is the compute time of the busiest
    device of a server, *longest* that of all.

    | pipes (S, S - 1, 11), to the other servers in turn | |
    |---|---|
    | 0 | level of the square root of the bytes over their geometric mean, of TOP |
    | 1 | log of seconds / longest |
    | 2, 3 | share of what the source sends, of what the destination receives |
    | 4 | transfers / most of a pipe |
    | 5 | log of bytes / most of a pipe |
    | 6, 7 | load of the source, of the destination / longest |
    | 8 | log of seconds of one transfer / longest |
    | 9 | share of what the two servers exchange |
    | 10 | log of its rate among the pipes in use / among all |

    | servers (S, 6) | |
    |---|---|
    | 0 | share of its pipes in use |
    | 1, 2 | share of all bytes that it sends, receives |
    | 3 | load / longest |
    | 4 | log of seconds of all its pipes / longest |
    | 5 | log of the servers |
    """

    used: BoolArray  # (S, S)
    pipes: NDArray[np.float32]
    servers: NDArray[np.float32]

    @property
    def mask(self) -> BoolArray:
        """(S, S - 1) the pipes in use of every server."""
        return off_diagonal(self.used)


def off_diagonal(pairs: NDArray[Any]) -> NDArray[Any]:
    """(S, S - 1, ...) what (S, S, ...) holds beside its diagonal."""
    count = len(pairs)
    return pairs[~np.eye(count, dtype=np.bool_)].reshape(count, count - 1, *pairs.shape[2:])


class PipedGroups(Piped):
    """Fused groups on a network whose pipes have levels. One per thread.

    A pipe in use at level l has the weight 2^(l / OCTAVE), others have none; rates are the weighted
    max-min shares of the channels, each with the weight of its pipe.

    Args:
        problem: of the operators, on the topology whose links are shared out.
        fusion: the groups.

    Raises:
        InputError: a link between servers has tabulated times alone.
    """

    def __init__(self, problem: StepProblem, fusion: Fusion) -> None:
        even = uniform_allocation(problem.topology.network)
        self.uniform = even.pipes(problem.topology.network)  # (S, S) bytes/s, as `problem` is
        super().__init__(problem, fusion, self.uniform)
        self.pricer = GroupPricer(self.own, fusion)
        self.arrays = self.pricer.pricer.work.arrays

    def traffic(self, device: IntArray) -> Traffic:
        """Of the groups on (G,) devices."""
        count, placed = self.network.num_servers, self.fusion.expand_pieces(device)
        self.set_rates(self.uniform)
        self.find(placed)
        seconds, nbytes, transfers = self.sent
        used = transfers > 0
        topology, op_seconds = self.problem.topology, self.problem.op_seconds
        own = op_seconds[np.arange(len(placed)), placed]
        by_device = np.bincount(placed, own, topology.num_devices)
        load = np.zeros(count)
        np.maximum.at(load, topology.server, by_device)
        longest = max(float(load.max()), 1e-300)
        sizes = np.maximum(nbytes, 1.0)
        typical = np.exp(np.log(sizes[used]).mean()) if used.any() else 1.0
        rates = self.even(used).pipes(self.network)
        sent, received = nbytes.sum(axis=1), nbytes.sum(axis=0)
        pipes = [
            OCTAVE * np.log2(sizes / typical) / 2.0 / TOP,
            _log(seconds / longest),
            share(nbytes, sent[:, None]),
            share(nbytes, received),
            transfers / max(int(transfers.max()), 1),
            _log(nbytes / max(float(nbytes.max()), 1.0)),
            np.broadcast_to(load[:, None] / longest, used.shape),
            np.broadcast_to(load / longest, used.shape),
            _log(share(seconds, transfers) / longest),
            share(nbytes, nbytes + nbytes.T),
            _log(share(rates, self.uniform)),
        ]
        servers = [
            used.sum(axis=1) / max(count - 1, 1),
            share(sent, sent.sum()),
            share(received, received.sum()),
            load / longest,
            _log(seconds.sum(axis=1) / longest),
            np.full(count, np.log(count)),
        ]
        seen = np.where(used[..., None], np.stack(pipes, axis=2), 0.0)
        return Traffic(
            used,
            off_diagonal(seen.clip(LOW, HIGH).astype(np.float32)),
            np.stack(servers, axis=1).clip(LOW, HIGH).astype(np.float32),
        )

    def allocation(self, level: IntArray, used: BoolArray) -> BandwidthAllocation:
        """The rates at `level` (S, S - 1) of the pipes in use, (S, S)."""
        weight = np.zeros(used.shape)
        weight[~np.eye(len(used), dtype=np.bool_)] = 2.0 ** (level.ravel() / OCTAVE)
        weight[~used] = 0.0
        return weighted_allocation(self.network, weight.ravel()[self.network.channel_pipe])

    def even(self, used: BoolArray) -> BandwidthAllocation:
        """The rates where all pipes in use have one level."""
        return self.allocation(np.zeros((len(used), len(used) - 1), np.int64), used)

    def price(
        self, device: IntArray, allocation: BandwidthAllocation, order: int | None = None
    ) -> Price:
        """As `GroupPricer.price`, through pipes of these rates."""
        self.set_rates(allocation.pipes(self.network))
        return self.pricer.price(device, order)


def share(part: NDArray[Any], whole: NDArray[Any]) -> FloatArray:
    """0 of nothing."""
    return np.asarray(part / np.where(whole > 0, whole, 1), np.float64)


def _log(ratio: FloatArray) -> FloatArray:
    return np.asarray(np.log(ratio + _LEAST) / 4.0)


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
