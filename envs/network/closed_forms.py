"""Seconds of collectives on a homogeneous network without contention."""

from __future__ import annotations


def ring_seconds(participants: int, size: float, latency: float, bandwidth: float) -> float:
    """2 (n - 1) (latency + S / n / B): a ring all-reduce of S bytes by n participants.

    n - 1 rounds of S / n bytes each scatter the sums, n - 1 gather them (Patarasuk and Yuan,
    Bandwidth optimal all-reduce algorithms for clusters of workstations, JPDC 69(2), 2009).
    """
    n = participants
    return 2 * (n - 1) * (latency + size / n / bandwidth)
