"""What an episode is about: instances of the placement problem, one or many."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from envs.arrays import IntArray
from envs.bounds import Count, Share, bounded
from envs.cost import RooflineCost
from envs.graphs.contraction import Fusion
from envs.graphs.synthetic import synthetic_training_graph
from envs.hardware.builders import mixed
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
from envs.step.problem import CostModel, StepProblem


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
        layers: tuple[int, int] = (4, 8),
        width: int = 2,
        micro_batches: tuple[int, int] = (2, 4),
        max_groups: int = 16,
        completion: CompletionRule = FastestDevice(),
    ) -> None:
        self.topology, self.cost = topology, cost
        self.layers, self.width, self.micro_batches = layers, width, micro_batches
        self.max_groups = max_groups
        self.max_edges = max(1, max_groups * (max_groups - 1))
        self.num_devices = topology.num_devices
        self.completion = completion

    def __call__(self, rng: np.random.Generator) -> PlacementInstance:
        """A random instance."""
        layers = int(rng.integers(*self.layers, endpoint=True))
        micro_batches = int(rng.integers(*self.micro_batches, endpoint=True))
        graph = synthetic_training_graph(rng, layers, self.width, micro_batches)
        problem = StepProblem.build(graph, self.topology, self.cost)
        return PlacementInstance.build(problem, self.max_groups, self.completion)


def default_generator() -> SyntheticInstances:
    """Random training graphs on a server of two V100 and one of two P100, 25 Gb/s between."""
    pcie = {"medium": "PCIe 3.0 x16", "bandwidth": "15.75GB/s", "latency": "2us"}
    network = {"medium": "Ethernet 25G", "bandwidth": "25Gbps", "latency": "5us"}
    servers = [PcieServer("V100-16GB", 2, pcie), PcieServer("P100-16GB", 2, pcie)]
    return SyntheticInstances(mixed("two_v100_two_p100", servers, network), RooflineCost())
