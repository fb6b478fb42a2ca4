"""Placement and bandwidth decided at once: a whole placement first, then a level for every pipe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge
from gymnasium import spaces
from numpy.typing import NDArray

from envs.arrays import BoolArray, FloatArray, IntArray
from envs.bandwidth.generator import star, two_planes
from envs.bounds import Count, NonNegative, bounded
from envs.cost import RooflineCost
from envs.errors import InputError
from envs.graphs.builder import GraphBuilder
from envs.graphs.contraction import Fusion
from envs.graphs.op_graph import OpGraph
from envs.joint.weighted_step import crossings_of, find_crossings
from envs.placement.env import GroupPricer
from envs.placement.episodes import DrawnProblems, Judged, Tokens, WholeProblem
from envs.placement.generator import SyntheticInstances
from envs.placement.whole import WholeLayout
from envs.step.allocated import (
    piped_problem,
    set_pipe_rates,
    uniform_allocation,
    weighted_allocation,
)
from envs.step.plans import BandwidthAllocation
from envs.step.price import Price
from envs.step.problem import StepProblem, add_backward, add_forward, add_updates, layer_seconds

TOP, OCTAVE = 10, 2  # levels go from -TOP to TOP, OCTAVE of them double the weight
LEVELS = 2 * TOP + 1
PIPE, SERVER = 11, 6  # widths of features
LOW, HIGH = -4.0, 4.0  # bounds of all features
_LEAST = 1e-4  # what is added before a logarithm


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
        return others(self.used)


def others(pairs: NDArray[Any]) -> NDArray[Any]:
    """(S, S - 1, ...) what (S, S, ...) holds beside its diagonal."""
    count = len(pairs)
    return pairs[~np.eye(count, dtype=np.bool_)].reshape(count, count - 1, *pairs.shape[2:])


class PipedGroups:
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
        self.network, self.fusion = problem.topology.network, fusion
        self.uniform = uniform_allocation(self.network)
        piped = piped_problem(problem, self.uniform.pipes(self.network), fusion)
        self.problem = piped.problem  # the pieces, under uniform shares
        own = replace(piped.problem, transfer_seconds=piped.problem.transfer_seconds.copy())
        self.pricer, self._table = GroupPricer(own, fusion), piped.table
        self._arrays = self.pricer.pricer.work.arrays
        self._found = crossings_of(self._arrays, self.network.num_servers)

    def traffic(self, device: IntArray) -> Traffic:
        """Of the groups on (G,) devices."""
        count, placed = self.network.num_servers, self.fusion.expand_pieces(device)
        uniform = self.uniform.pipes(self.network)
        self._set(uniform)
        find_crossings(self._arrays, self._table, placed, self._found)
        found = self._found.seconds, self._found.nbytes, self._found.transfers
        seconds, nbytes, transfers = (array.reshape(count, count).copy() for array in found)
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
            _share(nbytes, sent[:, None]),
            _share(nbytes, received),
            transfers / max(int(transfers.max()), 1),
            _log(nbytes / max(float(nbytes.max()), 1.0)),
            np.broadcast_to(load[:, None] / longest, used.shape),
            np.broadcast_to(load / longest, used.shape),
            _log(_share(seconds, transfers) / longest),
            _share(nbytes, nbytes + nbytes.T),
            _log(_share(rates, uniform)),
        ]
        servers = [
            used.sum(axis=1) / max(count - 1, 1),
            _share(sent, sent.sum()),
            _share(received, received.sum()),
            load / longest,
            _log(seconds.sum(axis=1) / longest),
            np.full(count, np.log(count)),
        ]
        seen = np.where(used[..., None], np.stack(pipes, axis=2), 0.0)
        return Traffic(
            used,
            others(seen.clip(LOW, HIGH).astype(np.float32)),
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
        self._set(allocation.pipes(self.network))
        return self.pricer.price(device, order)

    def _set(self, pipes: FloatArray) -> None:
        set_pipe_rates(self._table, pipes.ravel(), self._arrays.transfer_seconds)


def _share(part: NDArray[Any], whole: NDArray[Any]) -> FloatArray:
    """0 of nothing."""
    return np.asarray(part / np.where(whole > 0, whole, 1), np.float64)


def _log(ratio: FloatArray) -> FloatArray:
    return np.asarray(np.log(ratio + _LEAST) / 4.0)


@dataclass(frozen=True, eq=False)
class Placed:
    """Groups that have been placed, at even shares of the pipes in use."""

    device: IntArray  # (G,)
    order: int
    traffic: Traffic
    judged: Judged


class JointProblem(WholeProblem):
    """A `WholeProblem` whose pipes get levels once its groups are placed."""

    def __init__(
        self,
        number: int,
        fused: StepProblem,
        layout: WholeLayout,
        tokens: Tokens,
        unfit: float,
    ) -> None:
        fusion = Fusion.of_fused(fused.graph)
        self.piped = PipedGroups(fused, fusion)
        super().__init__(number, fused, fusion, layout, tokens, unfit)

    def placed(self, action: IntArray) -> Placed:
        """The groups where (A,) tokens say."""
        device, order = self.tokens.plan(action, self.fusion.num_groups)
        traffic = self.piped.traffic(device)
        price = self.piped.price(device, self.piped.even(traffic.used), order)
        return Placed(device, order, traffic, self.judged(price))

    def shared(self, placed: Placed, level: IntArray) -> Judged:
        """What the plan comes to at `level` (S, S - 1) of the pipes."""
        allocation = self.piped.allocation(level, placed.traffic.used)
        return self.judged(self.piped.price(placed.device, allocation, placed.order))


@bounded
class DrawnJointProblems(DrawnProblems):
    """`DrawnProblems` on several servers; the rate of every channel is decided too.

    Args:
        servers: S, at most; a problem with more is drawn again, and one with less than three, where
            no two pipes share a link.
    """

    measured = False

    def __init__(
        self,
        problems: Callable[[np.random.Generator, float], StepProblem],
        *,
        layout: WholeLayout = WholeLayout(devices=16),
        sweeps: int,
        unfit: NonNegative = 2.0,
        kept: Count | None = 500,
        servers: Annotated[int, Ge(3)] = 8,
    ) -> None:
        super().__init__(problems, layout=layout, sweeps=sweeps, unfit=unfit, kept=kept)
        self.servers = servers
        self.allocator_space = spaces.Dict(
            {
                "pipe_features": spaces.Box(LOW, HIGH, (servers - 1, PIPE), np.float32),
                "server_features": spaces.Box(LOW, HIGH, (SERVER,), np.float32),
                "pipe_mask": spaces.Box(0, 1, (servers - 1,), np.int8),
            }
        )
        self.level_space = spaces.MultiDiscrete([LEVELS] * (servers - 1))

    def whole(self, number: int, fused: StepProblem) -> JointProblem:
        count = fused.topology.num_servers
        if not 3 <= count <= self.servers:
            raise InputError(f"{count}, not 3 to {self.servers}", field="servers")
        return JointProblem(number, fused, self.layout, self.tokens, self.unfit)


def default_generator() -> SyntheticInstances:
    """Random training graphs on `two_planes`."""
    return SyntheticInstances(two_planes(), RooflineCost())


LAYERS, MICRO_BATCHES, SERVERS = 5, 2, 3
ACTIVATION_BYTES = (4.0, 1.0, 4.0, 1.0)  # from each layer to the next, and as gradients back
SKIP_BYTES = 6.0  # from the first layer to the last
ROOM = 2  # layers whose parameters fit on a device
CAPACITY = 1.0  # bytes/s of every link
OPTIMUM_S = 33.5  # of all placements that fit with all weights of 1/2, 1 and 2, by trying them all
UNIFORM_OPTIMUM_S = 41.0  # of all placements that fit, with equal weights


def toy_stages() -> StepProblem:
    """Five layers with a skip connection, two micro-batches, three servers of one device.

    A layer takes 1 s forward, 2 s backward per micro-batch and 0.5 s to update. It sends its output
    (4, 1, 4 and 1 bytes) to the next one, which returns a gradient of as many bytes; the first
    layer also sends 6 bytes to the last. A link carries 1 byte/s. Parameters, gradients and
    optimizer state of a layer are 4 bytes; a device holds 8, so that all three servers take part.
    What is sent takes no room in memory. The optima are those over plans in 1F1B order.
    """
    graph = _graph()
    nbytes = graph.tensor_bytes
    graph = replace(graph, tensor_bytes=np.zeros_like(nbytes))
    topology = star(SERVERS, CAPACITY, 4.0 * ROOM)
    return StepProblem(
        graph=graph,
        topology=topology,
        op_seconds=np.repeat(layer_seconds(graph)[:, None], SERVERS, axis=1),
        transfer_seconds=np.ascontiguousarray(nbytes[:, None] / topology.class_bandwidth[None, :]),
        capacity=topology.memory_bytes,
    )


def _graph() -> OpGraph:
    builder = GraphBuilder("toy_stages")
    gradients: list[list[int]] = [[] for _ in range(LAYERS)]
    first: list[int] = []
    for m in range(MICRO_BATCHES):
        forward = [add_forward(builder, layer, m) for layer in range(LAYERS)]
        for layer, size in enumerate(ACTIVATION_BYTES):
            builder.add_use(builder.add_tensor(forward[layer], size), forward[layer + 1])
        builder.add_use(builder.add_tensor(forward[0], SKIP_BYTES), forward[-1])
        first = first or forward
        later: int | None = None
        for layer in reversed(range(LAYERS)):
            op = add_backward(builder, layer, m, forward[layer])
            builder.add_use(builder.add_tensor(forward[layer], 0.0), op)
            if later is not None:
                builder.add_use(builder.add_tensor(later, ACTIVATION_BYTES[layer]), op)
            gradients[layer].append(builder.add_tensor(op, 0.0))
            later = op
    add_updates(builder, gradients, first)
    return builder.build()
