"""What an episode is about: the instances of an environment, and the problems to train on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from envs.arrays import sums_before
from envs.bounds import Count, Share, bounded
from envs.cost import CostByGraph, RooflineCost
from envs.graphs.builder import GraphBuilder
from envs.graphs.motifs import draw_network, step_graph
from envs.graphs.op_graph import NONE, OpGraph, Phase
from envs.graphs.synthetic import synthetic_training_graph
from envs.hardware.builders import mixed, pairwise_topology, random_topology
from envs.hardware.devices import Device
from envs.hardware.servers import PcieServer
from envs.hardware.topology import Topology
from envs.placement.types import CompletionRule, FastestDevice, Groups, PlacementInstance
from envs.step.fusion import fuse, fused_problem
from envs.step.problem import (
    CostModel,
    StepProblem,
    add_backward,
    add_forward,
    add_updates,
    layer_seconds,
    toy_device,
)
from envs.step.timeline import single_device_peak


class InstanceGenerator(Protocol):
    """Yields the instance of each episode; its bounds shape the observation space."""

    max_groups: int
    max_edges: int
    num_devices: int

    def __call__(self, rng: np.random.Generator) -> PlacementInstance:
        """An instance within the bounds; all randomness from `rng`."""


class FixedInstance:
    """The same instance in every episode.

    Args:
        max_groups: number of groups to fuse it into, at most; also the padded number of nodes.
        completion: where undecided groups stand; `FastestDevice` by default.
        max_edges: padded number of edges; by default as many as the instance has.
    """

    def __init__(
        self,
        problem: StepProblem,
        max_groups: int,
        completion: CompletionRule = FastestDevice(),
        max_edges: int | None = None,
    ) -> None:
        self.instance = PlacementInstance.build(problem, max_groups, completion)
        needed = Groups(self.instance.fused, self.instance.fusion).traffic.num_edges
        self.max_groups = max_groups
        self.max_edges = max(needed, 1) if max_edges is None else max_edges
        self.num_devices = problem.topology.num_devices

    def __call__(self, rng: np.random.Generator) -> PlacementInstance:
        """The instance."""
        return self.instance


@bounded
class RandomStarts:
    """The same problem in every episode, its undecided groups on random devices.

    Each group stands on a device drawn uniformly from those that can run it; a draw whose state
    does not fit into memory is drawn again, at most `attempts` times, after which the episode
    starts from the completion rule. So does the given share of episodes.

    Args:
        completed: share of episodes that start from the completion rule.
    """

    def __init__(
        self,
        fixed: FixedInstance,
        completed: Share = 0.0,
        attempts: Count = 100,  # draws until the state fits into memory
    ) -> None:
        self.fixed, self.completed, self.attempts = fixed, completed, attempts
        self.max_groups, self.max_edges = fixed.max_groups, fixed.max_edges
        self.num_devices = fixed.num_devices
        self._groups = Groups(fixed.instance.fused, fixed.instance.fusion)

    def __call__(self, rng: np.random.Generator) -> PlacementInstance:
        """The problem with a new start."""
        instance = self.fixed.instance
        if rng.random() < self.completed:
            return instance
        for _ in range(self.attempts):
            able = self._groups.able
            start = np.argmax(np.where(able, rng.random(able.shape), -1.0), axis=1)
            used = np.bincount(start, self._groups.state_bytes, self.num_devices)
            if (used <= instance.fused.capacity).all():
                return replace(instance, start=start)
        return instance


def random_graph(rng: np.random.Generator) -> OpGraph:
    """A training graph of 4 to 8 layers, 2 to 4 micro-batches."""
    layers = int(rng.integers(4, 8, endpoint=True))
    micro_batches = int(rng.integers(2, 4, endpoint=True))
    return synthetic_training_graph(rng, layers, 2, micro_batches)


class SyntheticInstances:
    """A fresh random training graph in every episode, on one topology.

    Args:
        max_groups: number of groups to fuse it into, at most; also the padded number of nodes.
        completion: where undecided groups stand; `FastestDevice` by default.
    """

    def __init__(
        self,
        topology: Topology,
        cost: CostModel,
        *,
        max_groups: int = 16,
        completion: CompletionRule = FastestDevice(),
    ) -> None:
        self.topology, self.cost = topology, cost
        self.max_groups = max_groups
        self.max_edges = max(1, max_groups * (max_groups - 1))
        self.num_devices = topology.num_devices
        self.completion = completion

    def __call__(self, rng: np.random.Generator) -> PlacementInstance:
        """A random instance."""
        problem = StepProblem.build(random_graph(rng), self.topology, self.cost)
        return PlacementInstance.build(problem, self.max_groups, self.completion)


PCIE = {"medium": "PCIe 3.0 x16", "bandwidth": "15.75GB/s", "latency": "2us"}
ETHERNET = {"medium": "Ethernet 25G", "bandwidth": "25Gbps", "latency": "5us"}


def default_generator() -> SyntheticInstances:
    """Random training graphs on a server of two V100 and one of two P100, 25 Gb/s between."""
    servers = [PcieServer(name, 2, PCIE) for name in ("V100-16GB", "P100-16GB")]
    return SyntheticInstances(mixed("two_v100_two_p100", servers, ETHERNET), RooflineCost())


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
    first: list[int] = []
    for m in range(MICRO_BATCHES):
        forward: list[int] = []
        previous: int | None = None
        for layer in range(LAYERS):
            op = add_forward(builder, layer, m)
            if previous is not None:
                builder.add_use(previous, op)
            previous = builder.add_tensor(op, 0.0)
            forward.append(op)
        first = first or forward
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


Rng = np.random.Generator
LEAST_LAYERS, MOST_LAYERS = 8, 160
MOST_MICRO_BATCHES = 16
MOST_OPERATORS = 6000  # of a synthetic step
SHORTEST_S = 1e-9  # of an operator with a time of its own
OPTIMIZER_STATE = (2.0, 2.0, 1.0, 0.0)  # per parameter: Adam, momentum, none


class Library(Protocol):
    """Graphs by their numbers."""

    def __len__(self) -> int: ...
    def __getitem__(self, number: int, /) -> OpGraph: ...


@bounded
@dataclass(frozen=True, eq=False)
class TrainingProblems:
    """Draws problems: synthetic networks and captured ones, on clusters drawn at random.

    Deterministic by the generator it is given. `stage` in [0, 1] is the curriculum in size: layers,
    groups, micro-batches and devices grow with it.

    Args:
        captured: training steps of real models, as `envs.graphs.contraction` contracts them, with
            seconds for every kind of device; in any order.
        captured_share: share of the problems that are made of them, where there are any.
        inference: share of the problems without a backward pass.
        tabulated: share of those with times drawn for every operator on every device.
        most_groups: groups of a captured step, at most.
        most_devices: devices of a cluster, at most.
        wide: also experts, hourglasses, decoders that read an encoder, clusters with PCIe alone.
    """

    captured: Library
    captured_share: Share = 0.4
    inference: Share = 0.12
    tabulated: Share = 0.15
    most_groups: Count = 64
    most_devices: Count = 32
    wide: bool = True

    def __call__(self, rng: Rng, stage: float = 1.0) -> StepProblem:
        """A problem: its operators are already groups, at most `most_groups` where captured."""
        size = 0.1 + 0.9 * stage
        devices = max(2, round(self.most_devices * size))
        inference = rng.random() < self.inference
        tabulated = rng.random() < self.tabulated
        pairs = tabulated and rng.random() < 0.5
        if pairs:
            topology = pairwise_topology(rng, devices)
        else:
            topology = random_topology(rng, devices, self.wide)
        if len(self.captured) and not inference and rng.random() < self.captured_share:
            graph = self._captured(rng, stage)
        else:
            graph = _synthetic(rng, size, inference, self.wide)
        problem = _with_memory(rng, graph, topology)
        if tabulated:
            problem = _tabulated(rng, problem, sizeless=pairs and inference)
        coarse = rng.uniform(0.2, 1.0) if rng.random() < 0.4 else 1.0
        groups = max(LEAST_LAYERS, round(self.most_groups * size * coarse))
        return fused_problem(problem, fuse(problem, groups))

    def _captured(self, rng: Rng, stage: float) -> OpGraph:
        graph = self.captured[int(rng.integers(len(self.captured)))]
        most = min(graph.num_micro_batches, max(2, round(MOST_MICRO_BATCHES * stage)))
        graph = first_micro_batches(graph, int(rng.integers(1, most + 1)))
        return scaled(graph, float(np.exp(rng.uniform(np.log(0.25), np.log(4.0)))))


def _synthetic(rng: Rng, size: float, inference: bool, wide: bool) -> OpGraph:
    layers = int(rng.uniform(LEAST_LAYERS, LEAST_LAYERS + (MOST_LAYERS - LEAST_LAYERS) * size))
    sketch = draw_network(rng, layers, wide)
    number = len(sketch.layers)
    count = int(rng.choice([1, 1, 4] if inference else [1, 2, 4, 4, 8, 8, 16]))
    count = max(1, min(count, round(MOST_MICRO_BATCHES * size), MOST_OPERATORS // (4 * number)))
    state = None if inference else float(rng.choice(OPTIMIZER_STATE))
    name = f"{'inference' if inference else 'training'}_{number}"
    return step_graph(sketch, name, count, state, together=rng.random() < 0.15)


def _with_memory(rng: Rng, graph: OpGraph, topology: Topology) -> StepProblem:
    """The problem on devices with loose, normal or tight memory, relative to one device's need."""
    need, devices = single_device_peak(graph), topology.num_devices
    loose, normal = float(np.exp(rng.uniform(np.log(2), np.log(12)))), float(rng.uniform(0.6, 1.5))
    tight = max(0.12, float(rng.uniform(1.3, 3.0)) / devices)
    share = float(rng.choice([loose, normal, tight], p=[0.4, 0.25, 0.35]))
    least = max(1.0, 1.25 * graph.state_bytes.sum() / devices, _largest_part(graph))
    specs = {device.spec.name: device.spec for device in topology.devices}
    alike, mean = rng.random() < 0.5, topology.memory_bytes.mean()
    for name, spec in specs.items():
        memory = need * share * (1.0 if alike else spec.memory_bytes / mean)
        specs[name] = replace(spec, memory_bytes=max(least, memory))
    held = tuple(replace(device, spec=specs[device.spec.name]) for device in topology.devices)
    return StepProblem.build(graph, replace(topology, devices=held), CostByGraph())


def _largest_part(graph: OpGraph) -> float:
    """Bytes beside which a device could hold nothing: the largest state, and a few tensors."""
    alone = graph.colocation == NONE
    state = np.bincount(graph.colocation[~alone], weights=graph.state_bytes[~alone], minlength=1)
    tensor = graph.tensor_bytes.max(initial=0.0)
    return float(1.2 * max(state.max(), graph.state_bytes.max()) + 4 * tensor)


def _tabulated(rng: Rng, problem: StepProblem, sizeless: bool) -> StepProblem:
    """Its times changed at random, for every operator on every device; every tensor on every link.

    The operators of one co-location group with equal phase and kind change alike. Now and then all
    devices but one cannot run some of them. `sizeless`: tensors take no memory, as in files that
    give times alone.
    """
    graph = problem.graph
    key = np.stack([graph.colocation, graph.phase, graph.kind], axis=1)
    alike = np.unique(key, axis=0, return_inverse=True)[1].reshape(-1)
    alone = graph.colocation == NONE
    alike[alone] = alike.max(initial=0) + 1 + np.arange(int(alone.sum()))
    spread = float(rng.choice([0.1, 0.3, 0.8]))
    op = np.exp(spread * rng.normal(size=(int(alike.max(initial=0)) + 1, problem.capacity.size)))
    unable = rng.random(op.shape) < rng.choice([0.0, 0.0, 0.05])
    unable[:, rng.integers(problem.capacity.size)] = False
    link = np.exp(0.5 * spread * rng.normal(size=problem.transfer_seconds.shape))
    if sizeless:
        graph = replace(graph, tensor_bytes=np.zeros(graph.num_tensors))
    return replace(
        problem,
        graph=graph,
        op_seconds=np.where(unable, np.inf, op)[alike] * np.maximum(problem.op_seconds, SHORTEST_S),
        transfer_seconds=np.ascontiguousarray(problem.transfer_seconds * link),
    )


def scaled(graph: OpGraph, factor: float) -> OpGraph:
    """`graph` with `factor` times the samples: work and tensors, not the parameters' update."""
    rows = np.where(graph.phase == Phase.OPTIMIZER, 1.0, factor)
    return replace(
        graph,
        flop=rows * graph.flop,
        bytes_read=rows * graph.bytes_read,
        bytes_written=rows * graph.bytes_written,
        profile_seconds=rows[: len(graph.profile_seconds), None] * graph.profile_seconds,
        tensor_bytes=graph.tensor_bytes * factor,
    )


def first_micro_batches(graph: OpGraph, count: int) -> OpGraph:
    """The step of the first `count` micro-batches of a contracted `graph`.

    The updates of a group wait for what its first micro-batch left out would have gone on with.
    """
    kept = graph.micro_batch < count
    if kept.all():
        return graph
    number = np.where(kept, np.cumsum(kept) - 1, NONE)
    edges, group = graph.edges, graph.colocation
    going_on = kept[edges[:, 0]] & ~kept[edges[:, 1]] & (graph.phase[edges[:, 1]] == Phase.BACKWARD)
    going_on &= group[edges[:, 0]] == group[edges[:, 1]]
    left = edges[going_on]
    uses = [edges[kept[edges[:, 0]] & kept[edges[:, 1]]][:, [2, 1]]]
    for update in np.flatnonzero(graph.phase == Phase.OPTIMIZER):
        tensors = left[group[left[:, 0]] == group[update], 2]
        uses.append(np.stack([tensors, np.full_like(tensors, update)], axis=1))
    used = np.unique(np.concatenate(uses), axis=0)  # rows of tensor, consumer
    tensor, rows = np.unique(used[:, 0], return_counts=True)
    columns = {
        name: getattr(graph, name)[kept]
        for name in (
            "kind", "phase", "micro_batch", "replica", "flop", "bytes_read", "bytes_written",
            "op_dtype", "colocation",
        )
    }  # fmt: skip
    mirror = graph.mirror[kept]
    return replace(
        graph,
        **columns,
        op_names=tuple(name for name, stays in zip(graph.op_names, kept, strict=True) if stays),
        mirror=np.where(mirror == NONE, NONE, number[mirror]),
        tensor_bytes=graph.tensor_bytes[tensor],
        tensor_dtype=graph.tensor_dtype[tensor],
        producer=number[graph.producer[tensor]],
        consumer_ptr=sums_before(rows),
        consumer=number[used[:, 1]],
        parameter_owner=number[graph.parameter_owner],
        profile_seconds=graph.profile_seconds[kept[: len(graph.profile_seconds)]],
    )
