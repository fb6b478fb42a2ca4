"""Servers: what stands inside one, and how its devices are joined.

A server adds its devices, PCIe switches and NICs to a fabric. Links are sections
`{medium, bandwidth, latency}` with the bandwidth of one direction. Devices are called
`server<index>/<kind>/<number>`.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Protocol

import numpy as np

from envs.arrays import IntArray
from envs.errors import InputError
from envs.hardware.devices import CATALOGUE, Device, DeviceSpec, device_spec
from envs.hardware.fabric import Fabric, LinkSpec, NodeKind, read_size
from envs.hardware.topology import Topology
from envs.units import GIGA, MICROSECOND

# Where a topology does not show how a device is joined to its host: graph files, chips of a torus.
DEFAULT_LINK = LinkSpec("PCIe 3.0 x16", 15.75 * GIGA, 2 * MICROSECOND)
HOST = "/host"  # after the name of a device: its host memory
PCIE = "PCIe"  # how the media of links to a host begin


def host_link(topology: Topology, device: int) -> LinkSpec:
    """The PCIe link of a device: that to a switch of its server, or `DEFAULT_LINK`."""
    name, fabric = topology.devices[device].name, topology.fabric
    if fabric is not None and name in fabric.graph:
        for near in fabric.graph[name]:
            link = fabric.link(name, near)
            if near in fabric.nodes(NodeKind.SWITCH) and link.medium.startswith(PCIE):
                return link
    return DEFAULT_LINK


def with_hosts(topology: Topology, owners: IntArray) -> Topology:
    """`topology` and, after its D devices, the host memory of each of the devices `owners` (H,).

    A device's host memory is a part of its server's: as much as the device has itself, which
    servers are sold with (a DGX-1 has 512 GB for 256 GB of devices, a DGX H100 2 TB for 640 GB, a
    DGX B200 2 TB for 1,440 GB: their data sheets). It is reached over the device's PCIe link, and a
    transfer holds the device's own ports, as all transfers inside a server do: meanwhile the device
    sends, or receives, nothing else. Hosts are apart, so that devices do not wait for each other.

    The result knows ports only: what shares physical links knows no hosts.
    """
    count, hosts = topology.num_devices, len(owners)
    total, first_class = count + hosts, len(topology.class_names)
    links = [host_link(topology, d) for d in owners.tolist()]
    kinds = list(dict.fromkeys(links))
    cpu, devices, names = CATALOGUE["CPU"], list(topology.devices), list(topology.port_names)
    link_class: IntArray = np.full((total, total), first_class, dtype=np.int64)
    send: IntArray = np.full((total, total), -1, dtype=np.int64)
    receive = send.copy()
    link_class[:count, :count] = topology.link_class
    send[:count, :count], receive[:count, :count] = topology.send_port, topology.receive_port
    for host, (owner, link) in enumerate(zip(owners.tolist(), links, strict=True), start=count):
        device = topology.devices[owner]
        memory = device.spec.memory_bytes
        spec = replace(cpu, name="host", memory_bytes=memory, source=f"as much as {device.name}")
        devices.append(Device(f"{device.name}{HOST}", spec, device.server))
        link_class[owner, host] = link_class[host, owner] = first_class + kinds.index(link)
        # hosts of others and devices of others exchange nothing with it; every pair has ports
        send[host, :], receive[:, host] = len(names), len(names) + 1
        send[:, host], receive[host, :] = len(names) + 2, len(names) + 3
        names += [f"{device.name}{HOST} {way}" for way in ("sends", "receives", "in", "out")]
        beside = np.flatnonzero((topology.server == device.server) & (np.arange(count) != owner))
        if len(beside):
            send[owner, host] = topology.send_port[owner, beside[0]]
            receive[host, owner] = topology.receive_port[beside[0], owner]
    for table, diagonal in ((link_class, 0), (send, -1), (receive, -1)):
        np.fill_diagonal(table, diagonal)
    return replace(
        topology,
        devices=tuple(devices),
        link_class=link_class,
        class_names=(
            *topology.class_names,
            *(f"{link.medium} to the host, {link.bandwidth / GIGA:.6g} GB/s" for link in kinds),
        ),
        class_latency=np.append(topology.class_latency, [link.latency for link in kinds]),
        class_bandwidth=np.append(topology.class_bandwidth, [link.bandwidth for link in kinds]),
        send_port=send,
        receive_port=receive,
        port_names=tuple(names),
        fabric=None,
    )


class Server(Protocol):
    """Something that can be put into a fabric as one server."""

    def add_to(self, fabric: Fabric, server: int) -> list[str]:
        """Add this server's nodes and links under the index `server`; returns its NICs."""


class PcieServer:
    """Devices and NICs below PCIe switches, which meet at the host.

    Device k of K hangs on switch k * S // K of S, NIC m of M on switch m * S // M. Transfers
    between devices of one switch take two PCIe links, others four.

    Args:
        device: a kind of the catalogue, or a `DeviceSpec`.
        pcie: the PCIe link of a device, a NIC or a switch.
        switches: number of PCIe switches; with 1, it is the host's root complex itself.
    """

    def __init__(
        self,
        device: str | DeviceSpec,
        count: int,  # devices in a server
        pcie: object,
        switches: int = 1,
        nics: int = 1,  # network cards: a fat-tree's servers have one
    ) -> None:
        self.spec = device_spec(device)
        self.count = read_size(count, key="count")
        self.pcie = LinkSpec.parse(pcie, key="pcie")
        self.switches = read_size(switches, key="switches")
        self.nics = read_size(nics, key="nics", at_least=0)

    def add_to(self, fabric: Fabric, server: int) -> list[str]:
        """See `Server`. Devices and NICs hang on the switches in equal consecutive blocks."""
        devices = [
            fabric.add_device(f"server{server}/{self.spec.name}/{number}", self.spec, server)
            for number in range(self.count)
        ]
        self._join(fabric, devices, server)
        switches = [
            fabric.add_switch(f"server{server}/pcie{n}", server) for n in range(self.switches)
        ]
        self._meet(fabric, switches, server)
        for number, device in enumerate(devices):
            fabric.connect(device, switches[number * len(switches) // len(devices)], self.pcie)
        cards = []
        for number in range(self.nics):
            cards.append(fabric.add_nic(f"server{server}/nic{number}", server))
            fabric.connect(cards[number], switches[number * len(switches) // self.nics], self.pcie)
        return cards

    def _join(self, fabric: Fabric, devices: list[str], server: int) -> None:
        """Add what joins the devices beside PCIe: nothing."""

    def _meet(self, fabric: Fabric, switches: list[str], server: int) -> None:
        """Join several PCIe switches: at the host."""
        if len(switches) > 1:
            host = fabric.add_switch(f"server{server}/host", server)
            for switch in switches:
                fabric.connect(switch, host, self.pcie)


class NvlinkServer(PcieServer):
    """A `PcieServer` whose devices are joined all to all by NVLink inside islands.

    Consecutive devices form islands of `island`; between islands transfers go by PCIe.

    Args:
        device: a kind of the catalogue, or a `DeviceSpec`.
        island: devices in one island; a divisor of `count`.
        nvlink: the link between two devices of an island (all its bricks together).
        pcie: the PCIe link of a device, a NIC or a switch.
    """

    def __init__(
        self,
        device: str | DeviceSpec,
        count: int,  # devices in the server
        island: int,
        nvlink: object,
        pcie: object,
        switches: int = 1,
        nics: int = 1,  # network cards
    ) -> None:
        super().__init__(device, count, pcie, switches, nics)
        self.island = read_size(island, key="island")
        self.nvlink = LinkSpec.parse(nvlink, key="nvlink")
        if self.count % self.island:
            raise InputError(f"{island} does not divide {count} devices", field="island")

    def _join(self, fabric: Fabric, devices: list[str], server: int) -> None:
        for first in range(0, len(devices), self.island):
            for a, b in combinations(devices[first : first + self.island], 2):
                fabric.connect(a, b, self.nvlink)


class NvswitchServer(PcieServer):
    """A `PcieServer` whose devices are also joined by NVSwitches without a bottleneck.

    The NVSwitches of a server are one node: each device reaches every other at its full NVLink
    bandwidth, which is what their non-blocking fabric gives.

    Args:
        device: a kind of the catalogue, or a `DeviceSpec`.
        nvlink: the link from a device to the NVSwitches (all its bricks together).
        pcie: the PCIe link of a device, a NIC or a switch.
    """

    def __init__(
        self,
        device: str | DeviceSpec,
        count: int,  # devices in a server
        nvlink: object,
        pcie: object,
        switches: int = 1,
        nics: int = 1,  # network cards, shared by the eight devices
    ) -> None:
        super().__init__(device, count, pcie, switches, nics)
        self.nvlink = LinkSpec.parse(nvlink, key="nvlink")

    def _join(self, fabric: Fabric, devices: list[str], server: int) -> None:
        nvswitch = fabric.add_switch(f"server{server}/nvswitch", server)
        for device in devices:
            fabric.connect(device, nvswitch, self.nvlink)


# NVLink bricks between the eight V100 of a DGX-1: a cube with both diagonals of two faces, six
# bricks per GPU (NVIDIA DGX-1 With Tesla V100 System Architecture, white paper WP-08437, figure
# "hybrid cube-mesh"; numbering as nvidia-smi shows it).
HYBRID_CUBE_MESH: dict[tuple[int, int], int] = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2,
    (2, 6): 1, (3, 7): 1, (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
}  # fmt: skip


class HybridCubeMeshServer(PcieServer):
    """The inside of a DGX-1: eight devices in a hybrid cube mesh of NVLink.

    GPUs without a brick between them go by PCIe (and the link between the two sockets); a GPU does
    not forward for others.

    Args:
        device: a kind of the catalogue, or a `DeviceSpec`.
        nvlink: one NVLink brick; pairs with two bricks get twice its bandwidth.
        pcie: the PCIe link of a device, a NIC or a switch.
        socket: the link between the two processors.
        nics: number of network cards, spread over the four PCIe switches.
    """

    def __init__(
        self, device: str | DeviceSpec, nvlink: object, pcie: object, socket: object, nics: int = 4
    ) -> None:
        super().__init__(device, 8, pcie, 4, nics)
        self.nvlink = LinkSpec.parse(nvlink, key="nvlink")
        self.socket = LinkSpec.parse(socket, key="socket")

    def _join(self, fabric: Fabric, devices: list[str], server: int) -> None:
        for (a, b), bricks in HYBRID_CUBE_MESH.items():
            fabric.connect(devices[a], devices[b], self.nvlink.times(bricks))
        hosts = [fabric.add_switch(f"server{server}/cpu{half}", server) for half in range(2)]
        fabric.connect(hosts[0], hosts[1], self.socket)

    def _meet(self, fabric: Fabric, switches: list[str], server: int) -> None:
        for number, switch in enumerate(switches):
            fabric.connect(switch, f"server{server}/cpu{number // 2}", self.pcie)
