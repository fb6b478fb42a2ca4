"""`MaxLoadProblem`: the time per sample of a pipeline is the load of its busiest device."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from envs.arrays import FloatArray, IntArray
from envs.graphs.op_graph import NONE, OpGraph, Phase
from envs.partition.problem import HostTraffic, cycle, host_of
from envs.step.plans import Placement
from envs.step.problem import StepProblem


@dataclass(frozen=True, eq=False)
class MaxLoadProblem:
    """Minimise the largest load of a device, over placements and, if asked, contiguous ones.

    The load of a device is the compute seconds of its operators, forward and backward together,
    plus its traffic: each message it sends, once, and each it receives, once. The host CPU pays for
    no traffic. Co-located operators stay together, an operator is where it is supported, and the
    state on a device fits its capacity. Tarnawski, Phanishayee, Devanur, Mahajan, Nina Paravecino,
    "Efficient Algorithms for Device Placement of DNN Graph Operators", NeurIPS 2020, section 5.

    A placement is contiguous when the devices can be put in a line along which the forward pass
    only goes forward: the first k devices of the line hold an ideal (a downset) of the forward
    graph, for every k. Backward operators go with the forward operators they are co-located with.
    A backward operator that is co-located with no forward operator stands for a forward operator
    of its own that mirrors it: what it reads from and gives to other backward operators bounds it
    as in a backward pass that runs down the same line. Operators of the optimizer are not bound.
    """

    step: StepProblem
    contiguous: bool

    @cached_property
    def host(self) -> int:
        """The device that is the host CPU, NONE where no device is."""
        return host_of(self.step.topology)

    @cached_property
    def traffic(self) -> HostTraffic:
        """The messages, and how long each accelerator is busy with each of them."""
        return HostTraffic.of(self.step, self.host)

    @cached_property
    def precedence(self) -> IntArray:
        """(P, 2) operators u, v: in a contiguous placement u's device is not behind v's."""
        return _precedence(self.step.graph)

    def loads(self, device: IntArray) -> FloatArray:
        """(D,) seconds each device computes, sends and receives; inf if unsupported."""
        compute = np.bincount(
            device,
            weights=self.step.op_seconds[np.arange(len(device)), device],
            minlength=self.step.topology.num_devices,
        )
        return np.asarray(compute + self.traffic.busy_seconds(device))

    def objective(self, device: IntArray) -> float:
        """Seconds of the busiest device under placement `device` (N,)."""
        return float(self.loads(device).max())

    def violations(self, device: IntArray) -> list[str]:
        """What is wrong with placement `device` (N,): those of `Placement`, and contiguity."""
        found = Placement(device).violations(self.step)
        if found or not self.contiguous:
            return found
        names = [d.name for d in self.step.topology.devices]
        ring = cycle(len(names), device[self.precedence])
        if ring:
            route = " -> ".join(names[d] for d in [*ring, ring[0]])
            found.append(f"is not contiguous: the forward pass goes round {route}")
        return found


def _precedence(graph: OpGraph) -> IntArray:
    """(P, 2) forward edges as they are, backward edges of operators without a forward reversed."""
    u, v = graph.edges[:, 0], graph.edges[:, 1]
    grouped = graph.colocation != NONE
    anchored = np.zeros(graph.num_groups + 1, dtype=np.bool_)  # the last entry is that of NONE
    anchored[graph.colocation[grouped & (graph.phase == Phase.FORWARD)]] = True
    orphan = (graph.phase == Phase.BACKWARD) & ~anchored[graph.colocation]
    forward = (graph.phase[u] == Phase.FORWARD) & (graph.phase[v] == Phase.FORWARD)
    backward = (graph.phase[u] == Phase.BACKWARD) & (graph.phase[v] == Phase.BACKWARD)
    mirrored = backward & (orphan[u] | orphan[v])
    pairs = np.concatenate([np.stack([u, v], axis=1)[forward], np.stack([v, u], axis=1)[mirrored]])
    return np.unique(pairs, axis=0).reshape(-1, 2)
