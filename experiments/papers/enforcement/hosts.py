"""A plan seen from its machines: frames, addresses, and what each NIC sends to whom, how fast."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address

from envs.errors import InputError
from envs.hardware.network import Network
from envs.step.plans import BandwidthAllocation
from experiments.execution.namespaces import Framing

_INTERFACE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,14}")  # the kernel's limit is 15 characters
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class HostNic:
    """A NIC on its machine.

    Args:
        interface: what the kernel calls it.
        address: its IPv4 address; the NICs of a plane share a subnet.
        bridge: the Open vSwitch bridge it is a port of; the address is then the bridge's.

    Raises:
        InputError: naming the field.
    """

    interface: str
    address: str
    bridge: str | None = None

    def __post_init__(self) -> None:
        for name, value in (("interface", self.interface), ("bridge", self.bridge)):
            if value is not None and not _INTERFACE.fullmatch(value):
                raise InputError(f"{value!r} is no name of a network interface", field=name)
        check_address(self.address)


@dataclass(frozen=True)
class Host:
    """A machine.

    Args:
        name: its files are called after it.
        address: an IPv4 address of the machine itself, on its loopback: a connection to it may take
            any NIC.
        nics: its NICs, by their names in the topology.

    Raises:
        InputError: naming the field.
    """

    name: str
    address: str
    nics: Mapping[str, HostNic]

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InputError(f"{self.name!r} is no name of a machine", field="servers")
        check_address(self.address)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Its own address, then those of its NICs."""
        return (self.address, *(nic.address for nic in self.nics.values()))


@dataclass(frozen=True)
class Hosts:
    """All machines of a plan and the frames on the links between them.

    Raises:
        InputError: an address or a NIC stands twice, or an interface twice on one machine.
    """

    framing: Framing
    hosts: tuple[Host, ...]

    def __post_init__(self) -> None:
        addresses: dict[str, str] = {}
        homes: dict[str, str] = {}
        for host in self.hosts:
            for address in host.addresses:
                if address in addresses:
                    raise InputError(
                        f"{address} is also an address of {addresses[address]!r}",
                        record=host.name,
                        field="address",
                    )
                addresses[address] = host.name
            devices: set[str] = set()
            for name, nic in host.nics.items():
                if name in homes:
                    raise InputError(
                        f"{name!r} is also a NIC of {homes[name]!r}", record=host.name, field="nics"
                    )
                homes[name] = host.name
                for device in filter(None, (nic.interface, nic.bridge)):
                    if device in devices:
                        raise InputError(
                            f"{device!r} stands twice", record=host.name, field="interface"
                        )
                    devices.add(device)

    def of_nic(self, name: str) -> Host:
        """The machine that holds the NIC called `name` in the topology.

        Raises:
            InputError: none does.
        """
        for host in self.hosts:
            if name in host.nics:
                return host
        raise InputError(f"no server has the NIC {name!r} of the topology", field="nics")


def check_address(text: str) -> None:
    """Refuse what is no IPv4 address of one machine.

    Raises:
        InputError: `text` is something else.
    """
    try:
        address = IPv4Address(text)
    except AddressValueError as error:
        raise InputError(f"{text!r} is no IPv4 address", field="address") from error
    if address.is_multicast or address.is_reserved or address.is_unspecified or address.is_loopback:
        raise InputError(f"{text} is no address of one machine", field="address")


@dataclass(frozen=True)
class Lane:
    """A channel on its way out of a server."""

    channel: str  # its name in the network
    number: int  # of the destination server, from 1: names classes and queues
    destination: Host
    gateway: HostNic  # the destination's NIC on the same plane
    rate: float  # bytes/s on the line

    def bits(self, framing: Framing) -> int:
        """Whole bit/s that the kernel counts; 0 where the plan gives nothing."""
        return framing.kernel_bits(self.rate)

    def about(self) -> str:
        """What the plan gives it, in a few words."""
        return f"{self.channel}: {self.rate:.6g} bytes/s of the line to {self.destination.name}."


@dataclass(frozen=True)
class Uplink:
    """A NIC of a server and the lanes that leave through it, by destination."""

    name: str  # in the topology
    nic: HostNic
    capacity: float  # bytes/s on the line
    lanes: tuple[Lane, ...]


@dataclass(frozen=True)
class ServerPlan:
    """What one server has to enforce."""

    host: Host
    uplinks: tuple[Uplink, ...]
    framing: Framing

    def lanes_to(self, destination: Host) -> list[tuple[Uplink, Lane]]:
        """All lanes to one server."""
        return [
            (up, lane)
            for up in self.uplinks
            for lane in up.lanes
            if lane.destination == destination
        ]

    @property
    def destinations(self) -> tuple[Host, ...]:
        """The servers that lanes lead to, by number."""
        found = {lane.number: lane.destination for up in self.uplinks for lane in up.lanes}
        return tuple(found[number] for number in sorted(found))


def server_plans(
    allocation: BandwidthAllocation, network: Network, hosts: Hosts
) -> list[ServerPlan]:
    """The plan of every server of `network` that sends, in the order of the servers.

    Raises:
        InputError: the allocation is not feasible, a NIC has no machine, the NICs of a server are
            on several machines, or two channels lead from one NIC to one server: they differ in
            the switches between, and a server cannot choose between those.
    """
    violations = allocation.violations(network)
    if violations:
        raise InputError("; ".join(violations), field="bandwidth")
    home = _homes(network, hosts)
    uplinks: dict[int, dict[str, list[Lane]]] = {}
    capacity: dict[str, float] = {}
    seen: dict[tuple[str, int], str] = {}
    for channel, name in enumerate(network.channel_names):
        source = int(network.channel_source[channel])
        destination = int(network.channel_destination[channel])
        nic = network.channel_source_nic[channel]
        if (nic, destination) in seen:
            raise InputError(
                f"channels {seen[nic, destination]!r} and {name!r} leave the same NIC for the same "
                "server: only the switches between could choose one of them",
                field="bandwidth",
            )
        seen[nic, destination] = name
        capacity[nic] = float(network.link_capacity[network.links_of(channel)[0]])
        target = home[destination]
        far = target.nics[network.channel_destination_nic[channel]]
        lane = Lane(name, destination + 1, target, far, float(allocation.rate[channel]))
        uplinks.setdefault(source, {}).setdefault(nic, []).append(lane)
    return [
        ServerPlan(
            home[server],
            tuple(
                Uplink(nic, home[server].nics[nic], capacity[nic], tuple(found[nic]))
                for nic in found
            ),
            hosts.framing,
        )
        for server, found in sorted(uplinks.items())
    ]


def _homes(network: Network, hosts: Hosts) -> dict[int, Host]:
    """The machine of every server that sends or receives."""
    home: dict[int, Host] = {}
    taken: dict[str, int] = {}
    ends = (
        (network.channel_source, network.channel_source_nic),
        (network.channel_destination, network.channel_destination_nic),
    )
    for servers, nics in ends:
        for server, nic in zip(servers.tolist(), nics, strict=True):
            host = hosts.of_nic(nic)
            if (
                home.setdefault(server, host) != host
                or taken.setdefault(host.name, server) != server
            ):
                raise InputError(
                    f"{nic!r} is not a NIC of the server it stands under in the topology",
                    record=host.name,
                    field="nics",
                )
    return home
