"""`Network`: the physical links behind a topology and the channels between its servers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice, pairwise

import networkx as nx
import numpy as np

from envs.arrays import FloatArray, IntArray
from envs.errors import InputError
from envs.hardware.fabric import Fabric, NodeKind, Routes

NO_CHANNEL = -1  # the channel of a path inside a server


@dataclass(frozen=True, eq=False)
class Network:
    """K directed links, C channels between servers and the paths of all pairs of D devices.

    A link is one direction of a cable: full duplex is two links. A *channel* is one way from a NIC
    of a server to another server: its source NIC, its destination NIC and the links between them.
    Where several links lead from a NIC to a server (planes, spines), each is a channel of its own.
    Channels are what bandwidth is allocated to (`envs.step.plans.BandwidthAllocation`).

    A *path* is one way from a device to another: inside a server the links of its route; between
    servers the links to the source NIC, one channel and the links from the destination NIC. A pair
    between servers has one path for every channel of its servers that its devices reach.

    All index arrays are compressed sparse rows: row r is `links[ptr[r]:ptr[r + 1]]`.
    """

    num_devices: int
    num_servers: int
    link_names: tuple[str, ...]  # (K,)
    link_capacity: FloatArray  # (K,) bytes/s
    channel_names: tuple[str, ...]  # (C,) unique
    channel_source: IntArray  # (C,) server
    channel_destination: IntArray  # (C,) server
    channel_source_nic: tuple[str, ...]  # (C,)
    channel_destination_nic: tuple[str, ...]  # (C,)
    channel_ptr: IntArray  # (C + 1,)
    channel_links: IntArray  # links of each channel, in order
    pair_ptr: IntArray  # (D * D + 1,) paths of pair (i, j) are rows pair_ptr[i * D + j] to the next
    path_channel: IntArray  # (P,) channel of each path, NO_CHANNEL inside a server
    path_ptr: IntArray  # (P + 1,)
    path_links: IntArray  # links of each path, in order

    @property
    def num_links(self) -> int:
        """K."""
        return len(self.link_names)

    @property
    def num_channels(self) -> int:
        """C."""
        return len(self.channel_names)

    @property
    def channel_pipe(self) -> IntArray:
        """(C,) pipe of each channel: source server x S + destination server."""
        return self.channel_source * self.num_servers + self.channel_destination

    def links_of(self, channel: int) -> IntArray:
        """The links of one channel."""
        return self.channel_links[self.channel_ptr[channel] : self.channel_ptr[channel + 1]]

    def channels_between(self, source: int, destination: int) -> IntArray:
        """The channels from one server to another."""
        return np.flatnonzero(
            (self.channel_source == source) & (self.channel_destination == destination)
        )

    @cached_property
    def incidence(self) -> FloatArray:
        """(K, C) 1 where a channel runs over a link."""
        matrix = np.zeros((self.num_links, self.num_channels))
        channel = np.repeat(np.arange(self.num_channels), np.diff(self.channel_ptr))
        matrix[self.channel_links, channel] = 1.0
        return matrix

    @cached_property
    def inner_bandwidth(self) -> FloatArray:
        """(D, D) bytes/s of the slowest link of a pair's paths that is no link of their channel.

        What limits a transfer between servers besides its channels: the way from the device to its
        NICs and back. Inside a server the slowest link of the route; inf on the diagonal.
        """
        d = self.num_devices
        found = np.full(d * d, np.inf)
        for pair in range(d * d):
            for path in range(self.pair_ptr[pair], self.pair_ptr[pair + 1]):
                links = self.path_links[self.path_ptr[path] : self.path_ptr[path + 1]]
                channel = self.path_channel[path]
                if channel != NO_CHANNEL:
                    links = np.setdiff1d(links, self.links_of(channel))
                found[pair] = min(found[pair], self.link_capacity[links].min(initial=np.inf))
        return found.reshape(d, d)


def port_network(
    server: IntArray,  # (D,)
    pair_bandwidth: FloatArray,  # (D, D) bytes/s
    send_port: IntArray,  # (D, D)
    receive_port: IntArray,  # (D, D)
    port_names: tuple[str, ...],
) -> Network:
    """The network of a topology that knows ports only: every port is a link.

    A port's capacity is the largest bandwidth of the pairs that hold it; a pair slower than both of
    its ports has a link of its own beside them. Every pair of ports that joins two servers is a
    channel.
    """
    d = len(server)
    names, capacity = list(port_names), [0.0] * len(port_names)
    pairs = [(i, j) for i in range(d) for j in range(d) if i != j]
    for i, j in pairs:
        for port in (send_port[i, j], receive_port[i, j]):
            capacity[port] = max(capacity[port], pair_bandwidth[i, j])
    channels: dict[tuple[int, int, int, int], int] = {}
    channel_ends: list[tuple[int, int, int, int]] = []
    pair_ptr, path_channel, path_ptr, path_links = [0], [], [0], []
    for i in range(d):
        for j in range(d):
            if i != j:
                send, receive = int(send_port[i, j]), int(receive_port[i, j])
                links = [send, receive]
                if pair_bandwidth[i, j] < min(capacity[send], capacity[receive]):
                    names.append(f"device {i} -> device {j}")
                    capacity.append(float(pair_bandwidth[i, j]))
                    links.append(len(names) - 1)
                channel = NO_CHANNEL
                if server[i] != server[j]:
                    key = (int(server[i]), int(server[j]), send, receive)
                    channel = channels.setdefault(key, len(channels))
                    if channel == len(channel_ends):
                        channel_ends.append(key)
                path_channel.append(channel)
                path_links += links
                path_ptr.append(len(path_links))
            pair_ptr.append(len(path_channel))
    ends = np.array(channel_ends, dtype=np.int64).reshape(-1, 4)
    return Network(
        num_devices=d,
        num_servers=int(server.max(initial=-1)) + 1,
        link_names=tuple(names),
        link_capacity=np.array(capacity, dtype=np.float64),
        channel_names=tuple(f"{port_names[s]} -> {port_names[r]}" for _, _, s, r in channel_ends),
        channel_source=ends[:, 0],
        channel_destination=ends[:, 1],
        channel_source_nic=tuple(port_names[s] for _, _, s, _ in channel_ends),
        channel_destination_nic=tuple(port_names[r] for _, _, _, r in channel_ends),
        channel_ptr=2 * np.arange(len(ends) + 1),
        channel_links=np.ascontiguousarray(ends[:, 2:]).ravel(),
        pair_ptr=np.array(pair_ptr, dtype=np.int64),
        path_channel=np.array(path_channel, dtype=np.int64),
        path_ptr=np.array(path_ptr, dtype=np.int64),
        path_links=np.array(path_links, dtype=np.int64),
    )


_PICOSECOND = 1e-12
WAYS = 8  # equally short ways between two NICs that become channels, at most

_Way = tuple[str, ...]  # nodes, from NIC to NIC


def fabric_network(fabric: Fabric) -> Network:
    """Links, channels and paths of `fabric`.

    A NIC reaches another server through that server's NIC of the same number (modulo their count)
    or, where no switch joins the two, through the first one that is joined. All equally short ways
    (latency, then hops) between the two NICs are channels, `WAYS` at most. Links inside a server
    are those of `envs.hardware.fabric.Routes`. Links no path uses are left out.
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
