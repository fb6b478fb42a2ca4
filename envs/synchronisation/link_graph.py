"""`LinkGraph`: who takes part in a synchronisation, and the directed links between all vertices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from envs.arrays import BoolArray, FloatArray, IntArray
from envs.errors import InputError, require_one_of
from envs.hardware.fabric import NodeKind
from envs.hardware.topology import Topology
from envs.units import check_keys, parse_bandwidth, parse_seconds, read_quantity


@dataclass(frozen=True, eq=False)
class LinkGraph:
    """V vertices and K directed links, at most one from a vertex to another.

    A *participant* has a vector of its own and wants the result; it can add vectors. Any vertex
    that `sums` can add, and send what it holds on to several others: participants, switches with
    aggregation, parameter servers. A vertex that `forwards` passes on what is not its own,
    unchanged and to one other vertex: switches, NICs, and participants that relay.

    Raises:
        InputError: naming the link or vertex at fault; fewer than two participants.
    """

    name: str
    vertices: tuple[str, ...]  # (V,) unique names
    participant: BoolArray  # (V,)
    sums: BoolArray  # (V,) all participants, and others
    forwards: BoolArray  # (V,)
    source: IntArray  # (K,) vertex
    destination: IntArray  # (K,) vertex
    capacity: FloatArray  # (K,) bytes/s, positive and finite
    latency: FloatArray  # (K,) seconds

    def __post_init__(self) -> None:
        where = f"links of {self.name}"
        if len(set(self.vertices)) != len(self.vertices):
            twice = next(x for x in self.vertices if self.vertices.count(x) > 1)
            raise InputError("stands twice", file=where, record=twice)
        for number in np.flatnonzero(self.source == self.destination).tolist():
            raise InputError("joins a vertex to itself", file=where, record=self.link_name(number))
        for field, wrong in (
            ("capacity", ~((self.capacity > 0) & np.isfinite(self.capacity))),
            ("latency", ~((self.latency >= 0) & np.isfinite(self.latency))),
        ):
            for index in np.flatnonzero(wrong).tolist():
                value = getattr(self, field)[index]
                raise InputError(
                    f"is {value}", file=where, record=self.link_name(index), field=field
                )
        if self.participant.sum() < 2:
            raise InputError("has fewer than two participants", file=where)
        for vertex in np.flatnonzero(self.participant & ~self.sums):
            raise InputError("takes part and cannot add", file=where, record=self.vertices[vertex])

    @property
    def num_vertices(self) -> int:
        """V."""
        return len(self.vertices)

    @property
    def num_links(self) -> int:
        """K."""
        return len(self.source)

    @cached_property
    def participants(self) -> tuple[int, ...]:
        """(n,) vertices, ascending: rank i is `participants[i]`."""
        return tuple(np.flatnonzero(self.participant).tolist())

    @cached_property
    def link(self) -> dict[tuple[int, int], int]:
        """The link from one vertex to another."""
        ends = zip(self.source.tolist(), self.destination.tolist(), strict=True)
        return {pair: number for number, pair in enumerate(ends)}

    def links_of(self, way: Sequence[int]) -> list[int]:
        """The links of a way from vertex to vertex."""
        return [self.link[pair] for pair in pairwise(way)]

    def link_name(self, number: int) -> str:
        """Its two ends."""
        ends = self.source[number], self.destination[number]
        return f"{self.vertices[ends[0]]} -> {self.vertices[ends[1]]}"


def residual(network: LinkGraph, used: FloatArray) -> LinkGraph:
    """What others leave of a network: links that are used up are gone.

    Args:
        used: (K,) bytes/s that others take of every link.

    Raises:
        InputError: as `LinkGraph`, or others take more than a link has.
    """
    left = network.capacity - used
    for number in np.flatnonzero(~((used >= 0) & (left >= -1e-9 * network.capacity))).tolist():
        fault, where = f"others take {used[number]} of it", f"links of {network.name}"
        raise InputError(fault, file=where, record=network.link_name(number))
    kept = left > 1e-9 * network.capacity
    return replace(
        network,
        source=network.source[kept],
        destination=network.destination[kept],
        capacity=left[kept],
        latency=network.latency[kept],
    )


@dataclass(frozen=True)
class VertexSpec:
    """A vertex by name, as topology files and tests write it."""

    name: str
    participant: bool
    sums: bool
    forwards: bool


def graph_of(
    name: str,
    vertices: Sequence[VertexSpec],
    links: Sequence[tuple[str, str, float, float]],  # source, destination, bytes/s, seconds
) -> LinkGraph:
    """A graph from vertices and directed links by name; parallel links become one.

    Raises:
        InputError: a link joins an unknown vertex; as `LinkGraph`.
    """
    number = {vertex.name: index for index, vertex in enumerate(vertices)}
    merged: dict[tuple[int, int], tuple[float, float]] = {}
    for source, destination, capacity, latency in links:
        for end in (source, destination):
            if end not in number:
                raise InputError(f"unknown vertex {end!r}", file=f"links of {name}")
        pair = number[source], number[destination]
        before, slowest = merged.get(pair, (0.0, 0.0))
        merged[pair] = before + capacity, max(slowest, latency)
    ends = np.array(list(merged), dtype=np.int64).reshape(-1, 2)
    facts = np.array(list(merged.values()), dtype=np.float64).reshape(-1, 2)
    flags = np.array([(v.participant, v.sums, v.forwards) for v in vertices], dtype=np.bool_)
    names = tuple(vertex.name for vertex in vertices)
    return LinkGraph(name, names, *flags.reshape(-1, 3).T, *ends.T, *facts.T)


KINDS = {  # of vertices in files: takes part, sums, forwards
    "participant": (True, True, False),
    "relay": (True, True, True),  # a participant that passes on what is not its own
    "switch": (False, False, True),
    "adding_switch": (False, True, True),
    "server": (False, True, False),  # of parameters; a device that does not take part
    "end": (False, False, False),
}
_LINK = ("source", "destination", "bandwidth", "latency", "both")


def described(name: str, vertices: Mapping[str, str], links: Sequence[Any]) -> LinkGraph:
    """A graph as files describe it.

    Args:
        vertices: `KINDS` by name.
        links: sections {source, destination, bandwidth, latency, both}; both: also back.

    Raises:
        InputError: naming the key at fault; as `LinkGraph`.
    """
    for vertex, kind in vertices.items():
        require_one_of(kind, KINDS, field=f"vertices.{vertex}")
    joined: list[tuple[str, str, float, float]] = []
    for number, section in enumerate(links):
        key = f"links.{number}"
        row = check_keys(section, _LINK, key=key)
        rate = read_quantity(parse_bandwidth, row["bandwidth"], key=f"{key}.bandwidth")
        latency = read_quantity(parse_seconds, row["latency"], key=f"{key}.latency")
        ends = str(row["source"]), str(row["destination"])
        for a, b in (ends, ends[::-1])[: 2 if row["both"] else 1]:
            joined.append((a, b, rate, latency))
    return graph_of(name, [VertexSpec(v, *KINDS[kind]) for v, kind in vertices.items()], joined)


def description(graph: LinkGraph) -> dict[str, Any]:
    """What `described` makes the graph of."""
    kinds = {flags: kind for kind, flags in KINDS.items()}
    flags = zip(*(x.tolist() for x in (graph.participant, graph.sums, graph.forwards)), strict=True)
    facts = zip(graph.link, graph.capacity.tolist(), graph.latency.tolist(), strict=True)
    name = graph.vertices
    return {
        "name": graph.name,
        "vertices": {v: kinds[flag] for v, flag in zip(name, flags, strict=True)},
        "links": [
            dict(zip(_LINK, (name[a], name[b], rate, latency, False), strict=True))
            for (a, b), rate, latency in facts
        ],
    }


def links_of_topology(
    topology: Topology,
    devices: Sequence[int] | None = None,
    media: Sequence[str] | None = None,
    aggregation: bool = False,
    relay: bool = False,
) -> LinkGraph:
    """The links of a topology's fabric; its ports where only those are known.

    Args:
        devices: that take part; all by default. Others stay, as vertices that do not take part.
        media: beginnings of the media of links that are used; all by default.
        aggregation: whether switches between servers can add.
        relay: whether devices forward what is not theirs, as GPUs do over NVLink.

    Raises:
        InputError: as `LinkGraph`.
    """
    taking = set(range(topology.num_devices) if devices is None else devices)
    names = topology.device_names
    vertices = [VertexSpec(x, d in taking, True, relay) for d, x in enumerate(names)]
    links: list[tuple[str, str, float, float]] = []
    fabric = topology.fabric
    if fabric is not None:
        for node in fabric.nodes(NodeKind.NIC):
            vertices.append(VertexSpec(node, False, False, True))
        for node in fabric.nodes(NodeKind.SWITCH):
            between = fabric.server_of(node) is None
            vertices.append(VertexSpec(node, False, aggregation and between, True))
        for a, b in fabric.graph.edges:
            spec = fabric.link(a, b)
            if media is None or any(spec.medium.startswith(medium) for medium in media):
                links += [(x, y, spec.bandwidth, spec.latency) for x, y in ((a, b), (b, a))]
        joined = {end for link in links for end in link[:2]}
        kept = [v for v in vertices if v.participant or v.name in joined]
        return graph_of(topology.name, kept, links)
    # A pair of devices with ports: sender, its port, the receiver's port, receiver.
    latency, bandwidth = topology.latency, topology.bandwidth
    rate = np.zeros(topology.num_ports)
    for port in (topology.send_port, topology.receive_port):
        apart = port >= 0
        np.maximum.at(rate, port[apart], bandwidth[apart])
    ways: dict[tuple[str, str], tuple[float, float]] = {}
    for i, j in zip(*np.nonzero(topology.send_port >= 0), strict=True):
        out, into = int(topology.send_port[i, j]), int(topology.receive_port[i, j])
        a, b = topology.port_names[out], topology.port_names[into]
        ways[names[i], a] = float(rate[out]), 0.0
        ways[b, names[j]] = float(rate[into]), 0.0
        before = ways.get((a, b), (0.0, 0.0))
        ways[a, b] = max(before[0], float(bandwidth[i, j])), max(before[1], float(latency[i, j]))
    vertices += [VertexSpec(port, False, False, True) for port in topology.port_names]
    return graph_of(topology.name, vertices, [(a, b, *way) for (a, b), way in ways.items()])
