"""`Network`: the physical links behind a topology and the channels between its servers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

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
