"""What an episode is about: a step on servers to be placed and given rates, one or many."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from annotated_types import Ge
from gymnasium import spaces

from envs.arrays import IntArray
from envs.bandwidth.generator import star, two_planes
from envs.bounds import Count, NonNegative, bounded
from envs.cost import RooflineCost
from envs.errors import InputError
from envs.graphs.builder import GraphBuilder
from envs.graphs.contraction import Fusion
from envs.graphs.op_graph import OpGraph
from envs.joint.piped import HIGH, LEVELS, LOW, PIPE, SERVER, PipedGroups, Traffic
from envs.placement.episodes import DrawnProblems, Judged, PlanSource, WholeProblem
from envs.placement.generator import SyntheticInstances
from envs.placement.whole import WholeLayout
from envs.step.problem import StepProblem, add_backward, add_forward, add_updates, layer_seconds


@dataclass(frozen=True, eq=False)
class Placed:
    """Groups that have been placed, at even shares of the pipes in use."""

    device: IntArray  # (G,)
    order: int
    traffic: Traffic
    judged: Judged


class JointProblem(WholeProblem):
    """A `WholeProblem` whose pipes get levels once its groups are placed."""

    def __init__(self, number: int, fused: StepProblem, source: PlanSource) -> None:
        fusion = Fusion.of_fused(fused.graph)
        self.piped = PipedGroups(fused, fusion)
        super().__init__(number, fused, fusion, source)

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
        """As `DrawnProblems.whole`."""
        count = fused.topology.num_servers
        if not 3 <= count <= self.servers:
            raise InputError(f"{count}, not 3 to {self.servers}", field="servers")
        return JointProblem(number, fused, self)


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
