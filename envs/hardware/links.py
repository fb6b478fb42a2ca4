"""What a fabric is made of: kinds of nodes, kinds of links, links."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from envs.quantities import check_keys, read_quantity
from envs.units import parse_bandwidth, parse_seconds


class NodeKind(Enum):
    """What stands at a node of a fabric."""

    DEVICE = "device"
    NIC = "nic"
    SWITCH = "switch"


@dataclass(frozen=True)
class LinkSpec:
    """A kind of link, full duplex: both directions have the full bandwidth at the same time."""

    medium: str  # "NVLink", "PCIe 3.0 x16", "Ethernet", ...
    bandwidth: float  # bytes/s in each direction
    latency: float  # seconds

    @classmethod
    def parse(cls, section: object, *, key: str) -> LinkSpec:
        """A link from a section `{medium, bandwidth, latency}` of a configuration.

        Raises:
            InputError: naming `key.field`, on a missing or unknown key or a wrong unit.
        """
        if isinstance(section, LinkSpec):
            return section
        fields = check_keys(section, ("medium", "bandwidth", "latency"), key=key)
        return cls(
            medium=str(fields["medium"]),
            bandwidth=read_quantity(
                parse_bandwidth, fields["bandwidth"], key=f"{key}.bandwidth", at_least=1.0
            ),
            latency=read_quantity(parse_seconds, fields["latency"], key=f"{key}.latency"),
        )

    def times(self, count: float) -> LinkSpec:
        """`count` such links side by side, used as one."""
        return LinkSpec(self.medium, self.bandwidth * count, self.latency)


@dataclass(frozen=True)
class Link:
    """A link between two nodes."""

    ends: tuple[str, str]
    spec: LinkSpec
