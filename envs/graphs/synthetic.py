"""Random graphs and problems from a seeded generator: for tests, toys and training."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise

import numpy as np

from envs.graphs.builder import GraphBuilder
from envs.graphs.op_graph import NONE, FloatArray, Kind, OpGraph, Phase
from envs.hardware.devices import Device, DeviceSpec
from envs.hardware.topology import Topology
from envs.units import GIGA, MEGA, TERA

Rng = np.random.Generator
Edges = set[tuple[int, int]]  # producer < consumer


def chain(rng: Rng, operators: int) -> OpGraph:
    """One operator after the other."""
    return _forward(rng, "chain", operators, {(i, i + 1) for i in range(operators - 1)})


def layered(rng: Rng, operators: int, width: int = 4, density: float = 0.4) -> OpGraph:
    """Layers of 1..`width` operators; each operator reads from one or more of the layer before.

    `density` is the probability of each further edge between neighbouring layers.
    """
    edges: Edges = set()
    previous: list[int] = []
    first = 0
    while first < operators:
        layer = list(range(first, min(operators, first + int(rng.integers(1, width + 1)))))
        for op in layer if previous else []:
            edges.add((int(rng.choice(previous)), op))
            edges.update((u, op) for u in previous if rng.random() < density)
        previous, first = layer, layer[-1] + 1
    return _forward(rng, "layered", operators, edges)


def fork_join(rng: Rng, branches: int, length: int = 1) -> OpGraph:
    """A source, `branches` chains of `length` operators, and a sink: 1 x 1 is a chain of three."""
    sink = 1 + branches * length
    edges: Edges = set()
    for branch in range(branches):
        path = [0, *range(1 + branch * length, 1 + (branch + 1) * length), sink]
        edges.update(pairwise(path))
    return _forward(rng, "fork_join", sink + 1, edges)


def diamond(rng: Rng) -> OpGraph:
    """Four operators: one, two beside each other, one."""
    return fork_join(rng, branches=2)


def series_parallel(rng: Rng, operators: int) -> OpGraph:
    """A two-terminal series-parallel graph, grown by splitting random edges.

    Each new operator either subdivides an edge (series) or makes a second path beside it
    (parallel), starting from source -> sink; fewer than two operators have no edge.
    """
    if operators < 2:
        return _forward(rng, "series_parallel", operators, set())
    links = [(0, 1)]
    for op in range(2, operators):
        index = int(rng.integers(len(links)))
        u, v = links[index]
        links += [(u, op), (op, v)]
        if rng.random() < 0.5:
            links.pop(index)
    rank = {op: index for index, op in enumerate(_topological(operators, links))}
    return _forward(rng, "series_parallel", operators, {(rank[u], rank[v]) for u, v in links})


GENERATORS: tuple[Callable[[Rng, int], OpGraph], ...] = (chain, layered, series_parallel)


def synthetic_training_graph(
    rng: Rng,
    layers: int = 4,
    width: int = 2,
    micro_batches: int = 2,
    *,
    skip_probability: float = 0.3,
    parameter_bytes: tuple[float, float] = (1 * MEGA, 64 * MEGA),
    activation_bytes: tuple[float, float] = (1 * MEGA, 32 * MEGA),
    flop: tuple[float, float] = (1 * GIGA, 100 * GIGA),
) -> OpGraph:
    """A training step: forward, mirrored backward and update of `layers` x `width` blocks.

    Block (l, w) reads block (l - 1, w) and, with `skip_probability` each, the other blocks of layer
    l - 1. Per micro-batch it has a forward operator and a backward one of twice the FLOP that
    reads the same tensors, the gradients of its output, and writes the gradient of each input;
    blocks of the last layer start their backward from their own output. One update per block reads
    the parameter gradient of every micro-batch. All operators of a block share its parameter (with
    gradient and two moments) and its co-location group. Ranges are drawn log-uniformly.
    """
    builder = GraphBuilder(name=f"synthetic_{layers}x{width}x{micro_batches}")
    blocks = layers * width
    sources: list[list[int]] = [[] for _ in range(blocks)]
    for block in range(width, blocks):
        row = range((block // width - 1) * width, (block // width) * width)
        sources[block] = [
            u for u in row if u % width == block % width or rng.random() < skip_probability
        ]
    work, output, weights = (
        log_uniform(rng, *limits, blocks) for limits in (flop, activation_bytes, parameter_bytes)
    )
    targets = [[v for v in range(blocks) if u in sources[v]] for u in range(blocks)]
    weight_gradients: list[list[int]] = [[] for _ in range(blocks)]
    first_forward = 0
    for batch in range(micro_batches):
        forward, activation = [], []
        for block in range(blocks):
            read = float(sum(output[u] for u in sources[block]))
            op = builder.add_operator(
                f"forward.{block}.{batch}",
                kind=Kind.MATMUL,
                micro_batch=batch,
                flop=float(work[block]),
                bytes_read=read + float(weights[block]),
                bytes_written=float(output[block]),
                colocation=block,
            )
            forward.append(op)
            activation.append(builder.add_tensor(op, float(output[block])))
            for u in sources[block]:
                builder.add_use(activation[u], op)
        first_forward = forward[0] if batch == 0 else first_forward
        gradients: dict[int, list[int]] = {block: [] for block in range(blocks)}
        for block in reversed(range(blocks)):
            read = float(sum(output[u] for u in sources[block]))
            op = builder.add_operator(
                f"backward.{block}.{batch}",
                kind=Kind.MATMUL,
                phase=Phase.BACKWARD,
                micro_batch=batch,
                flop=2 * float(work[block]),
                bytes_read=read + float(output[block] + weights[block]),
                bytes_written=read + float(weights[block]),
                colocation=block,
                mirror=forward[block],
            )
            for tensor in gradients[block] if targets[block] else [activation[block]]:
                builder.add_use(tensor, op)
            for u in sources[block]:
                builder.add_use(activation[u], op)
                gradients[u].append(builder.add_tensor(op, float(output[u])))
            weight_gradients[block].append(builder.add_tensor(op, float(weights[block])))
    for block in range(blocks):
        op = builder.add_operator(
            f"update.{block}",
            kind=Kind.UPDATE,
            phase=Phase.OPTIMIZER,
            micro_batch=NONE,
            flop=4 * float(weights[block]),
            bytes_read=4 * float(weights[block]),
            bytes_written=3 * float(weights[block]),
            colocation=block,
        )
        for tensor in weight_gradients[block]:
            builder.add_use(tensor, op)
        size = float(weights[block])
        builder.add_parameter(
            f"weight.{block}",
            first_forward + block,
            parameter=size,
            gradient=size,
            optimizer=2 * size,
        )
    return builder.build()


def random_topology(rng: Rng, devices: int) -> Topology:
    """Devices of random speed and memory on random servers, with one NIC per server.

    Link classes: same device, inside a server (a port pair per device), between servers (the port
    pairs of the two NICs).
    """
    server = np.sort(rng.integers(0, max(1, (devices + 1) // 2), devices))
    servers = int(server.max()) + 1
    apart = ~np.eye(devices, dtype=bool)
    between = server[:, None] != server[None, :]
    ports = 2 * devices + 2 * np.arange(servers)[server]  # NIC send port of each device
    send = np.where(between, ports[:, None], 2 * np.arange(devices)[:, None])
    receive = np.where(between, ports[None, :] + 1, 2 * np.arange(devices)[None, :] + 1)
    names = [f"device{i}" for i in range(devices)] + [f"nic{i}" for i in range(servers)]
    return Topology(
        name="random",
        devices=tuple(
            Device(names[i], _random_spec(rng, names[i]), int(server[i])) for i in range(devices)
        ),
        link_class=np.where(apart, 1 + between, 0).astype(np.int64),
        class_names=("same", "inside", "between"),
        class_latency=np.array([0.0, 1e-6, 1e-5]),
        class_bandwidth=np.array([np.inf, 50 * GIGA, log_uniform(rng, GIGA, 25 * GIGA, 1)[0]]),
        send_port=np.where(apart, send, -1).astype(np.int64),
        receive_port=np.where(apart, receive, -1).astype(np.int64),
        port_names=tuple(f"{name}.{way}" for name in names for way in ("send", "receive")),
    )


def _forward(rng: Rng, name: str, operators: int, edges: Iterable[tuple[int, int]]) -> OpGraph:
    """Random costs on given edges: one output per operator, a parameter for half of them."""
    builder = GraphBuilder(name=f"{name}_{operators}")
    work = log_uniform(rng, GIGA, 100 * GIGA, operators)
    size = log_uniform(rng, MEGA, 32 * MEGA, operators)
    reads = sorted(edges)
    producers = {u for u, _ in reads}
    read = np.zeros(operators)
    for u, v in reads:
        read[v] += size[u]
    tensors: dict[int, int] = {}
    for op in range(operators):
        builder.add_operator(
            f"op{op}",
            kind=Kind.MATMUL,
            flop=float(work[op]),
            bytes_read=float(read[op]),
            bytes_written=float(size[op]),
        )
        if op in producers:
            tensors[op] = builder.add_tensor(op, float(size[op]))
        if rng.random() < 0.5:
            builder.add_parameter(
                f"op{op}.weight", op, parameter=float(size[op]), gradient=0.0, optimizer=0.0
            )
    for u, v in reads:
        builder.add_use(tensors[u], v)
    return builder.build()


def _topological(operators: int, links: list[tuple[int, int]]) -> list[int]:
    """A topological order of the nodes: by length of the longest path from the source."""
    depth = [0] * operators
    deepened = True
    while deepened:
        deepened = False
        for u, v in links:
            if depth[v] <= depth[u]:
                depth[v], deepened = depth[u] + 1, True
    return sorted(range(operators), key=lambda op: depth[op])


def _random_spec(rng: Rng, name: str) -> DeviceSpec:
    return DeviceSpec(
        name=name,
        peak_flops={"float32": float(log_uniform(rng, TERA, 20 * TERA, 1)[0])},
        memory_bandwidth=float(log_uniform(rng, 100 * GIGA, 2000 * GIGA, 1)[0]),
        memory_bytes=float(rng.integers(1024, 2048)) * GIGA,
        launch_overhead_s=5e-6,
        compute_efficiency=0.5,
        memory_efficiency=0.7,
        source="drawn at random",
    )


def log_uniform(rng: Rng, low: float, high: float, count: int) -> FloatArray:
    """(count,) samples between two bounds."""
    return np.exp(rng.uniform(np.log(low), np.log(high), count))
