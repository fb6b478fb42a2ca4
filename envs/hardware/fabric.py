"""`Fabric`: devices, NICs, switches and the links between them; `fabric_topology` routes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import networkx as nx
import numpy as np

from envs.errors import InputError
from envs.hardware.links import LinkSpec, NodeKind
from envs.hardware.routes import Routes
from envs.hardware.topology import Device, DeviceSpec, FloatArray, IntArray, Topology
from envs.units import GIGA, MICROSECOND


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
        self.graph.add_node(name, **facts)
        return name


def fabric_topology(name: str, fabric: Fabric) -> Topology:
    """Routes between all pairs of devices, as a `Topology`.

    Every pair takes the route of `envs.hardware.routes.Routes`. Routes of equal (latency,
    bandwidth) form one link class, numbered by first use; its name is the media on its first
    route, the bandwidth and the latency. Every device and every NIC has a send and a receive port:
    inside a server a transfer holds the endpoint devices' ports, between servers the source NIC's
    send port and the destination NIC's receive port.

    Raises:
        InputError: the fabric has no devices, or two of its devices have no route.
    """
    routes = Routes(fabric)
    names = fabric.nodes(NodeKind.DEVICE)
    if not names:
        raise InputError("has no devices", file=f"topology {name}")
    ports = names + fabric.nodes(NodeKind.NIC)
    port = {node: index for index, node in enumerate(ports)}  # send 2 * index, receive one more
    d = len(names)
    link_class: IntArray = np.zeros((d, d), dtype=np.int64)
    send: IntArray = np.full((d, d), -1, dtype=np.int64)
    receive: IntArray = np.full((d, d), -1, dtype=np.int64)
    classes: dict[tuple[float, float], int] = {}
    class_names = ["same device"]
    for i, j in combinations(range(d), 2):  # the way back is the same links reversed
        route = routes.between(names[i], names[j])
        quality = (route.latency, route.bandwidth)
        if quality not in classes:
            classes[quality] = len(classes) + 1
            class_names.append(
                f"{' + '.join(route.media)}, {route.bandwidth / GIGA:.6g} GB/s, "
                f"{route.latency / MICROSECOND:.6g} us"
            )
        link_class[i, j] = link_class[j, i] = classes[quality]
        gate, far_gate = routes.gates(names[i], names[j])
        send[i, j], receive[i, j] = 2 * port[gate], 2 * port[far_gate] + 1
        send[j, i], receive[j, i] = 2 * port[far_gate], 2 * port[gate] + 1
    latency: FloatArray = np.array([0.0, *(quality[0] for quality in classes)])
    bandwidth: FloatArray = np.array([np.inf, *(quality[1] for quality in classes)])
    return Topology(
        name=name,
        devices=tuple(
            Device(node, fabric.graph.nodes[node]["spec"], fabric.graph.nodes[node]["server"])
            for node in names
        ),
        link_class=link_class,
        class_names=tuple(class_names),
        class_latency=latency,
        class_bandwidth=bandwidth,
        send_port=send,
        receive_port=receive,
        port_names=tuple(f"{node} {way}" for node in ports for way in ("send", "receive")),
        fabric=fabric,
    )
