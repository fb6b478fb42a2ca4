"""Devices: a kind by its datasheet, and one of them in a server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class DeviceSpec:
    """A kind of device: its datasheet.

    `peak_flops` maps a dtype name (`envs.graphs.op_graph.DTYPES`) to FLOP/s. `compute_efficiency`
    and `memory_efficiency` are the fractions of the two peaks that real kernels reach.
    """

    name: str
    peak_flops: Mapping[str, float]  # FLOP/s by dtype
    memory_bandwidth: float  # bytes/s
    memory_bytes: float  # bytes
    launch_overhead_s: float  # seconds per operator
    compute_efficiency: float  # 0..1
    memory_efficiency: float  # 0..1
    source: str  # where the figures stand


@dataclass(frozen=True)
class Device:
    """One device of a topology."""

    name: str
    spec: DeviceSpec
    server: int
