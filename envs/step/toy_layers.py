"""What the toys have in common: equal layers of a training step, and devices that are made up."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from envs.arrays import FloatArray
from envs.graphs.builder import GraphBuilder
from envs.graphs.op_graph import NONE, Kind, OpGraph, Phase
from envs.hardware.devices import DeviceSpec

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
