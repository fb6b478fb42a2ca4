"""Problems of transfers that all begin at time 0."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from envs.graphs.builder import GraphBuilder
from envs.hardware.topology import Topology
from envs.step.problem import StepProblem


def sends(pairs, chosen: Topology, volume: float, latency: bool = True) -> StepProblem:
    """Operators 0.. send `volume` bytes each at time 0, from and to the devices in `pairs`."""
    builder = GraphBuilder("hand")
    for number in range(2 * len(pairs)):
        builder.add_operator(f"op{number}")
    for number in range(len(pairs)):
        builder.add_use(builder.add_tensor(number, 1.0), len(pairs) + number)
    graph = builder.build()
    if not latency:
        chosen = replace(chosen, class_latency=np.zeros_like(chosen.class_latency))
    moves = chosen.class_latency + volume / chosen.class_bandwidth
    moves[0] = 0.0
    return StepProblem(
        graph=graph,
        topology=chosen,
        op_seconds=np.zeros((graph.num_operators, chosen.num_devices)),
        transfer_seconds=np.tile(moves, (len(pairs), 1)),
        capacity=chosen.memory_bytes,
    )
