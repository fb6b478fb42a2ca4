"""Small training steps, drawn, as chains and as plain graphs, and the best of all their plans."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import numpy as np
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from agents.placement.local_search import LocalSearch
from envs.graphs.builder import GraphBuilder
from envs.graphs.op_graph import OpGraph, Phase
from envs.hardware.devices import Device, DeviceSpec
from envs.hardware.topology import Topology
from envs.step.plans import Placement, Plan
from envs.step.problem import StepProblem
from envs.step.step import SINGLE_PORT, Ports, StepSimulator


def cluster(servers: list[int], capacity: float | list[float] = 100.0) -> Topology:
    """One device per entry; own ports inside a server, a NIC's between servers."""
    d = len(servers)
    server = np.array(servers)
    apart = server[:, None] != server[None, :]
    own, nic = 2 * np.arange(d), 2 * d + 2 * server
    send = np.where(apart, nic[:, None], own[:, None])
    receive = np.where(apart, nic[None, :], own[None, :]) + 1
    specs = [
        DeviceSpec("test", {"float32": 1.0}, 1.0, room, 0.0, 1.0, 1.0, "none")
        for room in np.broadcast_to(capacity, d).tolist()
    ]
    return Topology(
        name="test",
        devices=tuple(Device(f"d{i}", specs[i], servers[i]) for i in range(d)),
        link_class=np.where(np.eye(d, dtype=bool), 0, np.where(apart, 2, 1)),
        class_names=("self", "inside", "between"),
        class_latency=np.zeros(3),
        class_bandwidth=np.array([np.inf, 2.0, 1.0]),
        send_port=np.where(np.eye(d, dtype=bool), -1, send),
        receive_port=np.where(np.eye(d, dtype=bool), -1, receive),
        port_names=tuple(f"port{i}" for i in range(2 * d + 2 * (max(servers) + 1))),
    )


def on(
    topology: Topology, graph: OpGraph, seconds: ArrayLike, moves: ArrayLike = 0.0
) -> StepProblem:
    """The step of a graph, `seconds` (N, D) and `moves` (T, 3), or as they broadcast to that."""
    n, t = (graph.num_operators, topology.num_devices), (graph.num_tensors, 3)
    times = (np.array(np.broadcast_to(x, shape), float) for x, shape in ((seconds, n), (moves, t)))
    return StepProblem(graph, topology, *times, topology.memory_bytes)


def wire(builder: GraphBuilder, random: np.random.Generator, n: int, *sizes: float) -> None:
    """One or two tensors of all operators but the last, each for one to three that come later."""
    for op in range(n - 1):
        for _ in range(random.integers(1, 3)):
            tensor = builder.add_tensor(op, float(random.choice(sizes)))
            for reader in set(random.integers(op + 1, n, size=random.integers(1, 4)).tolist()):
                builder.add_use(tensor, reader)


def quick_search() -> LocalSearch:
    """A local search of operators alone."""
    return LocalSearch(groups=(), cycle_moves=100, starts=())


def orders(graph: OpGraph) -> Iterator[list[int]]:
    """All topological orders."""
    inputs = [0] * graph.num_operators
    for u, v, _ in graph.edges.tolist():
        inputs[v] |= 1 << u

    def extend(order: list[int], done: int) -> Iterator[list[int]]:
        if len(order) == graph.num_operators:
            yield order
        for op, needed in enumerate(inputs):
            if not done >> op & 1 and needed & ~done == 0:
                yield from extend([*order, op], done | 1 << op)

    return extend([], 0)


def optimum(
    problem: StepProblem, communication: Ports = SINGLE_PORT, *, live: bool = True
) -> float:
    """Seconds of the fastest of all placements in all orders; inf: there is none.

    Not `live`: activations need no memory.
    """
    n, d = problem.op_seconds.shape
    every = [np.array(device) for device in product(range(d), repeat=n)]
    fits = np.array([device for device in every if not Placement(device).violations(problem)])
    simulator = StepSimulator(problem, communication=communication)
    best = np.inf
    for order in map(np.array, orders(problem.graph)) if len(fits) else ():
        seconds = simulator.step_times(fits, order)
        for k in np.argsort(seconds):
            if seconds[k] >= best:
                break
            if not live or not Plan(Placement(fits[k]), order).violations(problem):
                best = float(seconds[k])
    return best


def dag(
    seconds: list[list[float]], transfers: dict[tuple[int, int], float], state: list[float]
) -> StepProblem:
    """Tasks 1.. with one tensor per arc, on devices of one server with 100 bytes each."""
    builder = GraphBuilder("dag")
    for number in range(len(seconds)):
        op = builder.add_operator(f"n{number + 1}")
        builder.add_parameter(f"w{number}", op, parameter=state[number], gradient=0, optimizer=0)
    for u, v in transfers:
        builder.add_use(builder.add_tensor(u - 1, 0.0), v - 1)
    graph = builder.build()
    assert graph.op_names == tuple(f"n{number + 1}" for number in range(len(seconds)))
    moves = np.zeros((graph.num_tensors, 3))
    for u, v, tensor in graph.edges.tolist():
        moves[tensor, 1] = transfers[u + 1, v + 1]
    return on(cluster([0] * len(seconds[0])), graph, seconds, moves)


def pipeline(
    seconds: list[float], micro_batches: int, topology: Topology, speed: float | list[float] = 1.0
) -> StepProblem:
    """A chain of layers, forward and twice as long backward, with an update of each layer."""
    builder = GraphBuilder("pipeline")
    duration: list[float] = []

    def operator(layer: int, phase: Phase, batch: int, length: float, mirror: int = -1) -> int:
        duration.append(length)
        name = f"{phase.name}{layer}/{batch}"
        return builder.add_operator(
            name, phase=phase, micro_batch=batch, colocation=layer, mirror=mirror
        )

    gradients: list[list[int]] = [[] for _ in seconds]
    for batch in range(micro_batches):
        forward, tensor = [], None
        for layer, length in enumerate(seconds):
            forward.append(operator(layer, Phase.FORWARD, batch, length))
            if tensor is not None:
                builder.add_use(tensor, forward[-1])
            tensor = builder.add_tensor(forward[-1], 1.0)
        for layer in reversed(range(len(seconds))):
            op = operator(layer, Phase.BACKWARD, batch, 2 * seconds[layer], forward[layer])
            if tensor is not None:
                builder.add_use(tensor, op)
            tensor = builder.add_tensor(op, 1.0)
            gradients[layer].append(builder.add_tensor(op, 0.0))
    for layer, tensors in enumerate(gradients):
        op = operator(layer, Phase.OPTIMIZER, -1, 0.1)
        for tensor in tensors:
            builder.add_use(tensor, op)
        builder.add_parameter(f"w{layer}", op, parameter=1.0, gradient=1.0, optimizer=2.0)
    names = builder._operators
    graph = builder.build()
    by_name = {op.name: length for op, length in zip(names, duration, strict=True)}
    length = np.array([by_name[name] for name in graph.op_names])
    transfer = graph.tensor_bytes[:, None] * np.array([0.0, 0.01, 0.05])
    return on(topology, graph, length[:, None] / np.array(speed), transfer)


@st.composite
def problems(
    draw: Callable[..., object],
    max_operators: int = 12,
    max_devices: int = 3,
    tight: bool = True,
    unsupported: bool = True,
) -> StepProblem:
    """A random DAG with co-location groups and state on devices that may be too small."""
    n = draw(st.integers(1, max_operators))
    micro_batches = draw(st.integers(1, 2))
    builder = GraphBuilder("random")
    groups = draw(st.integers(0, 3))
    for op in range(n):
        builder.add_operator(
            f"op{op}",
            phase=draw(st.sampled_from([Phase.FORWARD, Phase.BACKWARD])),
            micro_batch=draw(st.integers(0, micro_batches - 1)),
            colocation=draw(st.integers(0, groups - 1)) if groups and draw(st.booleans()) else -1,
        )
    for op in range(n - 1):
        for _ in range(draw(st.integers(0, 2))):
            tensor = builder.add_tensor(op, draw(st.sampled_from([0.0, 1.0, 3.0])))
            for consumer in draw(st.sets(st.integers(op + 1, n - 1), max_size=3)):
                builder.add_use(tensor, consumer)
    for number in range(draw(st.integers(0, 4))):
        size = draw(st.sampled_from([1.0, 2.0, 5.0]))
        owner = draw(st.integers(0, n - 1))
        builder.add_parameter(f"w{number}", owner, parameter=size, gradient=size, optimizer=0.0)
    graph = builder.build()
    servers = sorted(draw(st.lists(st.integers(0, 1), min_size=1, max_size=max_devices)))
    sizes = st.sampled_from([2.0, 6.0, 20.0, 1000.0] if tight else [1000.0])
    d, t = len(servers), graph.num_tensors
    topology = cluster(servers, draw(st.lists(sizes, min_size=d, max_size=d)))
    seconds = st.sampled_from([0.0, 0.5, 1.0, 1.25, 3.0] + [np.inf] * unsupported)
    duration = draw(st.lists(seconds, min_size=n * d, max_size=n * d))
    finite = st.sampled_from([0.0, 0.25, 1.0, 2.0])
    moves = np.array(draw(st.lists(finite, min_size=2 * t, max_size=2 * t))).reshape(t, 2)
    seconds_on = np.array(duration).reshape(n, d)
    return on(topology, graph, seconds_on, np.concatenate([np.zeros((t, 1)), moves], axis=1))
