"""`PartitionProblem`: what the max-load and the latency objective have in common."""

from __future__ import annotations

import re
from typing import Protocol

import numpy as np

from envs.errors import InputError
from envs.graphs.op_graph import NONE, IntArray
from envs.hardware.topology import Topology
from envs.partition.traffic import HostTraffic
from envs.step.problem import StepProblem

_CPU = re.compile(r"cpu\b|cpu[-_]", re.IGNORECASE)


class PartitionProblem(Protocol):
    """Put each of the N operators of `step.graph` on one of the D devices of `step.topology`.

    One of the devices may be the host CPU; the others are accelerators. All traffic passes through
    the host: an accelerator that sends a message, or receives one, is busy for the seconds of its
    link to the host (`HostTraffic`), and the host pays nothing.
    """

    @property
    def step(self) -> StepProblem:
        """Graph, topology, durations and capacities."""

    @property
    def host(self) -> int:
        """The device that is the host CPU, NONE where no device is."""

    @property
    def traffic(self) -> HostTraffic:
        """The messages, and how long each accelerator is busy with each of them."""

    def objective(self, device: IntArray) -> float:
        """Seconds of placement `device` (N,), which need not be feasible; inf if unsupported."""

    def violations(self, device: IntArray) -> list[str]:
        """What is wrong with placement `device` (N,), a sentence each; empty: feasible."""


def host_of(topology: Topology) -> int:
    """The device whose datasheet is a CPU's, NONE where none is.

    A datasheet is a CPU's when its name begins with the word CPU, in any case: `CPU` of the
    catalogue, `cpu` of the published graphs, `CPU-avx512` of a custom device.

    Raises:
        InputError: several devices are CPUs; the objectives know one host.
    """
    hosts = [i for i, device in enumerate(topology.devices) if _CPU.match(device.spec.name)]
    if len(hosts) > 1:
        names = ", ".join(topology.devices[i].name for i in hosts)
        raise InputError(
            f"has {len(hosts)} CPUs ({names}), a partition knows one host",
            file=f"topology {topology.name}",
            field="devices",
        )
    return hosts[0] if hosts else NONE


def cycle(size: int, arcs: IntArray) -> list[int]:
    """Some of 0..size-1 that `arcs` (A, 2) join to a cycle, in its order; empty: acyclic."""
    following: list[list[int]] = [[] for _ in range(size)]
    for u, v in np.unique(arcs[arcs[:, 0] != arcs[:, 1]], axis=0).tolist():
        following[u].append(v)
    visited, place = [False] * size, [NONE] * size  # place on the path being followed
    for root in range(size):
        path = [root] if not visited[root] else []
        while path:
            node = path[-1]
            if not visited[node]:
                visited[node], place[node] = True, len(path) - 1
            if not following[node]:
                place[node] = NONE
                path.pop()
                continue
            v = following[node].pop()
            if place[v] != NONE:
                return path[place[v] :]
            if not visited[v]:
                path.append(v)
    return []
