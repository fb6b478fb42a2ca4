"""What flows between servers, and the most a pipe can carry."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from agents.linear_program import LinearProgram
from agents.placement.grouping import GroupedProblem
from envs.graphs.contraction import sum_rows
from envs.hardware.network import Network
from envs.hardware.topology import Topology
from envs.network.pipes import pipe_of_pairs
from envs.step.problem import StepProblem

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

INSIDE = -1  # the pipe of two devices of one server

_LP_SECONDS = 5.0  # of one program with a variable per channel; it takes a millisecond


@dataclass(frozen=True, eq=False)
class Pipes:
    """The pipes of a network as the transfers of one problem use them.

    P = S * S pipes between S servers are numbered source * S + destination. A tensor takes
    `latency + volume / rate` seconds through a pipe.
    """

    network: Network
    names: tuple[str, ...]  # (D,) of the devices
    of_pair: IntArray  # (D, D) pipe of each pair of devices, INSIDE within a server
    of_channel: IntArray  # (C,) pipe of each channel
    inner: FloatArray  # (D, D) bytes/s of the slowest link of a pair beside the channels
    latency: FloatArray  # (T, L) seconds, whatever the rate
    volume: FloatArray  # (T, L) bytes
    full: FloatArray  # (P,) bytes/s of each pipe with the network to itself; 0: no channels
    most_out: FloatArray  # (S,) bytes/s that leave each server at most
    most_in: FloatArray  # (S,) bytes/s that reach each server at most

    @classmethod
    def of(cls, problem: StepProblem, whole: Topology) -> Pipes:
        """The pipes of `problem`, an `allocated_problem` at any rates; bytes do not depend on them.

        `whole` is the topology before, which has the network.
        """
        topology, network = problem.topology, whole.network
        servers = network.num_servers
        width = np.where(np.isfinite(topology.class_bandwidth), topology.class_bandwidth, 0.0)
        moving = np.maximum(problem.transfer_seconds - topology.class_latency, 0.0)
        timed = problem.transfer_seconds > 0.0
        source, destination = network.channel_source, network.channel_destination
        apart, pipe = pipe_of_pairs(whole)
        return cls(
            network=network,
            names=tuple(device.name for device in topology.devices),
            of_pair=np.where(apart, pipe, INSIDE),
            of_channel=network.channel_pipe,
            inner=network.inner_bandwidth,
            latency=np.where(timed, topology.class_latency, 0.0),
            volume=np.where(timed, moving, 0.0) * width,
            full=np.array([_most(network, network.channel_pipe == p) for p in range(servers**2)]),
            most_out=np.array([_most(network, source == s) for s in range(servers)]),
            most_in=np.array([_most(network, destination == s) for s in range(servers)]),
        )

    def grouped(self, grouped: GroupedProblem) -> Pipes:
        """The pipes as the fused tensors use them, on all devices or on some.

        A fused tensor has the bytes and the latencies of its members.
        """
        tensor, count = grouped.fusion.tensor, grouped.fusion.graph.num_tensors
        chosen = [self.names.index(device.name) for device in grouped.problem.topology.devices]
        pairs = np.ix_(chosen, chosen)
        return replace(
            self,
            names=tuple(self.names[d] for d in chosen),
            of_pair=self.of_pair[pairs],
            inner=self.inner[pairs],
            latency=sum_rows(self.latency, tensor, count),
            volume=sum_rows(self.volume, tensor, count),
        )

    @property
    def count(self) -> int:
        """P."""
        return self.network.num_servers**2


def _most(network: Network, chosen: BoolArray) -> float:
    """Bytes/s that `chosen` channels (C,) carry together when they have the network."""
    mine = np.flatnonzero(chosen)
    if not len(mine):
        return 0.0
    incidence = network.incidence[:, mine]
    used = np.flatnonzero(incidence.any(axis=1))
    unit = float(network.link_capacity[used].min())
    program = LinearProgram()
    rate = program.add_columns(len(mine), cost=-1.0)
    for link in used:
        room = network.link_capacity[link] / unit
        program.add_row([(rate[incidence[link] > 0.0], 1.0)], upper=room)
    solver = program.solver(time_limit=_LP_SECONDS)
    solver.run()
    return float(-solver.getInfo().objective_function_value * unit)
