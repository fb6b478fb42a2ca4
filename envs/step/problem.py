"""`StepProblem`: one graph on one topology with every duration worked out, ready for a kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from envs.graphs.op_graph import OpGraph
from envs.hardware.topology import Topology

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


@runtime_checkable
class CostModel(Protocol):
    """How long an operator computes on each device and a tensor travels on each link class."""

    def operator_seconds(self, graph: OpGraph, topology: Topology) -> FloatArray:
        """(N, D) seconds; inf where the device cannot run the operator."""

    def transfer_seconds(self, graph: OpGraph, topology: Topology) -> FloatArray:
        """(T, L) seconds of each tensor on each link class; column 0 (same device) is 0."""


@dataclass(frozen=True, eq=False)
class StepProblem:
    """Place and order the N operators of `graph` on the D devices of `topology`."""

    graph: OpGraph
    topology: Topology
    op_seconds: FloatArray  # (N, D) seconds, inf = the device cannot run it
    transfer_seconds: FloatArray  # (T, L) seconds, column 0 is zero
    capacity: FloatArray  # (D,) bytes

    @classmethod
    def build(cls, graph: OpGraph, topology: Topology, cost: CostModel) -> StepProblem:
        """The problem of `graph` on `topology` with the durations of `cost`."""
        return cls(
            graph=graph,
            topology=topology,
            op_seconds=np.ascontiguousarray(cost.operator_seconds(graph, topology)),
            transfer_seconds=np.ascontiguousarray(cost.transfer_seconds(graph, topology)),
            capacity=topology.memory_bytes,
        )
