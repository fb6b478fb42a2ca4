"""`PartitionProblem`: what the max-load and the latency objective have in common."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import networkx
import numpy as np

from envs.arrays import FloatArray, IntArray, sums_before
from envs.errors import InputError
from envs.graphs.op_graph import NONE, OpGraph, Phase
from envs.hardware.topology import Topology
from envs.step.plans import Placement
from envs.step.problem import StepProblem

_CPU = re.compile(r"cpu\b|cpu[-_]", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class PartitionProblem(ABC):
    """Put each of the N operators of `step.graph` on one of the D devices of `step.topology`.

    One of the devices may be the host CPU; the others are accelerators. All traffic passes through
    the host: an accelerator that sends a message, or receives one, is busy for the seconds of its
    link to the host (`HostTraffic`), and the host pays nothing.
    """

    step: StepProblem  # graph, topology, durations and capacities

    @cached_property
    def host(self) -> int:
        """The device that is the host CPU, NONE where no device is."""
        return host_of(self.step.topology)

    @cached_property
    def traffic(self) -> HostTraffic:
        """The messages, and how long each accelerator is busy with each of them."""
        return HostTraffic.of(self.step, self.host)

    @abstractmethod
    def objective(self, device: IntArray) -> float:
        """Seconds of placement `device` (N,), which need not be feasible; inf if unsupported."""

    def violations(self, device: IntArray) -> list[str]:
        """What is wrong with placement `device` (N,), a sentence each; empty: feasible."""
        return Placement(device).violations(self.step) or self._circles(device)

    @abstractmethod
    def _circles(self, device: IntArray) -> list[str]:
        """What is wrong with a supported placement that fits."""


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


def route(names: list[str], arcs: IntArray) -> str:
    """The names of the nodes of a cycle of `arcs`, the first again at its end; empty: acyclic."""
    ring = cycle(arcs)
    return " -> ".join(names[node] for node in ring + ring[:1])


def cycle(arcs: IntArray) -> list[int]:
    """Nodes that `arcs` (A, 2) join to a cycle, in its order; empty: acyclic."""
    graph = networkx.DiGraph(np.unique(arcs[arcs[:, 0] != arcs[:, 1]], axis=0).tolist())
    try:
        return [node for node, _ in networkx.find_cycle(graph)]
    except networkx.NetworkXNoCycle:
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
            consumer_ptr=sums_before(np.bincount(used[:, 0], minlength=total)),
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


@dataclass(frozen=True, eq=False)
class LatencyProblem(PartitionProblem):
    """Minimise when the last operator ends, each accelerator being called once.

    All operators on an accelerator are one call. It waits until every message it reads is there;
    then it receives them, computes, and sends what others read, one after another; everything it
    made is available when the call ends. On the host CPU each operator runs as soon as its inputs
    are available, any number of them at once, and messages between the host's operators are free.
    An accelerator whose operators both feed and wait for another device's cannot be one call: a
    placement must be acyclic after each accelerator has been contracted to a point. Co-location,
    support and capacity are as everywhere. Tarnawski, Phanishayee, Devanur, Mahajan, Nina
    Paravecino, "Efficient Algorithms for Device Placement of DNN Graph Operators", NeurIPS 2020,
    section 4 (q = 1).
    """

    def objective(self, device: IntArray) -> float:
        """Seconds until the last operator ends; inf when unsupported or not in single calls."""
        return float(self.finish(device).max(initial=0.0))

    def finish(self, device: IntArray) -> FloatArray:
        """(N,) seconds when what each operator makes is available; inf as in `objective`."""
        n, count = self.step.graph.num_operators, self.step.topology.num_devices
        seconds = self.step.op_seconds[np.arange(n), device]
        block = self._blocks(device)
        duration = np.bincount(block, weights=seconds, minlength=count + n).astype(np.float64)
        duration[:count] += self.traffic.busy_seconds(device)
        return _longest_paths(duration, self._arcs(block))[block]

    def _circles(self, device: IntArray) -> list[str]:
        """Accelerators that are called more than once."""
        names = self.step.topology.device_names
        names += [repr(name) for name in self.step.graph.op_names]
        around = route(names, self._arcs(self._blocks(device)))
        return [f"needs more than one call of a device: data goes round {around}"] if around else []

    def _blocks(self, device: IntArray) -> IntArray:
        """(N,) what runs as one: the device 0..D-1, or D + operator on the host."""
        count = self.step.topology.num_devices
        return np.where(device == self.host, count + np.arange(len(device)), device)

    def _arcs(self, block: IntArray) -> IntArray:
        """(A, 2) dependencies between different blocks."""
        arcs: IntArray = np.unique(block[self.step.graph.edges[:, :2]], axis=0)
        return np.asarray(arcs[arcs[:, 0] != arcs[:, 1]])


def _longest_paths(duration: FloatArray, arcs: IntArray) -> FloatArray:
    """(B,) end of each block, started when all before it have ended; inf on and behind cycles."""
    count = len(duration)
    order = np.argsort(arcs[:, 0], kind="stable")
    ptr = np.searchsorted(arcs[order, 0], np.arange(count + 1)).tolist()
    following = arcs[order, 1].tolist()
    waiting = np.bincount(arcs[:, 1], minlength=count).tolist()
    length = duration.tolist()
    start, end = [0.0] * count, [np.inf] * count
    ready = [b for b in range(count) if not waiting[b]]
    while ready:
        b = ready.pop()
        end[b] = start[b] + length[b]
        for k in range(ptr[b], ptr[b + 1]):
            c = following[k]
            start[c] = max(start[c], end[b])
            waiting[c] -= 1
            if not waiting[c]:
                ready.append(c)
    return np.array(end)


@dataclass(frozen=True, eq=False)
class MaxLoadProblem(PartitionProblem):
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

    contiguous: bool

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

    def _circles(self, device: IntArray) -> list[str]:
        """Where a placement that has to be contiguous is not."""
        names = self.step.topology.device_names
        around = route(names, device[self.precedence]) if self.contiguous else ""
        return [f"is not contiguous: the forward pass goes round {around}"] if around else []


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
