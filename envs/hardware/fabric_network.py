"""The `Network` of a fabric: every direction of every link, every way between two servers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice, pairwise

import networkx as nx
import numpy as np

from envs.errors import InputError
from envs.hardware.fabric import Fabric
from envs.hardware.links import NodeKind
from envs.hardware.network import NO_CHANNEL, Network
from envs.hardware.routes import Routes

_PICOSECOND = 1e-12
WAYS = 8  # equally short ways between two NICs that become channels, at most

_Way = tuple[str, ...]  # nodes, from NIC to NIC


def fabric_network(fabric: Fabric) -> Network:
    """Links, channels and paths of `fabric`.

    A NIC reaches another server through that server's NIC of the same number (modulo their count)
    or, where no switch joins the two, through the first one that is joined. All equally short ways
    (latency, then hops) between the two NICs are channels, `WAYS` at most. Links inside a server
    are those of `envs.hardware.routes.Routes`. Links no path uses are left out.
    """
    return _Builder(fabric).build()


class _Builder:
    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.routes = Routes(fabric)
        self.devices = fabric.nodes(NodeKind.DEVICE)
        self.server = [fabric.server_of(device) for device in self.devices]
        self.number: dict[tuple[str, str], int] = {}  # of a directed link
        between = [node for node in fabric.graph if fabric.server_of(node) is None]
        self.outside = fabric.graph.subgraph([*between, *fabric.nodes(NodeKind.NIC)])

    def build(self) -> Network:
        servers = max((server for server in self.server if server is not None), default=-1) + 1
        ways = [
            (s, d, way)
            for s in range(servers)
            for d in range(servers)
            if s != d
            for way in self._ways(s, d)
        ]
        between: dict[tuple[int | None, int | None], list[int]] = {}
        for number, (s, d, _) in enumerate(ways):
            between.setdefault((s, d), []).append(number)
        pair_ptr, path_channel, path_ptr = [0], [], [0]
        path_links: list[int] = []
        for i, source in enumerate(self.devices):
            for j, destination in enumerate(self.devices):
                if i != j and self.server[i] == self.server[j]:
                    path_channel.append(NO_CHANNEL)
                    path_links += self._links(self.routes.between(source, destination).nodes)
                    path_ptr.append(len(path_links))
                elif i != j:
                    for channel in between.get((self.server[i], self.server[j]), []):
                        nodes = self._path(source, ways[channel][2], destination)
                        if nodes:
                            path_channel.append(channel)
                            path_links += self._links(nodes)
                            path_ptr.append(len(path_links))
                pair_ptr.append(len(path_channel))
        channel_links = [self._links(way) for _, _, way in ways]
        return Network(
            num_devices=len(self.devices),
            num_servers=servers,
            link_names=tuple(f"{a} -> {b}" for a, b in self.number),
            link_capacity=np.array([self.fabric.link(a, b).bandwidth for a, b in self.number]),
            channel_names=tuple(" -> ".join(way) for _, _, way in ways),
            channel_source=np.array([s for s, _, _ in ways], dtype=np.int64),
            channel_destination=np.array([d for _, d, _ in ways], dtype=np.int64),
            channel_source_nic=tuple(way[0] for _, _, way in ways),
            channel_destination_nic=tuple(way[-1] for _, _, way in ways),
            channel_ptr=np.cumsum([0, *(len(links) for links in channel_links)]),
            channel_links=np.array([*chain(*channel_links)], dtype=np.int64),
            pair_ptr=np.array(pair_ptr, dtype=np.int64),
            path_channel=np.array(path_channel, dtype=np.int64),
            path_ptr=np.array(path_ptr, dtype=np.int64),
            path_links=np.array(path_links, dtype=np.int64),
        )

    def _ways(self, source: int, destination: int) -> Iterator[_Way]:
        """All channels from one server to another, NIC by NIC."""
        far = self.fabric.nodes(NodeKind.NIC, destination)
        for index, nic in enumerate(self.fabric.nodes(NodeKind.NIC, source)):
            for number in range(len(far)):
                found = self._shortest(nic, far[(index + number) % len(far)])
                if found:
                    yield from found
                    break

    def _shortest(self, nic: str, far: str) -> list[_Way]:
        """All equally short ways from NIC to NIC over switches between the servers."""
        nodes = [node for node in self.outside if self.fabric.server_of(node) is None]
        graph = self.outside.subgraph([*nodes, nic, far])
        if not nx.has_path(graph, nic, far):
            return []

        def weight(a: str, b: str, _: object) -> int:
            latency = round(self.fabric.link(a, b).latency / _PICOSECOND)
            return latency * len(graph) + 1

        ways = nx.all_shortest_paths(graph, nic, far, weight=weight)
        return [tuple(way) for way in islice(ways, WAYS)]

    def _path(self, source: str, way: _Way, destination: str) -> _Way:
        """Device to NIC, the channel, NIC to device; empty where a NIC is out of reach."""
        try:
            out, back = self.routes.within(source, way[0]), self.routes.within(destination, way[-1])
        except InputError:
            return ()
        return (*out, *way[1:-1], *back[::-1])

    def _links(self, nodes: _Way) -> list[int]:
        return [self.number.setdefault(pair, len(self.number)) for pair in pairwise(nodes)]
