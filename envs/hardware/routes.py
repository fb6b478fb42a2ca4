"""Routes through a fabric: the way between two devices as links, and its bottleneck."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Set
from dataclasses import dataclass
from itertools import pairwise

from envs.errors import InputError
from envs.hardware.fabric import Fabric, Link, NodeKind

_PICOSECOND = 1e-12
_Label = tuple[int, int, float, tuple[int, ...], tuple[str, ...]]


@dataclass(frozen=True)
class Route:
    """The links from one device to another, in order."""

    links: tuple[Link, ...]

    @property
    def nodes(self) -> tuple[str, ...]:
        """All nodes on the way, both ends included."""
        return (self.links[0].ends[0], *(link.ends[1] for link in self.links))

    @property
    def hops(self) -> int:
        """Number of links."""
        return len(self.links)

    @property
    def latency(self) -> float:
        """Seconds: the sum over the links, rounded once, so that both directions agree."""
        return math.fsum(link.spec.latency for link in self.links)

    @property
    def bandwidth(self) -> float:
        """Bytes/s of the bottleneck: the smallest of the links."""
        return min(link.spec.bandwidth for link in self.links)

    @property
    def media(self) -> tuple[str, ...]:
        """The media on the way, each once, in the order they are met."""
        return tuple(dict.fromkeys(link.spec.medium for link in self.links))


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
            return Route(
                tuple(Link((link.ends[1], link.ends[0]), link.spec) for link in back.links[::-1])
            )
        if self.fabric.server_of(source) == self.fabric.server_of(destination):
            path = self._path(source, destination)
        else:
            out, into = self.gates(source, destination)
            path = (
                *self._path(source, out),
                *self._path(out, into)[1:-1],
                *self._path(destination, into)[::-1],
            )
        return Route(tuple(Link((a, b), self.fabric.link(a, b)) for a, b in pairwise(path)))

    def gates(self, source: str, destination: str) -> tuple[str, str]:
        """The nodes whose send and receive port a transfer holds: the devices, or their NICs."""
        if self.fabric.server_of(source) == self.fabric.server_of(destination):
            return source, destination
        if self._rank[source] > self._rank[destination]:
            into, out = self.gates(destination, source)
            return out, into
        out = self.nic[source]
        return out, self._joined(out, self.nic[destination])

    def within(self, device: str, nic: str) -> tuple[str, ...]:
        """The nodes from a device to a NIC of its server, both included.

        Raises:
            InputError: the device does not reach the NIC.
        """
        return self._path(device, nic)

    def _joined(self, out: str, into: str) -> str:
        """`into`, or the first other NIC of its server if no switch joins it to `out`."""
        others = self.fabric.nodes(NodeKind.NIC, self.fabric.server_of(into))
        for nic in (into, *others):
            if nic in self._paths_from(out):
                return nic
        return into

    def _path(self, source: str, destination: str) -> tuple[str, ...]:
        """Device to device or NIC inside a server, or NIC to NIC between servers."""
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
                        latency + round(link.latency / _PICOSECOND),
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
