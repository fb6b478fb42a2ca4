"""`StepProblem`: one graph on one topology with every duration worked out, ready for a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from envs.arrays import FloatArray
from envs.errors import InputError
from envs.graphs.op_graph import OpGraph
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
