"""`PartitionProblem`: what the max-load and the latency objective have in common."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from envs.arrays import FloatArray, IntArray
from envs.errors import InputError
from envs.graphs.op_graph import NONE, OpGraph
from envs.hardware.topology import Topology
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


@dataclass(frozen=True, eq=False)
class HostTraffic:
    """M messages in compressed sparse rows: what is sent once and received once per device.

    A message is a tensor. Only in a graph with a published table of link times, the tensors of one
    operator with the same times are one message: such a table gives an operator's output one time,
    whoever reads it and however much of it is read.

    `seconds[m, d]` is how long sending message m keeps device d busy, and how long receiving it
    does: the time of the slower direction of d's link with the host. Where no device is the host,
    it is that of d's slowest link with any other device.
    """

    tensor: IntArray  # (M,) the first tensor of each message
    producer: IntArray  # (M,) operator
    consumer_ptr: IntArray  # (M + 1,) row pointer into `consumer`
    consumer: IntArray  # (C,) operators, ascending and unique in each row
    seconds: FloatArray  # (M, D), the host's column is zero

    @classmethod
    def of(cls, step: StepProblem, host: int) -> HostTraffic:
        """The messages of `step` when device `host` (or NONE) is the host."""
        graph, count = step.graph, step.topology.num_devices
        message = _messages(graph)
        total = int(message.max(initial=NONE)) + 1
        first = np.full(total, graph.num_tensors, dtype=np.int64)
        np.minimum.at(first, message, np.arange(graph.num_tensors))
        used = np.unique(np.stack([message[graph.edges[:, 2]], graph.edges[:, 1]], axis=1), axis=0)
        link = step.topology.link_class
        seconds = np.zeros((total, count))
        for device in range(count):
            if device == host:
                continue
            ends = np.delete(np.arange(count), device) if host == NONE else np.array([host])
            classes = np.unique(np.concatenate([link[device, ends], link[ends, device]]))
            if len(classes):
                seconds[:, device] = step.transfer_seconds[first][:, classes].max(axis=1)
        return cls(
            tensor=first,
            producer=graph.producer[first],
            consumer_ptr=np.concatenate(
                [[0], np.cumsum(np.bincount(used[:, 0], minlength=total))]
            ).astype(np.int64),
            consumer=np.ascontiguousarray(used[:, 1]),
            seconds=seconds,
        )

    @property
    def num_messages(self) -> int:
        """M."""
        return len(self.producer)

    def uses(self) -> IntArray:
        """(C, 2) rows of message, consumer."""
        message = np.repeat(np.arange(self.num_messages), np.diff(self.consumer_ptr))
        return np.stack([message, self.consumer], axis=1)

    def busy_seconds(self, device: IntArray) -> FloatArray:
        """(D,) seconds each device sends and receives under placement `device` (N,)."""
        count = self.seconds.shape[1]
        uses = self.uses()
        source, target = device[self.producer[uses[:, 0]]], device[uses[:, 1]]
        leaves = source != target
        sent = np.unique(uses[leaves, 0])
        received = np.unique(uses[leaves, 0] * count + target[leaves])
        busy = np.zeros(count)
        for message, end in (
            (sent, device[self.producer[sent]]),
            (received // count, received % count),
        ):
            busy += np.bincount(end, weights=self.seconds[message, end], minlength=count)
        return busy


def _messages(graph: OpGraph) -> IntArray:
    """(T,) message of every tensor, numbered by the first of its tensors."""
    if not graph.link_classes:
        return np.arange(graph.num_tensors)
    known: dict[tuple[int, bytes], int] = {}
    rows = [row.tobytes() for row in graph.link_seconds]
    keys = zip(graph.producer.tolist(), rows, strict=True)
    return np.array([known.setdefault(key, len(known)) for key in keys], dtype=np.int64)
