"""`Topology`: devices, the routes between them, and the ports those routes occupy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np

from envs.arrays import FloatArray, IntArray
from envs.errors import InputError
from envs.files import unprintable
from envs.hardware.devices import Device
from envs.hardware.fabric import Fabric, NodeKind, Routes
from envs.hardware.network import Network, fabric_network, port_network
from envs.units import GIGA, MICROSECOND


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
        names = self.device_names
        if not names:
            raise InputError("has no devices", file=f"topology {self.name}")
        if (wrong := unprintable([self.name, *names])) is not None:
            name = [self.name, *names][wrong]
            raise InputError(f"{name!r} holds a control character", file="topology", field="name")
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

    def __repr__(self) -> str:
        kinds = Counter(device.spec.name for device in self.devices)
        counts = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        memory = self.memory_bytes.sum() / 2**30
        return f"Topology {self.name}: {counts} in {self.num_servers} servers, {memory:.4g} GiB"

    @property
    def device_names(self) -> list[str]:
        """(D,)."""
        return [device.name for device in self.devices]

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
        known = self.device_names
        if name not in known:
            reason = f"unknown device {name!r} (known: {', '.join(known)})"
            raise InputError(reason, file=f"topology {self.name}")
        return known.index(name)


def port_topology(
    name: str,
    devices: Sequence[Device],
    link_class: IntArray,
    class_names: tuple[str, ...],
    class_bandwidth: FloatArray,
) -> Topology:
    """Devices with one send and one receive port each, without latencies."""
    d = len(devices)
    apart = ~np.eye(d, dtype=bool)
    send = np.where(apart, np.arange(d)[:, None], -1)
    receive = np.where(apart, d + np.arange(d)[None, :], -1)
    return Topology(
        name=name,
        devices=tuple(devices),
        link_class=link_class,
        class_names=class_names,
        class_latency=np.zeros(len(class_names)),
        class_bandwidth=class_bandwidth,
        send_port=send.astype(np.int64),
        receive_port=receive.astype(np.int64),
        port_names=tuple(
            f"{device.name}.{way}" for way in ("send", "receive") for device in devices
        ),
    )


def fabric_topology(name: str, fabric: Fabric) -> Topology:
    """Routes between all pairs of devices, as a `Topology`.

    Every pair takes the route of `Routes`. Routes of equal (latency,
    bandwidth) form one link class, numbered by first use; its name is the media on its first
    route, the bandwidth and the latency. Every device and every NIC has a send and a receive port:
    inside a server a transfer holds the endpoint devices' ports, between servers the source NIC's
    send port and the destination NIC's receive port.

    Raises:
        InputError: the fabric has no devices, or two of its devices have no route.
    """
    routes = Routes(fabric)
    names = fabric.nodes(NodeKind.DEVICE)
    ports = names + fabric.nodes(NodeKind.NIC)
    port = {node: index for index, node in enumerate(ports)}  # send 2 * index, receive one more
    d = len(names)
    link_class: IntArray = np.zeros((d, d), dtype=np.int64)
    send: IntArray = np.full((d, d), -1, dtype=np.int64)
    receive: IntArray = np.full((d, d), -1, dtype=np.int64)
    classes: dict[tuple[float, float], int] = {}
    class_names = ["same device"]
    for i, j in combinations(range(d), 2):  # the way back is the same links reversed
        route = routes.between(names[i], names[j])
        quality = (route.latency, route.bandwidth)
        if quality not in classes:
            classes[quality] = len(classes) + 1
            class_names.append(
                f"{' + '.join(route.media)}, {route.bandwidth / GIGA:.6g} GB/s, "
                f"{route.latency / MICROSECOND:.6g} us"
            )
        link_class[i, j] = link_class[j, i] = classes[quality]
        gate, far_gate = routes.gates(names[i], names[j])
        send[i, j], receive[i, j] = 2 * port[gate], 2 * port[far_gate] + 1
        send[j, i], receive[j, i] = 2 * port[far_gate], 2 * port[gate] + 1
    latency: FloatArray = np.array([0.0, *(quality[0] for quality in classes)])
    bandwidth: FloatArray = np.array([np.inf, *(quality[1] for quality in classes)])
    return Topology(
        name=name,
        devices=tuple(
            Device(node, fabric.graph.nodes[node]["spec"], fabric.graph.nodes[node]["server"])
            for node in names
        ),
        link_class=link_class,
        class_names=tuple(class_names),
        class_latency=latency,
        class_bandwidth=bandwidth,
        send_port=send,
        receive_port=receive,
        port_names=tuple(f"{node} {way}" for node in ports for way in ("send", "receive")),
        fabric=fabric,
    )
