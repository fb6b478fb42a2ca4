"""What an episode of `Joint-v0` is about: by default, and in the toy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from envs.bandwidth.toy import star
from envs.cost import RooflineCost
from envs.graphs.builder import GraphBuilder
from envs.graphs.op_graph import OpGraph
from envs.hardware.builders import planes
from envs.hardware.servers import PcieServer
from envs.placement.generator import SyntheticInstances
from envs.step.problem import StepProblem
from envs.step.toy_layers import add_backward, add_forward, add_updates, layer_seconds


def default_generator() -> SyntheticInstances:
    """Random training graphs on four servers of one V100, with two 25 Gb/s links each."""
    pcie = {"medium": "PCIe 3.0 x16", "bandwidth": "15.75GB/s", "latency": "2us"}
    network = {"medium": "Ethernet 25G", "bandwidth": "25Gbps", "latency": "5us"}
    topology = planes("two_planes", PcieServer("V100-16GB", 1, pcie, nics=2), 4, network)
    return SyntheticInstances(topology, RooflineCost())


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
