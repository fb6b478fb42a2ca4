"""`StepProblem`: one graph on one topology with every duration worked out, ready for a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from envs.arrays import FloatArray
from envs.errors import InputError
from envs.graphs.builder import GraphBuilder
from envs.graphs.op_graph import NONE, Kind, OpGraph, Phase
from envs.hardware.devices import DeviceSpec
from envs.hardware.topology import Topology
from envs.step.order import DEFERRING, ORDERS, checked_orders

RECOMPUTE, OFFLOAD = MEMORY_MOVES = "recompute", "offload"


@runtime_checkable
class CostModel(Protocol):
    """How long an operator computes on each device and a tensor travels on each link class."""

    def operator_seconds(self, graph: OpGraph, topology: Topology) -> FloatArray:
        """(N, D) seconds; inf where the device cannot run the operator."""

    def transfer_seconds(self, graph: OpGraph, topology: Topology) -> FloatArray:
        """(T, L) seconds of each tensor on each link class; column 0 (same device) is 0."""


@dataclass(frozen=True, eq=False)
class StepProblem:
    """Place and order the N operators of `graph` on the D devices of `topology`.

    `orders` are those a plan may have, names of `envs.step.order.ORDERS`; with `free` any.
    """

    graph: OpGraph
    topology: Topology
    op_seconds: FloatArray  # (N, D) seconds, inf = the device cannot run it
    transfer_seconds: FloatArray  # (T, L) seconds, column 0 is zero
    capacity: FloatArray  # (D,) bytes
    orders: tuple[str, ...] = ORDERS
    memory_moves: tuple[str, ...] = ()  # of MEMORY_MOVES: what plans may do, besides keeping all

    def __post_init__(self) -> None:
        checked_orders(self.orders)
        checked_moves(self.memory_moves)

    @classmethod
    def build(
        cls, graph: OpGraph, topology: Topology, cost: CostModel, orders: Sequence[str] = ORDERS
    ) -> StepProblem:
        """The problem of `graph` on `topology` with the durations of `cost`.

        Raises:
            InputError: `orders` has none, or a name that is no order.
        """
        return cls(
            graph=graph,
            topology=topology,
            op_seconds=np.ascontiguousarray(cost.operator_seconds(graph, topology)),
            transfer_seconds=np.ascontiguousarray(cost.transfer_seconds(graph, topology)),
            capacity=topology.memory_bytes,
            orders=tuple(orders),
        )

    @property
    def any_order(self) -> bool:
        """Whether a plan may have any topological order."""
        return "free" in self.orders

    @property
    def defers(self) -> bool:
        """Whether a plan may run weight gradients later than the input gradients beside them."""
        return any(order in DEFERRING for order in self.orders)


def checked_moves(moves: Sequence[str]) -> tuple[str, ...]:
    """`moves`, each a name of `MEMORY_MOVES`.

    Raises:
        InputError: one is not.
    """
    if isinstance(moves, str) or any(move not in MEMORY_MOVES for move in moves):
        known = ", ".join(MEMORY_MOVES)
        raise InputError(f"{moves!r} is no list of some of {known}", field="memory_moves")
    return tuple(moves)


FORWARD_S, BACKWARD_S, UPDATE_S = 1.0, 2.0, 0.5  # seconds of a layer on a device of speed 1


def add_forward(builder: GraphBuilder, layer: int, micro_batch: int) -> int:
    """The forward operator of a layer."""
    return builder.add_operator(
        f"forward{layer}.{micro_batch}",
        kind=Kind.MATMUL,
        micro_batch=micro_batch,
        colocation=layer,
    )


def add_backward(builder: GraphBuilder, layer: int, micro_batch: int, forward: int) -> int:
    """The backward operator of a layer, whose forward operator is `forward`."""
    return builder.add_operator(
        f"backward{layer}.{micro_batch}",
        kind=Kind.MATMUL,
        phase=Phase.BACKWARD,
        micro_batch=micro_batch,
        colocation=layer,
        mirror=forward,
    )


def add_updates(
    builder: GraphBuilder, gradients: Sequence[Sequence[int]], first: Sequence[int]
) -> None:
    """The update of every layer, and 4 bytes of parameters, gradients and optimizer state.

    Args:
        gradients: the tensors that each update uses.
        first: the forward operator of each layer that uses the parameters.
    """
    for layer, tensors in enumerate(gradients):
        op = builder.add_operator(
            f"update{layer}",
            kind=Kind.UPDATE,
            phase=Phase.OPTIMIZER,
            micro_batch=NONE,
            colocation=layer,
        )
        for tensor in tensors:
            builder.add_use(tensor, op)
        builder.add_parameter(
            f"weight{layer}", first[layer], parameter=1.0, gradient=1.0, optimizer=2.0
        )


def layer_seconds(graph: OpGraph) -> FloatArray:
    """(N,) seconds of each operator at speed 1."""
    return np.select(
        [graph.phase == Phase.FORWARD, graph.phase == Phase.BACKWARD],
        [FORWARD_S, BACKWARD_S],
        UPDATE_S,
    )


def toy_device(name: str, speed: float, memory_bytes: float) -> DeviceSpec:
    """A device of `speed` FLOP/s that is never slowed down."""
    return DeviceSpec(
        name=name,
        peak_flops={"float32": speed},
        memory_bandwidth=1.0,
        memory_bytes=memory_bytes,
        launch_overhead_s=0.0,
        compute_efficiency=1.0,
        memory_efficiency=1.0,
        source="made up",
    )
