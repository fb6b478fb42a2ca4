"""What of a link's rate reaches a program: Ethernet, IP and TCP headers."""

from __future__ import annotations

from dataclasses import dataclass

from envs.errors import InputError

ETHERNET_HEADER = 14  # bytes: two addresses and the type, as the kernel counts a frame
TCP_IP_HEADERS = 52  # bytes: IPv4 (20), TCP (20) and its timestamps (12)
_LEAST_MTU = 576  # bytes every IPv4 link carries at least (RFC 791, section 3.1)


@dataclass(frozen=True)
class Framing:
    """The frames of full TCP segments.

    A plan's rates are shares of link capacities, that is of what the line carries. The line carries
    `mtu` + 14 + `line_overhead` bytes for every `mtu` - 52 bytes of payload; the kernel and its
    queues count `mtu` + 14 of them. With an MTU of 1500 that is 1514 bytes for 1448.

    Args:
        mtu: bytes of the largest IP packet.
        line_overhead: bytes of a frame that the kernel does not count: 24 on Ethernet (preamble 8,
            check sequence 4, gap 12; IEEE 802.3), 0 on virtual links.

    Raises:
        InputError: naming the value that is out of range.
    """

    mtu: int
    line_overhead: int

    def __post_init__(self) -> None:
        if not _LEAST_MTU <= self.mtu <= 65_535:
            raise InputError(f"{self.mtu} is not in {_LEAST_MTU}..65535", field="mtu")
        if not 0 <= self.line_overhead <= 1000:
            raise InputError(f"{self.line_overhead} is not in 0..1000", field="line_overhead")

    def kernel_rate(self, rate: float) -> float:
        """Bytes/s that the kernel counts where the line carries `rate` bytes/s."""
        frame = self.mtu + ETHERNET_HEADER
        return rate * frame / (frame + self.line_overhead)

    def payload_rate(self, rate: float) -> float:
        """Bytes/s that programs exchange over TCP where the line carries `rate` bytes/s."""
        return self.kernel_rate(rate) * (self.mtu - TCP_IP_HEADERS) / (self.mtu + ETHERNET_HEADER)

    def kernel_bits(self, rate: float) -> int:
        """Whole bit/s for a queue, rounded down to whole bytes/s; 0 below one byte/s."""
        return 8 * int(self.kernel_rate(rate))
