"""`Fabric`: devices, NICs and switches joined by links, as builders put them together."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Set
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import Any

import networkx as nx

from envs.errors import InputError
from envs.hardware.devices import DeviceSpec
from envs.units import MEGA, check_keys, parse_bandwidth, parse_seconds, read_count, read_quantity

PICOSECOND = 1e-12
_Label = tuple[int, int, float, tuple[int, ...], tuple[str, ...]]


@dataclass(frozen=True)
class Route:
    """The nodes on the way from one device to another, both included, and the links in order."""

    nodes: tuple[str, ...]
    links: tuple[LinkSpec, ...]

    @property
    def latency(self) -> float:
        """Seconds: the sum over the links, rounded once, so that both directions agree."""
        return math.fsum(link.latency for link in self.links)

    @property
    def bandwidth(self) -> float:
        """Bytes/s of the bottleneck: the smallest of the links."""
        return min(link.bandwidth for link in self.links)

    @property
    def media(self) -> tuple[str, ...]:
        """The media on the way, each once, in the order they are met."""
        return tuple(dict.fromkeys(link.medium for link in self.links))


class Routes:
    """Shortest routes between the devices of a fabric.

    Inside a server a route stays inside it. Between servers it leads from the device to its NIC,
    through the network to the other device's NIC, and on to that device; it never passes through
    a third server. Each of these parts is shortest by (latency in whole picoseconds, hops, larger
    bottleneck), ties going to the nodes inserted first; the way back is the same links reversed.
    A device uses the NIC with the fewest hops; among equally near ones the one with the fewest
    devices so far, devices taken in order, so that the devices share the NICs evenly. Where no
    switch joins the two devices' NICs (planes that do not meet), the transfer stays on the links of
    the device that was inserted first, and ends at the other server's first NIC joined to them.

    Raises:
        InputError: two devices of a server are not joined, a server of several has no NIC that its
            devices reach, or two NICs are not joined.
    """

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self._rank = {node: index for index, node in enumerate(fabric.graph)}
        self._inside: dict[int | None, set[str]] = {}
        for node in fabric.graph:
            self._inside.setdefault(fabric.server_of(node), set()).add(node)
        self._paths: dict[str, dict[str, tuple[str, ...]]] = {}
        servers = {fabric.server_of(device) for device in fabric.nodes(NodeKind.DEVICE)}
        self.nic: dict[str, str] = {}  # the NIC each device uses; empty with a single server
        if len(servers) > 1:
            self._choose_nics()

    def between(self, source: str, destination: str) -> Route:
        """The route from one device to another.

        Raises:
            InputError: there is none.
        """
        if self._rank[source] > self._rank[destination]:
            back = self.between(destination, source)
            return Route(back.nodes[::-1], back.links[::-1])
        if self.fabric.server_of(source) == self.fabric.server_of(destination):
            path = self.within(source, destination)
        else:
            out, into = self.gates(source, destination)
            path = (
                *self.within(source, out),
                *self.within(out, into)[1:-1],
                *self.within(destination, into)[::-1],
            )
        return Route(path, tuple(self.fabric.link(a, b) for a, b in pairwise(path)))

    def gates(self, source: str, destination: str) -> tuple[str, str]:
        """The nodes whose send and receive port a transfer holds: the devices, or their NICs."""
        if self.fabric.server_of(source) == self.fabric.server_of(destination):
            return source, destination
        if self._rank[source] > self._rank[destination]:
            into, out = self.gates(destination, source)
            return out, into
        out, into = self.nic[source], self.nic[destination]
        for nic in (into, *self.fabric.nodes(NodeKind.NIC, self.fabric.server_of(into))):
            if nic in self._paths_from(out):
                return out, nic
        return out, into

    def within(self, source: str, destination: str) -> tuple[str, ...]:
        """The nodes from a device to a device or NIC of its server, or from NIC to NIC.

        Raises:
            InputError: the source does not reach the destination.
        """
        paths = self._paths_from(source)
        if destination not in paths:
            raise InputError(
                f"no route from {source!r} to {destination!r}", file=f"fabric {self.fabric.name}"
            )
        return paths[destination]

    def _paths_from(self, source: str) -> dict[str, tuple[str, ...]]:
        if source not in self._paths:
            is_nic = self.fabric.graph.nodes[source]["kind"] is NodeKind.NIC
            server = None if is_nic else self.fabric.server_of(source)
            self._paths[source] = self._shortest(source, self._inside.get(server, set()))
        return self._paths[source]

    def _shortest(self, source: str, within: Set[str]) -> dict[str, tuple[str, ...]]:
        """Dijkstra from `source` over the switches in `within`, to every node it meets.

        Labels are (latency, hops, minus bottleneck, ranks on the way), compared in that order.
        """
        graph = self.fabric.graph
        done: dict[str, tuple[str, ...]] = {}
        heap: list[_Label] = [(0, 0, -math.inf, (self._rank[source],), (source,))]
        while heap:
            latency, hops, bottleneck, ranks, path = heapq.heappop(heap)
            node = path[-1]
            if node in done:
                continue
            done[node] = path
            forwards = node in within and graph.nodes[node]["kind"] is NodeKind.SWITCH
            if node != source and not forwards:
                continue
            for neighbour in graph[node]:
                reachable = neighbour in within or (
                    source not in within and graph.nodes[neighbour]["kind"] is NodeKind.NIC
                )
                if neighbour in done or not reachable:
                    continue
                link = self.fabric.link(node, neighbour)
                heapq.heappush(
                    heap,
                    (
                        latency + round(link.latency / PICOSECOND),
                        hops + 1,
                        max(bottleneck, -link.bandwidth),
                        (*ranks, self._rank[neighbour]),
                        (*path, neighbour),
                    ),
                )
        return done

    def _choose_nics(self) -> None:
        load = dict.fromkeys(self.fabric.nodes(NodeKind.NIC), 0)
        for device in self.fabric.nodes(NodeKind.DEVICE):
            server = self.fabric.server_of(device)
            hops = self._hops(device, self._inside[server])
            near = [nic for nic in load if self.fabric.server_of(nic) == server and nic in hops]
            if not near:
                raise InputError(
                    f"device {device!r} reaches no NIC of its server",
                    file=f"fabric {self.fabric.name}",
                    record=device,
                )
            chosen = min(near, key=lambda nic: (hops[nic], load[nic], self._rank[nic]))
            load[chosen] += 1
            self.nic[device] = chosen

    def _hops(self, source: str, within: Set[str]) -> dict[str, int]:
        """Breadth-first hop counts from `source` through the switches in `within`."""
        hops = {source: 0}
        queue = deque([source])
        while queue:
            node = queue.popleft()
            if node != source and self.fabric.graph.nodes[node]["kind"] is not NodeKind.SWITCH:
                continue
            for neighbour in self.fabric.graph[node]:
                if neighbour in within and neighbour not in hops:
                    hops[neighbour] = hops[node] + 1
                    queue.append(neighbour)
        return hops


MOST_NODES = 4096  # devices, NICs and switches
ROUTE_S, ROUTE_BYTES = 2e-5, 200.0  # of one pair of devices


class NodeKind(Enum):
    """What stands at a node of a fabric."""

    DEVICE = "device"
    NIC = "nic"
    SWITCH = "switch"


@dataclass(frozen=True)
class LinkSpec:
    """A kind of link, full duplex: both directions have the full bandwidth at the same time."""

    medium: str  # "NVLink", "PCIe 3.0 x16", "Ethernet", ...
    bandwidth: float  # bytes/s in each direction
    latency: float  # seconds

    @classmethod
    def parse(cls, section: object, *, key: str) -> LinkSpec:
        """A link from a section `{medium, bandwidth, latency}` of a configuration.

        Raises:
            InputError: naming `key.field`, on a missing or unknown key, a wrong unit or a bandwidth
                below 1 MB/s: a number without unit is bytes/s, so that 25 is no network's.
        """
        if isinstance(section, LinkSpec):
            return section
        fields = check_keys(section, ("medium", "bandwidth", "latency"), key=key)
        return cls(
            medium=str(fields["medium"]),
            bandwidth=read_quantity(
                parse_bandwidth, fields["bandwidth"], key=f"{key}.bandwidth", at_least=MEGA
            ),
            latency=read_quantity(parse_seconds, fields["latency"], key=f"{key}.latency"),
        )

    def times(self, count: float) -> LinkSpec:
        """`count` such links side by side, used as one."""
        return LinkSpec(self.medium, self.bandwidth * count, self.latency)


def read_size(value: object, *, key: str, at_least: int = 1) -> int:
    """A number of devices, or of what joins them, of which every pair has a route.

    Raises:
        InputError: naming `key`: as `read_count`, or there are more than `MOST_NODES`.
    """
    size = read_count(value, key=key, at_least=at_least)
    if size > MOST_NODES:
        hours, memory = size**2 * ROUTE_S / 3600, size**2 * ROUTE_BYTES / 1e9
        raise InputError(
            f"{size:,}: a route between every pair would take about {hours:,.2g} hours and "
            f"{memory:,.2g} GB (at most {MOST_NODES:,})",
            field=key,
        )
    return size


@dataclass(eq=False)
class Fabric:
    """An undirected graph of devices, NICs and switches, put together node by node.

    `graph` is a `networkx.Graph` whose nodes have `kind` (`NodeKind`), `server` (index, or None
    for what stands between servers) and, for devices, `spec`; its edges have `link` (`LinkSpec`).
    Devices and NICs keep their order of insertion. Devices and NICs never forward traffic of
    others; switches do.

    Raises:
        InputError: a node stands twice, or a link joins a node that does not exist.
    """

    name: str
    graph: Any = field(default_factory=nx.Graph)

    def add_device(self, name: str, spec: DeviceSpec, server: int) -> str:
        """A device inside `server`; returns its name."""
        return self._add(name, kind=NodeKind.DEVICE, server=server, spec=spec)

    def add_nic(self, name: str, server: int) -> str:
        """A network card of `server`; returns its name."""
        return self._add(name, kind=NodeKind.NIC, server=server)

    def add_switch(self, name: str, server: int | None = None) -> str:
        """Anything that forwards: a PCIe switch, an NVSwitch, a network switch."""
        return self._add(name, kind=NodeKind.SWITCH, server=server)

    def connect(self, a: str, b: str, link: LinkSpec) -> None:
        """Join two nodes by a link."""
        for end in (a, b):
            if end not in self.graph:
                raise InputError(f"unknown node {end!r}", file=f"fabric {self.name}")
        if a == b or self.graph.has_edge(a, b):
            raise InputError(f"{a!r} and {b!r} are already joined", file=f"fabric {self.name}")
        self.graph.add_edge(a, b, link=link)

    def nodes(self, kind: NodeKind, server: int | None = None) -> list[str]:
        """All nodes of a kind (of one server), in order of insertion."""
        return [
            node
            for node, facts in self.graph.nodes(data=True)
            if facts["kind"] is kind and (server is None or facts["server"] == server)
        ]

    def server_of(self, node: str) -> int | None:
        """The server a node belongs to; None between servers."""
        server: int | None = self.graph.nodes[node]["server"]
        return server

    def link(self, a: str, b: str) -> LinkSpec:
        """The link between two neighbours."""
        spec: LinkSpec = self.graph.edges[a, b]["link"]
        return spec

    def _add(self, name: str, **facts: object) -> str:
        if name in self.graph:
            raise InputError(f"node {name!r} stands twice", file=f"fabric {self.name}", record=name)
        if len(self.graph) > 2 * MOST_NODES:
            read_size(len(self.graph), key="devices")  # which refuses
        self.graph.add_node(name, **facts)
        return name
