"""The servers of a plan as machines: their names, network interfaces and addresses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address

from agents.bandwidth.enforcement.framing import Framing
from envs.errors import InputError

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
