"""A placement problem small enough to try every placement."""

from __future__ import annotations

import numpy as np

from envs.graphs.builder import GraphBuilder
from envs.graphs.op_graph import OpGraph
from envs.hardware.devices import Device
from envs.hardware.topology import Topology
from envs.step.problem import StepProblem
from envs.step.toy_layers import add_backward, add_forward, add_updates, layer_seconds, toy_device

LAYERS, MICRO_BATCHES = 6, 3
SPEED = (1.0, 1.0, 0.5)  # of the three devices
ROOM = (4, 4, 2)  # layers whose parameters fit on each
NEAR_S, FAR_S = 0.25, 1.0  # transfer seconds inside a server and between the two
OPTIMUM_S = 32.0  # the fastest 1F1B step of the 3**6 placements that fit, by trying them all


def toy_pipeline() -> StepProblem:
    """Six equal layers, three micro-batches, three devices.

    Devices 0 and 1 share a server; device 2 is half as fast and in another one. A layer takes 1 s
    forward, 2 s backward per micro-batch and 0.5 s to update at speed 1; its output and its
    gradient travel 0.25 s inside a server and 1 s between servers. Parameters, gradients and
    optimizer state of a layer are 4 bytes; the devices hold 16, 16 and 8 bytes. Activations have
    no bytes. No device holds all six layers. `OPTIMUM_S` is the optimum over all placements that
    fit, each in the order of the 1F1B rule, which is what `meshwright/Placement-v0` simulates; it
    says nothing of plans that bring an order of their own.
    """
    graph, topology = _graph(), _topology()
    return StepProblem(
        graph=graph,
        topology=topology,
        op_seconds=layer_seconds(graph)[:, None] / np.array(SPEED)[None, :],
        transfer_seconds=np.tile([0.0, NEAR_S, FAR_S], (graph.num_tensors, 1)),
        capacity=topology.memory_bytes,
    )


def _graph() -> OpGraph:
    builder = GraphBuilder("toy_pipeline")
    gradients: list[list[int]] = [[] for _ in range(LAYERS)]
    first = [0] * LAYERS
    for m in range(MICRO_BATCHES):
        forward: list[int] = []
        previous: int | None = None
        for layer in range(LAYERS):
            op = add_forward(builder, layer, m)
            if previous is not None:
                builder.add_use(previous, op)
            previous = builder.add_tensor(op, 0.0)
            forward.append(op)
        if m == 0:
            first = forward
        for layer in reversed(range(LAYERS)):
            op = add_backward(builder, layer, m, forward[layer])
            if previous is not None:
                builder.add_use(previous, op)
            previous = builder.add_tensor(op, 0.0)
            gradients[layer].append(builder.add_tensor(op, 0.0))
    add_updates(builder, gradients, first)
    return builder.build()


def _topology() -> Topology:
    """Ports: a pair per device (0-5), a NIC pair per server (6-9)."""
    server = np.array([0, 0, 1])
    number = np.arange(3)
    apart = number[:, None] != number[None, :]
    far = server[:, None] != server[None, :]
    send = np.where(far, 6 + 2 * server[:, None], 2 * number[:, None])
    receive = np.where(far, 7 + 2 * server[None, :], 2 * number[None, :] + 1)
    return Topology(
        name="toy",
        devices=tuple(
            Device(
                f"device{d}",
                toy_device(f"toy-{SPEED[d]:g}", SPEED[d], 4.0 * ROOM[d]),
                int(server[d]),
            )
            for d in range(3)
        ),
        link_class=np.where(apart, 1 + far, 0).astype(np.int64),
        class_names=("same device", "inside", "between"),
        class_latency=np.array([0.0, NEAR_S, FAR_S]),
        class_bandwidth=np.array([np.inf, np.inf, np.inf]),
        send_port=np.where(apart, send, -1).astype(np.int64),
        receive_port=np.where(apart, receive, -1).astype(np.int64),
        port_names=tuple(
            f"{owner}.{way}"
            for owner in ("device0", "device1", "device2", "nic0", "nic1")
            for way in ("send", "receive")
        ),
    )
