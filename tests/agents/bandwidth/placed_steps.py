"""Small placed steps on small networks: random ones, and those with a closed form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import networkx as nx
import numpy as np
from hypothesis import strategies as st

from envs.cost import link_transfer_seconds
from envs.graphs.builder import GraphBuilder
from envs.hardware.builders import planes
from envs.hardware.fabric import LinkSpec
from envs.hardware.servers import PcieServer
from envs.hardware.topology import Topology
from envs.step.plans import Placement, Plan
from envs.step.problem import StepProblem, toy_device

AMPLE = 1e9  # bytes of memory, or bytes/s


def cluster(
    servers: int,
    devices: int = 1,
    planes_: int = 1,
    *,
    bandwidth: float = 1.0,
    inner: float = AMPLE,
    latency: float = 0.0,
    memory: float = AMPLE,
) -> Topology:
    """Servers of `devices` devices with a NIC of `bandwidth` bytes/s for each plane."""
    pcie = LinkSpec("PCIe", inner, 0.0)
    server = PcieServer(toy_device("test", 1.0, memory), devices, pcie, nics=planes_)
    return planes("test", server, servers, LinkSpec("Ethernet", bandwidth, latency / 2))


def with_capacities(topology: Topology, factor: list[float]) -> Topology:
    """`topology` whose links have their capacity times `factor`, over and over."""
    network = topology.network
    times = np.resize(np.array(factor), network.num_links)
    changed = replace(topology)
    changed.__dict__["network"] = replace(network, link_capacity=network.link_capacity * times)
    return changed


def problem_of(builder: GraphBuilder, seconds: list[float], topology: Topology) -> StepProblem:
    """The built graph with `seconds` (N,) on every device and the links' own transfer times."""
    names = [operator.name for operator in builder._operators]
    graph = builder.build()
    by_name = dict(zip(names, seconds, strict=True))
    own = np.array([by_name[name] for name in graph.op_names])
    return StepProblem(
        graph=graph,
        topology=topology,
        op_seconds=np.tile(own[:, None], (1, topology.num_devices)),
        transfer_seconds=link_transfer_seconds(graph, topology),
        capacity=topology.memory_bytes,
    )


def plan_of(problem: StepProblem, device: dict[str, int]) -> Plan:
    """The operators where `device` says, in the graph's order."""
    names = problem.graph.op_names
    placed = np.array([device[name] for name in names], dtype=np.int64)
    return Plan(Placement(placed), np.arange(len(names)))


def serial_sends(volumes: list[float], topology: Topology) -> tuple[StepProblem, Plan]:
    """Device 0 sends to 1, waits for the answer of an empty message, sends to 2, and so on."""
    builder = GraphBuilder("serial")
    device: dict[str, int] = {}
    previous = None
    for number, volume in enumerate(volumes):
        sender = builder.add_operator(f"send{number}")
        receiver = builder.add_operator(f"receive{number}")
        device |= {f"send{number}": 0, f"receive{number}": number + 1}
        if previous is not None:
            builder.add_use(previous, sender)
        builder.add_use(builder.add_tensor(sender, volume), receiver)
        previous = builder.add_tensor(receiver, 0.0)
    problem = problem_of(builder, [0.0] * (2 * len(volumes)), topology)
    return problem, plan_of(problem, device)


def concurrent_sends(volumes: list[float], topology: Topology) -> tuple[StepProblem, Plan]:
    """Device 0 has all tensors at once, one for each other device."""
    builder = GraphBuilder("concurrent")
    builder.add_operator("send")
    for number, volume in enumerate(volumes):
        receiver = builder.add_operator(f"receive{number}")
        builder.add_use(builder.add_tensor(0, volume), receiver)
    problem = problem_of(builder, [0.0] * (1 + len(volumes)), topology)
    order = np.arange(1 + len(volumes))
    return problem, Plan(Placement(order), order)


@st.composite
def placed_steps(draw: Callable[..., object], tight: bool = False) -> tuple[StepProblem, Plan]:
    """A random DAG, placed and ordered, on 1 to 4 servers with unequal links in 1 or 2 planes."""
    topology = with_capacities(
        cluster(
            draw(st.integers(1, 4)),
            draw(st.integers(1, 3)),
            draw(st.integers(1, 2)),
            inner=draw(st.sampled_from([1.0, 1.5, AMPLE])),
            latency=draw(st.sampled_from([0.0, 0.25])),
            memory=draw(st.sampled_from([4.0, 8.0, 16.0])) if tight else AMPLE,
        ),
        draw(st.lists(st.sampled_from([0.25, 1.0, 3.0]), min_size=1, max_size=7)),
    )
    builder = GraphBuilder("random")
    n = draw(st.integers(1, 15))
    for op in range(n):
        builder.add_operator(f"op{op}")
    for op in range(n - 1):
        for _ in range(draw(st.integers(0, 2))):
            tensor = builder.add_tensor(op, draw(st.sampled_from([0.0, 1e-6, 0.1, 1.0, 3.0])))
            for consumer in draw(st.sets(st.integers(op + 1, n - 1), max_size=3)):
                builder.add_use(tensor, consumer)
    seconds = draw(st.lists(st.sampled_from([0.0, 0.1, 1.0, 2.5]), min_size=n, max_size=n))
    problem = problem_of(builder, seconds, topology)
    where = st.integers(0, topology.num_devices - 1)
    device = np.array(draw(st.lists(where, min_size=n, max_size=n)), dtype=np.int64)
    return problem, Plan(Placement(device), random_order(problem, draw(st.integers(0, 99))))


def random_order(problem: StepProblem, seed: int) -> np.ndarray:
    """(N,) a random topological order."""
    graph, rank = nx.DiGraph(), np.random.default_rng(seed).random(problem.graph.num_operators)
    graph.add_nodes_from(range(len(rank)))
    graph.add_edges_from(problem.graph.edges[:, :2].tolist())
    return np.array([*nx.lexicographical_topological_sort(graph, lambda op: rank[op])], np.int64)
