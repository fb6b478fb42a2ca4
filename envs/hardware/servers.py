"""Servers: what stands inside one, and how its devices are joined.

A server adds its devices, PCIe switches and NICs to a fabric. Links are sections
`{medium, bandwidth, latency}` with the bandwidth of one direction. Devices are called
`server<index>/<kind>/<number>`.
"""

from __future__ import annotations

from itertools import combinations
from typing import Protocol

from envs.errors import InputError
from envs.hardware.devices import DeviceSpec, device_spec
from envs.hardware.fabric import Fabric, LinkSpec, read_size


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
        """See `Server`."""
        devices = _add_devices(fabric, self.spec, self.count, server)
        self._join(fabric, devices, server)
        switches = [
            fabric.add_switch(f"server{server}/pcie{n}", server) for n in range(self.switches)
        ]
        if len(switches) > 1:
            host = fabric.add_switch(f"server{server}/host", server)
            for switch in switches:
                fabric.connect(switch, host, self.pcie)
        return _hang(fabric, devices, switches, self.pcie, self.nics, server)

    def _join(self, fabric: Fabric, devices: list[str], server: int) -> None:
        """Add what joins the devices beside PCIe: nothing."""


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


class HybridCubeMeshServer:
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
        self.spec = device_spec(device)
        self.nvlink = LinkSpec.parse(nvlink, key="nvlink")
        self.pcie = LinkSpec.parse(pcie, key="pcie")
        self.socket = LinkSpec.parse(socket, key="socket")
        self.nics = read_size(nics, key="nics", at_least=0)

    def add_to(self, fabric: Fabric, server: int) -> list[str]:
        """See `Server`."""
        devices = _add_devices(fabric, self.spec, 8, server)
        for (a, b), bricks in HYBRID_CUBE_MESH.items():
            fabric.connect(devices[a], devices[b], self.nvlink.times(bricks))
        hosts = [fabric.add_switch(f"server{server}/cpu{half}", server) for half in range(2)]
        fabric.connect(hosts[0], hosts[1], self.socket)
        switches = [fabric.add_switch(f"server{server}/pcie{n}", server) for n in range(4)]
        for number, switch in enumerate(switches):
            fabric.connect(switch, hosts[number // 2], self.pcie)
        return _hang(fabric, devices, switches, self.pcie, self.nics, server)


def _add_devices(fabric: Fabric, spec: DeviceSpec, count: int, server: int) -> list[str]:
    return [
        fabric.add_device(f"server{server}/{spec.name}/{number}", spec, server)
        for number in range(count)
    ]


def _hang(
    fabric: Fabric, devices: list[str], switches: list[str], pcie: LinkSpec, nics: int, server: int
) -> list[str]:
    """Hang devices and NICs on PCIe switches in equal consecutive blocks; returns the NICs."""
    for number, device in enumerate(devices):
        fabric.connect(device, switches[number * len(switches) // len(devices)], pcie)
    cards = []
    for number in range(nics):
        cards.append(fabric.add_nic(f"server{server}/nic{number}", server))
        fabric.connect(cards[number], switches[number * len(switches) // nics], pcie)
    return cards
