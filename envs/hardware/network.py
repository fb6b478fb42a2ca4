"""`Network`: the physical links behind a topology and the channels between its servers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice, pairwise, permutations, product
from typing import NamedTuple

import networkx as nx
import numpy as np

from envs.arrays import FloatArray, IntArray, sums_before
from envs.errors import InputError
from envs.hardware.fabric import PICOSECOND, Fabric, NodeKind, Routes

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

    def paths_of(self, pair: int) -> range:
        """The paths of pair i * D + j."""
        return range(self.pair_ptr[pair], self.pair_ptr[pair + 1])

    def links_on(self, path: int) -> IntArray:
        """The links of one path."""
        return self.path_links[self.path_ptr[path] : self.path_ptr[path + 1]]

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
    def channel_capacity(self) -> FloatArray:
        """(C,) bytes/s of the slowest link of each channel: what it gets when it is alone."""
        capacity = np.where(self.incidence > 0, self.link_capacity[:, None], np.inf)
        return np.asarray(capacity.min(axis=0, initial=np.inf))

    @cached_property
    def inner_bandwidth(self) -> FloatArray:
        """(D, D) bytes/s of the slowest link of a pair's paths that is no link of their channel.

        What limits a transfer between servers besides its channels: the way from the device to its
        NICs and back. Inside a server the slowest link of the route; inf on the diagonal.
        """
        d = self.num_devices
        found = np.full(d * d, np.inf)
        for pair in range(d * d):
            for path in self.paths_of(pair):
                links, channel = self.links_on(path), self.path_channel[path]
                if channel != NO_CHANNEL:
                    links = np.setdiff1d(links, self.links_of(channel))
                found[pair] = min(found[pair], self.link_capacity[links].min(initial=np.inf))
        return found.reshape(d, d)


class _Channel(NamedTuple):
    source: int  # server
    destination: int  # server
    source_nic: str
    destination_nic: str
    name: str
    links: Sequence[int]


_Path = tuple[int, Sequence[int]]  # its channel and its links


def _network(
    server: Sequence[int],  # of each device
    names: Sequence[str],  # of the links
    capacity: Sequence[float],  # bytes/s
    channels: Sequence[_Channel],
    pairs: Sequence[Sequence[_Path]],  # of all D * D pairs
) -> Network:
    paths = [path for pair in pairs for path in pair]

    def rows(lists: Sequence[Sequence[int]]) -> tuple[IntArray, IntArray]:
        flat = np.array([*chain(*lists)], dtype=np.int64)
        return sums_before(np.array([len(one) for one in lists], dtype=np.int64)), flat

    channel_ptr, channel_links = rows([channel.links for channel in channels])
    path_ptr, path_links = rows([of for _, of in paths])
    return Network(
        num_devices=len(server),
        num_servers=max(server, default=-1) + 1,
        link_names=tuple(names),
        link_capacity=np.array(capacity, dtype=np.float64),
        channel_names=tuple(channel.name for channel in channels),
        channel_source=np.array([channel.source for channel in channels], dtype=np.int64),
        channel_destination=np.array([channel.destination for channel in channels], dtype=np.int64),
        channel_source_nic=tuple(channel.source_nic for channel in channels),
        channel_destination_nic=tuple(channel.destination_nic for channel in channels),
        channel_ptr=channel_ptr,
        channel_links=channel_links,
        pair_ptr=sums_before(np.array([len(pair) for pair in pairs], dtype=np.int64)),
        path_channel=np.array([channel for channel, _ in paths], dtype=np.int64),
        path_ptr=path_ptr,
        path_links=path_links,
    )


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
    for i, j in permutations(range(d), 2):
        for port in (send_port[i, j], receive_port[i, j]):
            capacity[port] = max(capacity[port], pair_bandwidth[i, j])
    channels: dict[_Channel, int] = {}
    pairs: list[list[_Path]] = [[] for _ in range(d * d)]
    for i, j in permutations(range(d), 2):
        links = [int(send_port[i, j]), int(receive_port[i, j])]
        channel = NO_CHANNEL
        if server[i] != server[j]:
            source, destination = (port_names[port] for port in links)
            name = f"{source} -> {destination}"
            servers = int(server[i]), int(server[j])
            made = _Channel(*servers, source, destination, name, tuple(links))
            channel = channels.setdefault(made, len(channels))
        if pair_bandwidth[i, j] < min(capacity[port] for port in links):
            links.append(len(names))
            names.append(f"device {i} -> device {j}")
            capacity.append(pair_bandwidth[i, j])
        pairs[i * d + j].append((channel, links))
    return _network(server.tolist(), names, capacity, [*channels], pairs)


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
        self.server: list[int] = [fabric.graph.nodes[name]["server"] for name in self.devices]
        self.number: dict[tuple[str, str], int] = {}  # of a directed link
        between = [node for node in fabric.graph if fabric.server_of(node) is None]
        self.outside = fabric.graph.subgraph([*between, *fabric.nodes(NodeKind.NIC)])

    def build(self) -> Network:
        between: dict[tuple[int, int], list[tuple[int, _Way]]] = {}
        count = 0
        for ends in permutations(range(max(self.server, default=-1) + 1), 2):
            between[ends] = list(enumerate(self._ways(*ends), count))
            count += len(between[ends])
        pairs: list[list[_Path]] = []
        for (i, source), (j, destination) in product(enumerate(self.devices), repeat=2):
            ways = between.get((self.server[i], self.server[j]), [])
            paths = [(channel, self._path(source, way, destination)) for channel, way in ways]
            if i != j and self.server[i] == self.server[j]:
                paths = [(NO_CHANNEL, self.routes.between(source, destination).nodes)]
            pairs.append([(channel, self._links(nodes)) for channel, nodes in paths if nodes])
        channels = [
            _Channel(*ends, way[0], way[-1], " -> ".join(way), self._links(way))
            for ends, ways in between.items()
            for _, way in ways
        ]
        names = [f"{a} -> {b}" for a, b in self.number]
        capacity = [self.fabric.link(a, b).bandwidth for a, b in self.number]
        return _network(self.server, names, capacity, channels, pairs)

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
            latency = round(self.fabric.link(a, b).latency / PICOSECOND)
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
