"""The vocabulary of decisions: frozen, and able to check themselves against a problem."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from envs.arrays import FloatArray, IntArray
from envs.errors import InputError
from envs.graphs.op_graph import NONE, Phase
from envs.graphs.storage import graph_hash
from envs.hardware.network import Network
from envs.step.problem import StepProblem
from envs.step.rematerialise import Residence, rematerialised
from envs.step.step import Simulator, StepSimulator

MOST_WEIGHT = 4096  # of a pair of devices
LINK_SLACK = 1e-9  # relative; what rates may exceed a link by: rounding


@dataclass(frozen=True, eq=False)
class Placement:
    """Which device runs each operator."""

    device: IntArray  # (N,) 0..D-1

    def violations(self, problem: StepProblem) -> list[str]:
        """What is wrong with this placement, a sentence each; empty when it is feasible.

        Checks coverage, range, support, co-location and resident memory (parameters, gradients,
        optimizer state). The peak of live activations depends on the order: see
        `Plan.violations`.
        """
        graph, topology = problem.graph, problem.topology
        n, d = graph.num_operators, topology.num_devices
        if self.device.shape != (n,):
            return [f"places {self.device.shape} operators, the graph has {n}"]
        outside = np.flatnonzero((self.device < 0) | (self.device >= d))
        if len(outside):
            first = int(outside[0])
            return [f"operator {graph.op_names[first]!r} is on device {self.device[first]} of {d}"]
        found = []
        for op in np.flatnonzero(np.isinf(problem.op_seconds[np.arange(n), self.device])):
            name = topology.devices[self.device[op]].name
            found.append(f"operator {graph.op_names[op]!r} cannot run on {name!r}")
        grouped = np.flatnonzero(graph.colocation != NONE)
        home = np.full(graph.num_groups, NONE)
        home[graph.colocation[grouped]] = self.device[grouped]
        for op in grouped[home[graph.colocation[grouped]] != self.device[grouped]]:
            found.append(
                f"operator {graph.op_names[op]!r} is apart from its co-location group "
                f"{graph.colocation[op]}"
            )
        resident = np.bincount(self.device, weights=graph.state_bytes, minlength=d)
        for index in np.flatnonzero(resident > problem.capacity):
            found.append(
                f"device {topology.devices[index].name!r} holds {resident[index]:.0f} bytes of "
                f"parameters and state, {resident[index] - problem.capacity[index]:.0f} too many"
            )
        return found


@dataclass(frozen=True, eq=False)
class Plan:
    """A placement and an order: one topological permutation of the operators.

    Every device runs its operators in that order; ports serve their transfers by the positions of
    producer and first consumer in it. What becomes of saved activations is part of it: see
    `envs.step.rematerialise`.
    """

    placement: Placement
    order: IntArray  # (N,) operators, first to last
    residence: IntArray | None = None  # (N,) Residence; None: everything is kept
    # where bandwidth was decided, too
    allocation: BandwidthAllocation | Phases | PairWeights | None = None

    def played(self, problem: StepProblem) -> tuple[StepProblem, IntArray, IntArray]:
        """What simulators play: a problem, a placement and an order, with all memory moves in them.

        Those of `problem`, where everything is kept.
        """
        if self.residence is None:
            return problem, self.placement.device, self.order
        made = rematerialised(problem, self.placement.device, self.order, self.residence)
        return made.problem, made.device, made.order

    def document(self, problem: StepProblem) -> dict[str, object]:
        """The plan by names, as plan files have it."""
        graph, devices = problem.graph, problem.topology.devices
        document: dict[str, object] = {
            "graph": {"name": graph.name, "sha256": graph_hash(graph)},
            "topology": problem.topology.name,
            "placement": {
                name: devices[device].name
                for name, device in zip(graph.op_names, self.placement.device, strict=True)
            },
            "order": [graph.op_names[op] for op in self.order],
        }
        if self.residence is not None:
            document["residence"] = {
                graph.op_names[op]: Residence(self.residence[op]).name.lower()
                for op in np.flatnonzero(self.residence).tolist()
            }
        return document

    def violations(self, problem: StepProblem, simulator: Simulator | None = None) -> list[str]:
        """The placement's violations, the order's, the moves', then those of the true peak memory.

        The peak is that of the plan played by `simulator`, of the problem that is `played` under
        `single_port` by default; it is checked when nothing else is wrong, since only then is it
        defined.
        """
        found = self.placement.violations(problem)
        n = problem.graph.num_operators
        if self.order.shape != (n,) or not np.array_equal(np.sort(self.order), np.arange(n)):
            return [*found, f"the order is not a permutation of the {n} operators"]
        position = np.empty(n, np.int64)
        position[self.order] = np.arange(n)
        edges = problem.graph.edges
        for u, v, _ in edges[position[edges[:, 0]] >= position[edges[:, 1]]]:
            names = problem.graph.op_names
            found.append(f"operator {names[v]!r} is ordered before its input {names[u]!r}")
        found += self._wrong_moves(problem)
        if found:
            return found
        step, device, order = self.played(problem)
        simulator = StepSimulator(step) if simulator is None else simulator
        peak = simulator.run(device, order).peak_memory
        for index in np.flatnonzero(peak > step.capacity):
            found.append(
                f"device {step.topology.devices[index].name!r} needs {peak[index]:.0f} bytes at "
                f"its peak, {peak[index] - step.capacity[index]:.0f} too many"
            )
        return found

    def _wrong_moves(self, problem: StepProblem) -> list[str]:
        graph, residence = problem.graph, self.residence
        if residence is None:
            return []
        if residence.shape != (graph.num_operators,):
            return [f"says of {residence.shape} operators what becomes of their output"]
        unknown = ~np.isin(residence, list(Residence))
        odd = np.flatnonzero(unknown | ((residence != 0) & (graph.phase != Phase.FORWARD)))
        return [
            f"operator {graph.op_names[op]!r}: no residence {residence[op]}, only forward "
            "operators are computed again or moved to the host"
            for op in odd
        ]


@dataclass(frozen=True, eq=False)
class BandwidthAllocation:
    """How much of its links every channel of a network gets, for a whole step.

    A channel leads from a source NIC to a destination server over given links
    (`envs.hardware.network.Network`). All channels from one server to another together are the
    *pipe* between the two. Rates are static and not borrowed: what a pipe does not use, no other
    pipe gets.
    """

    rate: FloatArray  # (C,) bytes/s

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "rate", np.asarray(self.rate, dtype=np.float64))
        except (TypeError, ValueError):
            raise InputError(f"{self.rate!r} are no numbers", field="rate") from None

    def pipes(self, network: Network) -> FloatArray:
        """(S, S) bytes/s from each server to each other one; 0 on the diagonal."""
        total = np.zeros((network.num_servers, network.num_servers))
        np.add.at(total, (network.channel_source, network.channel_destination), self.rate)
        return total

    def violations(self, network: Network) -> list[str]:
        """What is wrong with this allocation, a sentence each; empty when it is feasible.

        Rates are finite and not negative, and no link carries more than its capacity.
        """
        if self.rate.shape != (network.num_channels,):
            return [f"allocates {self.rate.shape} rates, there are {network.num_channels} channels"]
        found = [
            f"channel {network.channel_names[channel]!r} has rate {self.rate[channel]}"
            for channel in np.flatnonzero(~np.isfinite(self.rate) | (self.rate < 0))
        ]
        if found:
            return found
        load = network.incidence @ self.rate
        for link in np.flatnonzero(load > network.link_capacity * (1.0 + LINK_SLACK)):
            found.append(
                f"link {network.link_names[link]!r} is given {load[link]:.6g} bytes/s, "
                f"{load[link] - network.link_capacity[link]:.6g} too many"
            )
        return found


@dataclass(frozen=True, eq=False)
class PairWeights:
    """How transfers share links of which nothing is left idle: a weight for every pair of devices.

    At every instant the rates are weighted max-min fair: a transfer of a pair of weight 2 has twice
    what others have where they are held up by the same link. Equal weights are fair sharing
    (`envs.step.fair`). Weights are whole numbers, as switches and hosts take them, whose sums are
    exact.
    """

    weight: IntArray  # (D, D) of transfers from each device to each other one, 1..MOST_WEIGHT

    @classmethod
    def fair(cls, devices: int) -> PairWeights:
        """Of as many devices, all 1."""
        return cls(np.ones((devices, devices), np.int64))

    def violations(self, devices: int) -> list[str]:
        """What is wrong with these weights, a sentence each; empty when nothing is."""
        if self.weight.shape != (devices, devices):
            return [f"gives {self.weight.shape} weights, there are {devices} devices"]
        pairs = np.argwhere((self.weight < 1) | (self.weight > MOST_WEIGHT)).tolist()
        reason = f"no whole number from 1 to {MOST_WEIGHT}"
        return [
            f"the weight from device {i} to {j} is {self.weight[i, j]}, {reason}" for i, j in pairs
        ]


@dataclass(frozen=True, eq=False)
class Phases:
    """An allocation of bandwidth for every phase of a step."""

    begins: IntArray  # (P,) first position of each phase, see `envs.bandwidth.types`
    allocations: tuple[BandwidthAllocation, ...]
