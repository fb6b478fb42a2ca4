"""Links of a cluster of equal servers: what collectives over them take, as measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from envs.errors import InputError
from envs.hardware.devices import Device, DeviceSpec
from envs.hardware.topology import Topology
from envs.network.allreduce import Link, allreduce_seconds
from envs.units import GIGA, MICROSECOND

NETWORK_LATENCY_S = 5 * MICROSECOND  # of a message between servers
COLLECTIVE_LATENCY_S = 60 * MICROSECOND  # of an all-reduce between servers
EFFICIENCY = 0.85  # share of the cards' bandwidth that collectives between servers reach


@dataclass(frozen=True)
class Servers:
    """Equal servers, whose devices are joined by one kind of link and share network cards.

    Args:
        device: what the devices are.
        per_server: how many devices a server has.
        link: between those of a server.
        cards: network cards of a server.
        card_bandwidth: of one of them, one direction, bytes/s.
    """

    device: DeviceSpec
    per_server: int
    link: Link
    cards: int
    card_bandwidth: float

    def topology(self, devices: int, name: str = "servers") -> Topology:
        """So many devices, server by server, each behind a card."""
        number = np.arange(devices)
        server, place = number // self.per_server, number % self.per_server
        card = server * self.cards + place * self.cards // self.per_server
        apart = server[:, None] != server
        kind = np.where(apart, 2, 1)
        np.fill_diagonal(kind, 0)
        cards = int(card.max()) + 1
        ways = 2 * devices
        send = np.where(apart, ways + card[:, None], number[:, None])
        receive = np.where(apart, ways + cards + card, devices + number)
        for ports in (send, receive):
            np.fill_diagonal(ports, -1)
        return Topology(
            name=name,
            devices=tuple(
                Device(f"server{s}/gpu{p}", self.device, int(s))
                for s, p in zip(server.tolist(), place.tolist(), strict=True)
            ),
            link_class=kind,
            class_names=("same device", "same server", "network"),
            class_latency=np.array([0.0, self.link.latency_s / 4.0, NETWORK_LATENCY_S]),
            class_bandwidth=np.array([np.inf, self.link.bandwidth, self.card_bandwidth]),
            send_port=send,
            receive_port=receive,
            port_names=tuple(
                [f"gpu{n} out" for n in range(devices)]
                + [f"gpu{n} in" for n in range(devices)]
                + [f"card{n} out" for n in range(cards)]
                + [f"card{n} in" for n in range(cards)]
            ),
        )

    def all_reduce(self, rings: Sequence[Sequence[int]]) -> tuple[float, float]:
        """(seconds, seconds a byte) of sums over groups of devices that run beside each other.

        Inside a server as `allreduce_seconds`; a ring over several of them uses all cards of each,
        and shares them with the others that pass there.
        """
        size = len(rings[0])
        if size == 1:
            return 0.0, 0.0
        inside = 1  # most devices of a ring in one server
        passing = Counter[int]()
        for ring in rings:
            servers = Counter(device // self.per_server for device in ring)
            inside = max(inside, *servers.values())
            passing.update(servers.keys() if len(servers) > 1 else ())
        latency, one = allreduce_seconds([0.0, 1.0], inside, self.link).tolist()
        if not passing:
            return latency, one - latency
        bandwidth = EFFICIENCY * self.cards * self.card_bandwidth / max(passing.values())
        return COLLECTIVE_LATENCY_S, max(2.0 * (size - 1) / size / bandwidth, one - latency)


# What joins the devices of a server, by how their names begin; the longest one counts.
_LINKS = {
    **dict.fromkeys(("V100", "P100"), "NVLink 2 mesh"),
    **dict.fromkeys(("V100-PCIe", "P100-PCIe", "P4", "T4", "RTX", "Titan"), "PCIe 3"),
    **dict.fromkeys(("A10", "L4", "RTX-3090", "MI", "A100-PCIe"), "PCIe 4"),
    "A100": "NVLink 3",
    **dict.fromkeys(("H100", "H200", "GH200"), "NVLink 4"),
    "H100-PCIe": "PCIe 5",
    "B200": "NVLink 5",
}


def usual_cards(spec: DeviceSpec) -> tuple[int, float]:
    """(network cards, bytes/s of each) of servers of a kind: 8 of 400 Gb/s, else 4 of 200 Gb/s."""
    newer = spec.name in {"H100", "H200", "B200"}
    return (8, 50 * GIGA) if newer else (4, 25 * GIGA)


def usual_link(spec: DeviceSpec) -> str:
    """The link, a key of `LINKS`, that devices of a kind are mostly joined by.

    Raises:
        InputError: it is not known.
    """
    fitting = [name for name in _LINKS if spec.name.startswith(name)]
    if not fitting:
        raise InputError(f"no link of {spec.name} is known", field="link")
    return _LINKS[max(fitting, key=len)]
