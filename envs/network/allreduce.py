"""How long an all-reduce takes among the devices of one server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike

from envs.arrays import FloatArray
from envs.errors import InputError, require_one_of
from envs.units import GIGA, MICROSECOND


@dataclass(frozen=True)
class Link:
    """What joins the devices of a server.

    Args:
        bandwidth: of a device, one direction, bytes/s; of one ring where `rings` is given.
        latency_s: of an all-reduce of nothing between two devices, less a hop.
        hop_s: for each device but the first.
        own: bytes/s at which a device goes over the buffer itself, over `bandwidth`; 0: no time.
        rings: how many find links of their own, by the number of devices.
    """

    bandwidth: float
    latency_s: float = 45 * MICROSECOND
    hop_s: float = 5.8 * MICROSECOND
    own: float = 1.78
    rings: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))


# A mesh of V100: between five devices a part of the second ring goes over a link twice.
_MESH_RINGS = MappingProxyType({2: 1.0, 3: 2.0, 4: 4.0, 5: 1.65, 6: 2.0, 7: 4.0, 8: 6.0})
# Four devices on a board without switch: a third of a device's links lead to each other one.
_BOARD_RINGS = MappingProxyType({2: 1 / 3, 3: 2 / 3, 4: 1.0})


def _nvlink(gigabytes_per_second: float) -> Link:
    """Through switches."""
    return Link(gigabytes_per_second * GIGA)


def _board(gigabytes_per_second: float) -> Link:
    return Link(0.6 * gigabytes_per_second * GIGA, own=1.78 / 0.6, rings=_BOARD_RINGS)


def _pcie(gigabytes_per_second: float) -> Link:
    """Through the memory of the host, which takes each byte in and gives it out."""
    return Link(0.59 * gigabytes_per_second * GIGA, own=0.68)


LINKS: Mapping[str, Link] = {
    "NVLink 2 mesh": Link(22.4 * GIGA, 21 * MICROSECOND, 6.8 * MICROSECOND, 0.0, _MESH_RINGS),
    "NVLink 3": _nvlink(300),
    "NVLink 4": _nvlink(450),
    "NVLink 5": _nvlink(900),
    "NVLink 3 board of 4": _board(300),
    "NVLink 4 board of 4": _board(450),
    "NVLink bridge": Link(0.6 * 56.25 * GIGA, own=1.78 / 0.6),
    "PCIe 3": _pcie(15.75),
    "PCIe 4": _pcie(31.5),
    "PCIe 5": _pcie(63.0),
}


def allreduce_seconds(size: ArrayLike, devices: int, link: str | Link) -> FloatArray:
    """Seconds of a sum of `size` bytes over `devices` of one server, each of which holds as much.

    Every byte is sent 2 (n - 1) / n times over a ring, and each device goes over all of them once.
    Latencies and `own` are fitted to all-reduces of 1 MiB to 1 GiB measured over 2 to 8 A100 with
    NVSwitch and V100 of a DGX-1 (published by the authors of vTrain, MICRO 2024): median errors
    1.4 % and 1.0 %, the links of the A100 at their nominal 300 GB/s. Boards of four and PCIe 3 are
    fitted to embeddings shared by A100, GH200, RTX 2080 and Titan RTX (by those of Sailor, SOSP
    2025), about 10 % of them; PCIe 4 and 5 are as much faster as their data sheets say.

    Raises:
        InputError: an unknown link, or fewer than one device.
    """
    if devices < 1:
        raise InputError(f"{devices} of them", field="devices")
    if isinstance(link, str):
        require_one_of(link, tuple(LINKS), field="link")
        link = LINKS[link]
    amount = np.asarray(size, dtype=np.float64)
    if devices == 1:
        return np.zeros_like(amount)
    rings = link.rings.get(devices, max(link.rings.values(), default=1.0))
    passes = 2.0 * (devices - 1) / devices / rings + (1.0 / link.own if link.own else 0.0)
    found: FloatArray = (
        link.latency_s + link.hop_s * (devices - 1) + passes * amount / link.bandwidth
    )
    return found
