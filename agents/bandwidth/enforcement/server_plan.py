"""A plan seen from one server: what each of its NICs sends to whom, and how fast."""

from __future__ import annotations

from dataclasses import dataclass

from agents.bandwidth.enforcement.framing import Framing
from agents.bandwidth.enforcement.hosts import Host, HostNic, Hosts
from envs.errors import InputError
from envs.hardware.network import Network
from envs.step.plans import BandwidthAllocation


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
