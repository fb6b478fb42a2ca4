"""`Topology`: devices, the routes between them, and the ports those routes occupy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from envs.errors import InputError
from envs.hardware.network import Network, port_network

if TYPE_CHECKING:
    from envs.hardware.fabric import Fabric

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


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


@dataclass(frozen=True, eq=False)
class Topology:
    """D devices and what lies between every ordered pair of them.

    Pairs with the same route quality share a *link class*; class 0 is a device with itself. A
    transfer from device i to device j holds port `send_port[i, j]` and port `receive_port[i, j]`:
    inside a server the endpoint devices' own ports, between servers the ports of the NICs.
    `network` has the physical links, which transfers share where they do not hold ports.
    """

    name: str
    devices: tuple[Device, ...]  # (D,) unique names
    link_class: IntArray  # (D, D) 0..L-1, 0 on the diagonal
    class_names: tuple[str, ...]  # (L,)
    class_latency: FloatArray  # (L,) seconds: sum along the route
    class_bandwidth: FloatArray  # (L,) bytes/s: the smallest on the route; inf for class 0
    send_port: IntArray  # (D, D) port index, -1 on the diagonal
    receive_port: IntArray  # (D, D) port index, -1 on the diagonal
    port_names: tuple[str, ...]  # all ports, senders and receivers
    fabric: Fabric | None = None  # what the topology was routed from; None: only ports are known

    def __post_init__(self) -> None:
        names = [device.name for device in self.devices]
        if not names:
            raise InputError("has no devices", file=f"topology {self.name}")
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise InputError(
                f"device {twice!r} stands twice", file=f"topology {self.name}", record=twice
            )
        d = len(names)
        for column in ("link_class", "send_port", "receive_port"):
            if getattr(self, column).shape != (d, d):
                raise InputError(
                    f"has shape {getattr(self, column).shape}, not {(d, d)}",
                    file=f"topology {self.name}",
                    field=column,
                )

    @property
    def num_devices(self) -> int:
        """D."""
        return len(self.devices)

    @property
    def num_ports(self) -> int:
        """Senders and receivers together."""
        return len(self.port_names)

    @cached_property
    def memory_bytes(self) -> FloatArray:
        """(D,) capacity of each device in bytes."""
        return np.array([device.spec.memory_bytes for device in self.devices], dtype=np.float64)

    @cached_property
    def server(self) -> IntArray:
        """(D,) server index of each device."""
        return np.array([device.server for device in self.devices], dtype=np.int64)

    @property
    def num_servers(self) -> int:
        """Servers, counted by the largest index."""
        return int(self.server.max()) + 1

    @cached_property
    def network(self) -> Network:
        """The links of the fabric; the ports where there is none."""
        from envs.hardware.fabric_network import fabric_network

        if self.fabric is not None:
            return fabric_network(self.fabric)
        return port_network(
            self.server, self.bandwidth, self.send_port, self.receive_port, self.port_names
        )

    @property
    def latency(self) -> FloatArray:
        """(D, D) seconds."""
        return self.class_latency[self.link_class]

    @property
    def bandwidth(self) -> FloatArray:
        """(D, D) bytes/s."""
        return self.class_bandwidth[self.link_class]

    def index(self, name: str) -> int:
        """The number of the device called `name`.

        Raises:
            InputError: no device has that name.
        """
        for number, device in enumerate(self.devices):
            if device.name == name:
                return number
        known = ", ".join(device.name for device in self.devices)
        raise InputError(f"unknown device {name!r} (known: {known})", file=f"topology {self.name}")
