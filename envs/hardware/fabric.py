"""`Fabric`: devices, NICs and switches joined by links, as builders put them together."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import networkx as nx

from envs.errors import InputError
from envs.hardware.devices import DeviceSpec
from envs.units import MEGA, check_keys, parse_bandwidth, parse_seconds, read_count, read_quantity

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


@dataclass(frozen=True)
class Link:
    """A link between two nodes."""

    ends: tuple[str, str]
    spec: LinkSpec


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
