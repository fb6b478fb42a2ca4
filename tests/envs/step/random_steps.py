"""Hypothesis strategies: small problems with everything that makes simulation hard."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from envs.graphs.builder import GraphBuilder
from envs.graphs.op_graph import Phase
from envs.hardware.devices import Device
from envs.hardware.topology import Topology
from envs.step.problem import StepProblem, toy_device


def topology_of(servers: list[int], nic_per_server: bool) -> Topology:
    """Devices on `servers`; ports per device inside a server, per server between them."""
    d = len(servers)
    spec = toy_device("test", 1.0, 1e9)
    server = np.array(servers)
    apart = server[:, None] != server[None, :]
    link_class = np.where(np.eye(d, dtype=bool), 0, np.where(apart, 2, 1))
    nic = 2 * d + 2 * server
    own = 2 * np.arange(d)
    outside = apart & nic_per_server
    send = np.where(outside, nic[:, None], own[:, None] * np.ones((1, d), dtype=int))
    receive = np.where(outside, nic[None, :] + 1, own[None, :] + 1)
    return Topology(
        name="test",
        devices=tuple(Device(f"d{i}", spec, servers[i]) for i in range(d)),
        link_class=link_class,
        class_names=("self", "inside", "between"),
        class_latency=np.zeros(3),
        class_bandwidth=np.array([np.inf, 2.0, 1.0]),
        send_port=send,
        receive_port=receive,
        port_names=tuple(f"port{i}" for i in range(2 * d + 2 * (max(servers) + 1))),
    )


@st.composite
def problems(draw, max_operators: int = 14, max_devices: int = 4) -> StepProblem:
    """Random DAG, several tensors per operator, zero durations, shared NIC ports."""
    n = draw(st.integers(1, max_operators))
    micro_batches = draw(st.integers(1, 3))
    seconds = st.sampled_from([0.0, 0.5, 1.0, 1.25, 2.0, 3.0])
    builder = GraphBuilder("random")
    for op in range(n):
        phase = draw(st.sampled_from([Phase.FORWARD, Phase.BACKWARD]))
        builder.add_operator(
            f"op{op}", phase=phase, micro_batch=draw(st.integers(0, micro_batches - 1))
        )
    for op in range(n - 1):
        for _ in range(draw(st.integers(0, 3))):
            consumers = draw(st.sets(st.integers(op + 1, n - 1), max_size=4))
            tensor = builder.add_tensor(op, draw(st.sampled_from([0.0, 1.0, 7.0])))
            for consumer in consumers:
                builder.add_use(tensor, consumer)
    if draw(st.booleans()):
        builder.add_parameter("w", draw(st.integers(0, n - 1)), parameter=5, gradient=5)
    graph = builder.build()
    servers = sorted(draw(st.lists(st.integers(0, 1), min_size=1, max_size=max_devices)))
    topology = topology_of(servers, draw(st.booleans()))
    d = topology.num_devices
    op_seconds = np.array(draw(st.lists(seconds, min_size=n * d, max_size=n * d))).reshape(n, d)
    t = graph.num_tensors
    moves = np.array(draw(st.lists(seconds, min_size=2 * t, max_size=2 * t))).reshape(t, 2)
    return StepProblem(
        graph=graph,
        topology=topology,
        op_seconds=op_seconds,
        transfer_seconds=np.concatenate([np.zeros((t, 1)), moves], axis=1),
        capacity=topology.memory_bytes,
    )


@st.composite
def placed_problems(draw, **sizes):
    """(problem, device, order): a random placement and a random topological order."""
    problem = draw(problems(**sizes))
    n, d = problem.op_seconds.shape
    device = np.array(draw(st.lists(st.integers(0, d - 1), min_size=n, max_size=n)), dtype=np.int64)
    missing = np.bincount(problem.graph.edges[:, 1], minlength=n)
    ready, order = [op for op in range(n) if missing[op] == 0], []
    while ready:
        op = ready.pop(draw(st.integers(0, len(ready) - 1)))
        order.append(op)
        for _, consumer, _ in problem.graph.edges[problem.graph.edges[:, 0] == op]:
            missing[consumer] -= 1
            if missing[consumer] == 0:
                ready.append(int(consumer))
    return problem, device, np.array(order, dtype=np.int64)
