"""What an episode is about: placed steps whose network is to be shared, one or many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from envs.arrays import IntArray
from envs.bandwidth.types import BandwidthBounds, BandwidthInstance, PassBoundaries, PhaseCut
from envs.cost import RooflineCost, link_transfer_seconds
from envs.errors import InputError
from envs.graphs.builder import GraphBuilder
from envs.hardware.builders import planes
from envs.hardware.devices import Device
from envs.hardware.servers import PcieServer
from envs.hardware.topology import Topology
from envs.placement.generator import ETHERNET, PCIE, SyntheticInstances
from envs.step.order import OneFOneB
from envs.step.plans import Placement, Plan
from envs.step.problem import CostModel, StepProblem, toy_device


class PlacedStepGenerator(Protocol):
    """Yields the instance of each episode; its bounds shape the observation space."""

    bounds: BandwidthBounds

    def __call__(self, rng: np.random.Generator) -> BandwidthInstance:
        """An instance within the bounds; all randomness from `rng`."""


def bounds_of(topology: Topology, cut: PhaseCut) -> BandwidthBounds:
    """The bounds of the steps on `topology` that `cut` divides.

    Raises:
        InputError: the topology has no channel.
    """
    network = topology.network
    if not network.num_channels:
        raise InputError(
            "has one server, and no network to share", file=f"topology {topology.name}"
        )
    return BandwidthBounds.of(network, cut.most)


class FixedStep:
    """The same placed step in every episode."""

    def __init__(self, problem: StepProblem, plan: Plan, cut: PhaseCut) -> None:
        self.bounds = bounds_of(problem.topology, cut)
        self.instance = BandwidthInstance.build(problem, plan, cut)

    def __call__(self, rng: np.random.Generator) -> BandwidthInstance:
        """The instance."""
        return self.instance


class SyntheticSteps:
    """A fresh random training graph in every episode, in a pipeline over one topology.

    The graph is fused; its groups, in their order, are cut at random places into as many runs as
    there are devices, and the runs put on the devices in random order, each operator in the 1F1B
    order. Every device gets at least one group.

    Args:
        max_groups: groups to fuse it into.

    Raises:
        InputError: there are fewer groups than devices, or a single server.
    """

    def __init__(
        self,
        topology: Topology,
        cost: CostModel,
        cut: PhaseCut,
        *,
        max_groups: int = 8,
    ) -> None:
        self.bounds = bounds_of(topology, cut)
        if max_groups < topology.num_devices:
            raise InputError(
                f"{max_groups} groups for {topology.num_devices} devices", field="max_groups"
            )
        self.graphs = SyntheticInstances(topology, cost, max_groups=max_groups)
        self.topology, self.cut = topology, cut

    def __call__(self, rng: np.random.Generator) -> BandwidthInstance:
        """A random placed step."""
        drawn = self.graphs(rng)
        problem, fusion = drawn.fused, drawn.fusion
        device = fusion.expand_pieces(self._stages(rng, fusion.num_groups))
        order = OneFOneB()(problem.graph, device)
        return BandwidthInstance.build(problem, Plan(Placement(device), order), self.cut)

    def _stages(self, rng: np.random.Generator, groups: int) -> IntArray:
        """(G,) device of each group."""
        devices = min(self.topology.num_devices, groups)
        cuts = np.sort(rng.choice(np.arange(1, groups), devices - 1, replace=False))
        stage = np.searchsorted(cuts, np.arange(groups), side="right")
        return rng.permutation(self.topology.num_devices)[stage].astype(np.int64)


def two_planes() -> Topology:
    """Four servers of one V100, with two 25 Gb/s links each."""
    return planes("two_planes", PcieServer("V100-16GB", 1, PCIE, nics=2), 4, ETHERNET)


def default_generator() -> SyntheticSteps:
    """Random training graphs on `two_planes`."""
    return SyntheticSteps(two_planes(), RooflineCost(), PassBoundaries())


@dataclass(frozen=True)
class FixedCut:
    """The order cut at given positions; (0,) is one phase, as of a static allocation."""

    begins: tuple[int, ...]

    @property
    def most(self) -> int:
        """The only P."""
        return len(self.begins)

    def __call__(self, problem: StepProblem, plan: Plan) -> IntArray:
        """`begins`."""
        del problem, plan
        return np.array(self.begins, dtype=np.int64)


CAPACITY = 1.0  # bytes/s of every link
SERIAL = (1.0, 4.0, 9.0)  # bytes to the three receivers, one after another
TOGETHER = (1.0, 2.0, 4.0)  # bytes to the three receivers, at the same time
SERIAL_OPTIMUM_S = 36.0  # (1 + 2 + 3)^2 / CAPACITY, rates as 1 : 2 : 3
TOGETHER_OPTIMUM_S = 7.0  # (1 + 2 + 4) / CAPACITY, rates in proportion
OPTIMUM_S = SERIAL_OPTIMUM_S + TOGETHER_OPTIMUM_S
LEVELS_OPTIMUM_S = 43.03122292025696  # the same with weights by factors of sqrt(2), tried out
UNIFORM_S = 54.0  # 3 x (1 + 4 + 9), then 3 x 4


def toy_sends() -> tuple[StepProblem, Plan, FixedCut]:
    """One server sends to three others, first in turn, then to all at once; nothing computes.

    Phase 0: server 0 sends V = 1, 4 and 9 bytes to servers 1, 2 and 3, each when the one before has
    arrived. With static rates b that share a
    link of capacity C the phase takes sum V / b, which by Cauchy and Schwarz is at least
    (sum sqrt V)^2 / C = 36 s, at b in proportion to sqrt V.

    Phase 1: server 0 sends U = 1, 2 and 4 bytes to the three at the same time. The phase takes
    max U / b, at least sum U / C = 7 s, at b in proportion to U.

    Latencies are 0. Nothing of a phase can start before it begins and all is over when it ends, so
    the two add up: `OPTIMUM_S` is the optimum over all rates that are static in each phase. Uniform
    shares take 3 x 14 + 3 x 4 = 54 s. `LEVELS_OPTIMUM_S` is the optimum over the 21 levels of
    `meshwright/BandwidthToy-v0`, whose weights have sqrt(8) : 1 for 3 : 1.
    """
    topology = star(4, CAPACITY, np.inf)
    together = list(enumerate(TOGETHER, start=1))  # receiver, bytes
    serial = [[send] for send in enumerate(SERIAL, start=1)]
    rounds = [("0", number, sends) for number, sends in enumerate(serial)]
    builder, device, begins = GraphBuilder("toy_sends"), list[int](), list[int]()
    arrived: list[int] = []  # tensors without bytes: the last round is there
    for phase, number, sends in [*rounds, ("1", 0, together)]:
        if number == 0:
            begins.append(len(device))
        receivers: list[int] = []
        for index, (server, nbytes) in enumerate(sends):
            label = f"{phase}.{number}.{index}"
            sender = builder.add_operator(f"send {label}")
            for tensor in arrived:
                builder.add_use(tensor, sender)
            receivers.append(builder.add_operator(f"receive {label}"))
            builder.add_use(builder.add_tensor(sender, nbytes), receivers[-1])
            device += [0, server]
        arrived = [builder.add_tensor(receiver, 0.0) for receiver in receivers]
    graph = builder.build()
    problem = StepProblem(
        graph=graph,
        topology=topology,
        op_seconds=np.zeros((graph.num_operators, topology.num_devices)),
        transfer_seconds=np.ascontiguousarray(link_transfer_seconds(graph, topology)),
        capacity=topology.memory_bytes,
    )
    plan = Plan(Placement(np.array(device, dtype=np.int64)), np.arange(graph.num_operators))
    return problem, plan, FixedCut(tuple(begins))


def star(servers: int, capacity: float, memory_bytes: float) -> Topology:
    """Servers of one device each around a switch: a send port and a receive port each.

    Args:
        servers: their number S; ports 0..S-1 send, S..2S-1 receive.
        capacity: bytes/s of every port.
        memory_bytes: of every device.
    """
    number = np.arange(servers)
    apart = number[:, None] != number[None, :]
    spec = toy_device("toy", 1.0, memory_bytes)
    return Topology(
        name="star",
        devices=tuple(Device(f"device{d}", spec, d) for d in range(servers)),
        link_class=apart.astype(np.int64),
        class_names=("same device", "between"),
        class_latency=np.zeros(2),
        class_bandwidth=np.array([np.inf, capacity]),
        send_port=np.where(apart, number[:, None], -1).astype(np.int64),
        receive_port=np.where(apart, servers + number[None, :], -1).astype(np.int64),
        port_names=tuple(f"server{s} {way}" for way in ("send", "receive") for s in number),
    )
