"""Host memory: what stands behind a device's PCIe link, as a device that tensors are sent to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from envs.arrays import IntArray
from envs.hardware.devices import CATALOGUE, Device
from envs.hardware.fabric import LinkSpec, NodeKind
from envs.hardware.topology import Topology
from envs.units import GIGA, MICROSECOND

# Where a topology does not show how a device is joined to its host: graph files, chips of a torus.
DEFAULT_LINK = LinkSpec("PCIe 3.0 x16", 15.75 * GIGA, 2 * MICROSECOND)
HOST = "/host"  # after the name of a device: its host memory
PCIE = "PCIe"  # how the media of links to a host begin


def host_link(topology: Topology, device: int) -> LinkSpec:
    """The PCIe link of a device: that to a switch of its server, or `DEFAULT_LINK`."""
    name, fabric = topology.devices[device].name, topology.fabric
    if fabric is not None and name in fabric.graph:
        for near in fabric.graph[name]:
            link = fabric.link(name, near)
            if near in fabric.nodes(NodeKind.SWITCH) and link.medium.startswith(PCIE):
                return link
    return DEFAULT_LINK


def with_hosts(topology: Topology, owners: IntArray) -> Topology:
    """`topology` and, after its D devices, the host memory of each of the devices `owners` (H,).

    A device's host memory is a part of its server's: as much as the device has itself, which
    servers are sold with (a DGX-1 has 512 GB for 256 GB of devices, a DGX H100 2 TB for 640 GB, a
    DGX B200 2 TB for 1,440 GB: their data sheets). It is reached over the device's PCIe link, and a
    transfer holds the device's own ports, as all transfers inside a server do: meanwhile the device
    sends, or receives, nothing else. Hosts are apart, so that devices do not wait for each other.

    The result knows ports only: what shares physical links knows no hosts.
    """
    count, hosts = topology.num_devices, len(owners)
    total, first_class = count + hosts, len(topology.class_names)
    links = [host_link(topology, d) for d in owners.tolist()]
    kinds = list(dict.fromkeys(links))
    cpu, devices, names = CATALOGUE["CPU"], list(topology.devices), list(topology.port_names)
    link_class: IntArray = np.full((total, total), first_class, dtype=np.int64)
    send: IntArray = np.full((total, total), -1, dtype=np.int64)
    receive = send.copy()
    link_class[:count, :count] = topology.link_class
    send[:count, :count], receive[:count, :count] = topology.send_port, topology.receive_port
    for host, (owner, link) in enumerate(zip(owners.tolist(), links, strict=True), start=count):
        device = topology.devices[owner]
        memory = device.spec.memory_bytes
        spec = replace(cpu, name="host", memory_bytes=memory, source=f"as much as {device.name}")
        devices.append(Device(f"{device.name}{HOST}", spec, device.server))
        link_class[owner, host] = link_class[host, owner] = first_class + kinds.index(link)
        # hosts of others and devices of others exchange nothing with it; every pair has ports
        send[host, :], receive[:, host] = len(names), len(names) + 1
        send[:, host], receive[host, :] = len(names) + 2, len(names) + 3
        names += [f"{device.name}{HOST} {way}" for way in ("sends", "receives", "in", "out")]
        beside = np.flatnonzero((topology.server == device.server) & (np.arange(count) != owner))
        if len(beside):
            send[owner, host] = topology.send_port[owner, beside[0]]
            receive[host, owner] = topology.receive_port[beside[0], owner]
    for table, diagonal in ((link_class, 0), (send, -1), (receive, -1)):
        np.fill_diagonal(table, diagonal)
    return replace(
        topology,
        devices=tuple(devices),
        link_class=link_class,
        class_names=(
            *topology.class_names,
            *(f"{link.medium} to the host, {link.bandwidth / GIGA:.6g} GB/s" for link in kinds),
        ),
        class_latency=np.append(topology.class_latency, [link.latency for link in kinds]),
        class_bandwidth=np.append(topology.class_bandwidth, [link.bandwidth for link in kinds]),
        send_port=send,
        receive_port=receive,
        port_names=tuple(names),
        fabric=None,
    )
