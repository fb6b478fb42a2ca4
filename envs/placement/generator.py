"""What an episode is about: instances of the placement problem, one or many."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from envs.arrays import IntArray
from envs.bounds import Count, Share, bounded
from envs.cost import RooflineCost
from envs.graphs.builder import GraphBuilder
from envs.graphs.contraction import Fusion
from envs.graphs.op_graph import OpGraph
from envs.graphs.synthetic import synthetic_training_graph
from envs.hardware.builders import mixed
from envs.hardware.devices import Device
from envs.hardware.servers import PcieServer
from envs.hardware.topology import Topology
from envs.placement.groups import (
    CompletionRule,
    FastestDevice,
    group_seconds,
    group_state_bytes,
    group_traffic,
)
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


@dataclass(frozen=True, eq=False)
class PlacementInstance:
    """One problem, its groups, and where they stand before anything is decided."""

    problem: StepProblem  # every operator
    fusion: Fusion  # its G groups
    fused: StepProblem  # the pieces of the groups
    completion: IntArray  # (G,) devices by the completion rule
    start: IntArray  # (G,) devices of the undecided groups at the start: the same by default

    @classmethod
    def build(
        cls,
        problem: StepProblem,
        max_groups: int,
        completion: CompletionRule = FastestDevice(),
    ) -> PlacementInstance:
        """Fuse `problem` into at most `max_groups` groups; `completion`: `FastestDevice`.

        For 1F1B, which leaves weight gradients where they are.
        """
        played = replace(problem, orders=("one_f_one_b",))
        fusion = fuse(played, max_groups)
        fused = fused_problem(played, fusion)
        device = completion(fused, fusion)
        return cls(problem, fusion, fused, device, device)


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
        needed = group_traffic(self.instance.fused, self.instance.fusion).num_edges
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
        instance = fixed.instance
        self._able = np.isfinite(group_seconds(instance.fused, instance.fusion))
        self._state = group_state_bytes(instance.fused, instance.fusion)

    def __call__(self, rng: np.random.Generator) -> PlacementInstance:
        """The problem with a new start."""
        instance = self.fixed.instance
        if rng.random() < self.completed:
            return instance
        for _ in range(self.attempts):
            start = np.argmax(np.where(self._able, rng.random(self._able.shape), -1.0), axis=1)
            used = np.zeros(self.num_devices)
            np.add.at(used, start, self._state)
            if (used <= instance.fused.capacity).all():
                return replace(instance, start=start.astype(np.int64))
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
