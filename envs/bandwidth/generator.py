"""What an episode is about: placed steps whose network is to be shared, one or many."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from envs.arrays import IntArray
from envs.bandwidth.instance import BandwidthInstance
from envs.bandwidth.observation import BandwidthBounds
from envs.bandwidth.phases import PassBoundaries, PhaseCut
from envs.cost import RooflineCost
from envs.errors import InputError
from envs.graphs.synthetic import synthetic_training_graph
from envs.hardware.builders import planes
from envs.hardware.servers import PcieServer
from envs.hardware.topology import Topology
from envs.step.fusion import fuse, fused_problem
from envs.step.order import OneFOneB
from envs.step.plans import Placement, Plan
from envs.step.problem import CostModel, StepProblem


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
    return BandwidthBounds(
        channels=network.num_channels,
        links=network.num_links,
        incidences=len(network.channel_links),
        servers=network.num_servers,
        phases=cut.most,
    )


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
        layers: tuple[int, int] = (4, 8),
        width: int = 2,
        micro_batches: tuple[int, int] = (2, 4),
        max_groups: int = 8,
    ) -> None:
        self.bounds = bounds_of(topology, cut)
        if max_groups < topology.num_devices:
            raise InputError(
                f"{max_groups} groups for {topology.num_devices} devices", field="max_groups"
            )
        self.topology, self.cost, self.cut = topology, cost, cut
        self.layers, self.width, self.micro_batches = layers, width, micro_batches
        self.max_groups = max_groups

    def __call__(self, rng: np.random.Generator) -> BandwidthInstance:
        """A random placed step."""
        layers = int(rng.integers(*self.layers, endpoint=True))
        micro_batches = int(rng.integers(*self.micro_batches, endpoint=True))
        graph = synthetic_training_graph(rng, layers, self.width, micro_batches)
        whole = StepProblem.build(graph, self.topology, self.cost, ("one_f_one_b",))
        fusion = fuse(whole, self.max_groups)
        problem = fused_problem(whole, fusion)
        device = fusion.expand_pieces(self._stages(rng, fusion.num_groups))
        order = OneFOneB()(problem.graph, device)
        return BandwidthInstance.build(problem, Plan(Placement(device), order), self.cut)

    def _stages(self, rng: np.random.Generator, groups: int) -> IntArray:
        """(G,) device of each group."""
        devices = min(self.topology.num_devices, groups)
        cuts = np.sort(rng.choice(np.arange(1, groups), devices - 1, replace=False))
        stage = np.searchsorted(cuts, np.arange(groups), side="right")
        return rng.permutation(self.topology.num_devices)[stage].astype(np.int64)


def default_generator() -> SyntheticSteps:
    """Random training graphs on four servers of one V100, with two 25 Gb/s links each."""
    pcie = {"medium": "PCIe 3.0 x16", "bandwidth": "15.75GB/s", "latency": "2us"}
    network = {"medium": "Ethernet 25G", "bandwidth": "25Gbps", "latency": "5us"}
    topology = planes("two_planes", PcieServer("V100-16GB", 1, pcie, nics=2), 4, network)
    return SyntheticSteps(topology, RooflineCost(), PassBoundaries())
