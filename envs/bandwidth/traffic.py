"""What a placed step sends between servers, phase by phase."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from envs.step.plans import Plan
from envs.step.problem import StepProblem

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class PhaseTraffic:
    """What passes each pipe in each of P phases.

    The pipe from server s to server e has number s x S + e. A tensor is sent once to every
    receiving device and belongs to the phase of its producer. Tensors without bytes are no
    transfers.
    """

    volume: FloatArray  # (P, S * S) bytes
    count: IntArray  # (P, S * S) transfers


def phase_traffic(problem: StepProblem, plan: Plan, begins: IntArray) -> PhaseTraffic:
    """The traffic of `plan` cut at `begins` (P,).

    The bytes of a tensor are those its transfer time tells of: (seconds - latency) x bandwidth of
    its link class.
    """
    graph, topology = problem.graph, problem.topology
    device, server, servers = plan.placement.device, topology.server, topology.num_servers
    position = np.empty(graph.num_operators, dtype=np.int64)
    position[plan.order] = np.arange(graph.num_operators)
    u, v, tensor = graph.edges.T
    across = server[device[u]] != server[device[v]]
    deliveries = np.unique(tensor[across] * topology.num_devices + device[v[across]])
    tensor, target = deliveries // topology.num_devices, deliveries % topology.num_devices
    source = device[graph.producer[tensor]]
    kind = topology.link_class[source, target]
    moving = problem.transfer_seconds[tensor, kind] - topology.class_latency[kind]
    bandwidth = topology.class_bandwidth[kind]
    sent = moving > 0.0
    nbytes = moving[sent] * bandwidth[sent]
    pipe = (server[source] * servers + server[target])[sent]
    phase = np.searchsorted(begins, position[graph.producer[tensor[sent]]], side="right") - 1
    volume = np.zeros((len(begins), servers * servers))
    count = np.zeros((len(begins), servers * servers), dtype=np.int64)
    np.add.at(volume, (phase, pipe), nbytes)
    np.add.at(count, (phase, pipe), 1)
    return PhaseTraffic(volume, count)
