"""A plan seen from its machines: their names and addresses, and what each NIC sends to whom."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address
from typing import Annotated, Any, LiteralString

from annotated_types import MinLen
from pydantic import AfterValidator, BeforeValidator
from pydantic_core import PydanticCustomError

from envs.errors import InputError
from envs.forms import Form
from envs.hardware.network import Network
from envs.step.plans import BandwidthAllocation
from experiments.execution.namespaces import Framing

INTERFACE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,14}")  # the kernel's limit is 15 characters
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")  # of files: 255 on most file systems


def _address(text: str) -> bool:
    try:
        own = IPv4Address(text)
    except AddressValueError:
        return False
    return not (own.is_multicast or own.is_reserved or own.is_unspecified or own.is_loopback)


def _checked(holds: Callable[[str], object], what: LiteralString) -> AfterValidator:
    def checked(text: str) -> str:
        if not holds(text):
            raise PydanticCustomError("no_such_text", what)
        return text

    return AfterValidator(checked)


Interface = Annotated[str, _checked(INTERFACE.fullmatch, "a name of a network interface")]
Address = Annotated[str, _checked(_address, "an IPv4 address of one machine")]
Key = Annotated[str, BeforeValidator(lambda key: str(key) if type(key) is int else key)]
Name = Annotated[Key, _checked(_NAME.fullmatch, "a name of a machine, of 200 characters at most")]


class HostNic(Form):
    """A NIC on its machine; the NICs of a plane share a subnet."""

    interface: Interface  # what the kernel calls it
    address: Address
    bridge: Interface | None = None  # its Open vSwitch bridge, which then has the address


class Host(Form):
    """A machine and its NICs, by their names in the topology."""

    address: Address  # on its loopback: a connection to it may take any NIC
    nics: Annotated[dict[Key, HostNic], MinLen(1)]

    @property
    def addresses(self) -> tuple[str, ...]:
        """Its own address, then those of its NICs."""
        return (self.address, *(nic.address for nic in self.nics.values()))


class Hosts(Form):
    """All machines of a plan by name, and the frames on the links between them.

    Raises:
        InputError: an address or a NIC stands twice, or an interface twice on one
            machine; as `Framing`.
    """

    mtu: int
    line_overhead: int
    servers: Annotated[dict[Name, Host], MinLen(1)]

    @property
    def framing(self) -> Framing:
        """The frames of full TCP segments."""
        return Framing(self.mtu, self.line_overhead)

    def model_post_init(self, _: Any) -> None:
        """Hold each name against all others."""
        Framing(self.mtu, self.line_overhead)  # refuses what is out of bounds
        seen: dict[tuple[str, str], str] = {}
        for name, host in self.servers.items():
            pairs = [(nic.interface, nic.bridge) for nic in host.nics.values()]
            devices = [f"{name}: {device}" for pair in pairs for device in pair if device]
            named = {"address": host.addresses, "nics": host.nics, "interface": devices}
            for field, words in named.items():
                for word in words:
                    if (field, word) in seen:
                        fault = f"{word!r} stands twice, in {seen[field, word]!r} too"
                        raise InputError(fault, record=name, field=field)
                    seen[field, word] = name


@dataclass(frozen=True)
class Channel:
    """A channel of the network on its way out of a server."""

    name: str
    to: str  # the machine
    destination: Host
    gateway: HostNic  # the destination's NIC on the same plane
    rate: float  # bytes/s on the line
    bits: int  # whole bit/s that the kernel counts; 0 where the plan gives nothing

    @property
    def about(self) -> str:
        """What the plan gives it, in a few words."""
        return f"{self.name}: {self.rate:.6g} bytes/s of the line to {self.to}."


@dataclass(frozen=True)
class Uplink:
    """A NIC of a server and the channels that leave through it."""

    name: str  # in the topology
    nic: HostNic
    bits: int  # of its link, as those of channels
    channels: dict[int, Channel]  # by the server's number from 1, which names classes and queues


@dataclass(frozen=True)
class ServerPlan:
    """What one server has to enforce."""

    name: str
    host: Host
    uplinks: list[Uplink]


def server_plans(
    allocation: BandwidthAllocation, network: Network, hosts: Hosts
) -> list[ServerPlan]:
    """The plan of every server of `network` that sends, in the order of the servers.

    Raises:
        InputError: the allocation is not feasible, a NIC has no machine, the NICs of a server are
            on several machines, or two channels lead from one NIC to one server: they differ in
            the switches between, and a server cannot choose between those.
    """
    if violations := allocation.violations(network):
        raise InputError("; ".join(violations), field="bandwidth")
    bits, machines = hosts.framing.kernel_bits, hosts.servers
    owner = {nic: name for name, host in machines.items() for nic in host.nics}
    home, taken = dict[int, str](), dict[str, int]()

    def machine(server: int, nic: str) -> str:
        if nic not in owner:
            raise InputError(f"no server has the NIC {nic!r} of the topology", field="nics")
        name = owner[nic]
        if home.setdefault(server, name) != name or taken.setdefault(name, server) != server:
            fault = f"{nic!r} is not a NIC of the server it stands under in the topology"
            raise InputError(fault, record=name, field="nics")
        return name

    uplinks: dict[int, dict[str, Uplink]] = {}
    for index, name in enumerate(network.channel_names):
        source = int(network.channel_source[index])
        target = int(network.channel_destination[index])
        near, far = network.channel_source_nic[index], network.channel_destination_nic[index]
        own, other = machines[machine(source, near)], machines[machine(target, far)]
        link, rate = network.links_of(index)[0], float(allocation.rate[index])
        up = Uplink(near, own.nics[near], bits(float(network.link_capacity[link])), {})
        channels = uplinks.setdefault(source, {}).setdefault(near, up).channels
        if twin := channels.get(target + 1):
            raise InputError(
                f"channels {twin.name!r} and {name!r} leave the same NIC for the same "
                "server: only the switches between could choose one of them",
                field="bandwidth",
            )
        gateway = other.nics[far]
        channels[target + 1] = Channel(name, home[target], other, gateway, rate, bits(rate))
    return [
        ServerPlan(home[server], machines[home[server]], [*uplinks[server].values()])
        for server in sorted(uplinks)
    ]
