"""How many bytes a payload is on the wire."""

from __future__ import annotations

PAYLOAD_BYTES = 1448  # of a full TCP segment: MTU 1500 - IPv4 20 - TCP 20 - timestamps 12
FRAME_BYTES = 1514  # of its Ethernet frame as the kernel counts it: MTU 1500 + header 14


def wire_bytes(payload: float) -> float:
    """Bytes on the wire of `payload` bytes sent over TCP/IPv4 in full Ethernet frames.

    This is what `tc` counts and shapes: no preamble, frame check sequence or gap between frames,
    and no acknowledgements, which travel the other way. RFC 9293 (TCP), RFC 7323 (timestamps).
    """
    return payload * FRAME_BYTES / PAYLOAD_BYTES
