"""Topologies by name: every builder takes plain values with units and returns a `Topology`.

A *server* argument is an object of `envs.hardware.servers`; links are sections
`{medium, bandwidth, latency}`. Bad values are an `InputError` that names the key.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from envs.bounds import Positive, bounded
from envs.errors import InputError
from envs.hardware.devices import Device, DeviceSpec, device_spec
from envs.hardware.fabric import Fabric, LinkSpec, read_size
from envs.hardware.servers import (
    HybridCubeMeshServer,
    NvlinkServer,
    NvswitchServer,
    PcieServer,
    Server,
)
from envs.hardware.topology import Topology, fabric_topology, port_topology
from envs.units import GIGA, MICROSECOND


def single_server(name: str, server: Server) -> Topology:
    """One server by itself; its NICs lead nowhere."""
    fabric = Fabric(name)
    server.add_to(fabric, 0)
    return fabric_topology(name, fabric)


def mixed(name: str, servers: Sequence[Server], network: object) -> Topology:
    """Servers of any kinds around one network switch.

    Args:
        network: the link from each NIC to the switch; a route between servers has two of them.
    """
    link = LinkSpec.parse(network, key="network")
    fabric = Fabric(name)
    nics = [nic for index, server in enumerate(servers) for nic in server.add_to(fabric, index)]
    switch = fabric.add_switch("switch")
    for nic in nics:
        fabric.connect(nic, switch, link)
    return fabric_topology(name, fabric)


def uniform(name: str, server: Server, servers: int, network: object) -> Topology:
    """`servers` servers of one kind around one network switch; see `mixed`."""
    return mixed(name, [server] * read_size(servers, key="servers"), network)


def planes(name: str, server: Server, servers: int, network: object) -> Topology:
    """`servers` servers of one kind whose NICs lead into separate networks, a switch for each NIC.

    NIC m of every server is joined to switch m; the switches are not joined. A server with two NICs
    therefore has two physical links to every other one.

    Args:
        network: the link from each NIC to its switch; a route between servers has two of them.
    """
    link = LinkSpec.parse(network, key="network")
    fabric = Fabric(name)
    nics = [server.add_to(fabric, n) for n in range(read_size(servers, key="servers"))]
    for number in range(len(nics[0])):
        switch = fabric.add_switch(f"plane{number}")
        for own in nics:
            fabric.connect(own[number], switch, link)
    return fabric_topology(name, fabric)


def nvlink_islands(
    name: str, device: str | DeviceSpec, count: int, island: int, nvlink: object, pcie: object
) -> Topology:
    """One server of `count` devices in NVLink islands of `island`, PCIe between the islands."""
    return single_server(name, NvlinkServer(device, count, island, nvlink, pcie))


def dgx1(
    name: str,
    device: str | DeviceSpec,  # kind in envs/hardware/devices.py
    nvlink: object,  # one brick; some pairs have two
    pcie: object,  # device - PCIe switch, NIC - PCIe switch, PCIe switch - processor
    socket: object,  # between the two processors
    nics: int,  # InfiniBand cards, one per PCIe switch
    servers: int,  # number of DGX-1
    network: object,  # from each NIC to the switch
) -> Topology:
    """`servers` DGX-1: eight V100 each in a hybrid cube mesh; see `HybridCubeMeshServer`."""
    return uniform(name, HybridCubeMeshServer(device, nvlink, pcie, socket, nics), servers, network)


def nvswitch_servers(
    name: str,
    device: str | DeviceSpec,  # kind in envs/hardware/devices.py
    count: int,  # devices in a server
    nvlink: object,  # from a device to the NVSwitches
    pcie: object,  # device - PCIe switch, NIC - PCIe switch, PCIe switch - host
    switches: int,  # PCIe switches: two devices and two NICs on each
    nics: int,  # network cards
    servers: int,  # number of servers
    network: object,  # from each NIC to the switch
) -> Topology:
    """`servers` servers around NVSwitches, as DGX-2 and DGX A100 are; see `NvswitchServer`."""
    server = NvswitchServer(device, count, nvlink, pcie, switches, nics)
    return uniform(name, server, servers, network)


@bounded
def leaf_spine(
    name: str,
    server: Server,
    leaves: int,  # leaf switches
    servers_per_leaf: int,
    spines: int,  # spine switches, each joined to every leaf
    oversubscription: Positive,
    network: object,
) -> Topology:
    """Two layers of switches: every leaf is joined to every spine.

    An uplink's bandwidth is what the leaf's NICs can send, divided by the number of spines and by
    the oversubscription: with 4 NICs of 25 Gb/s, 2 spines and 2:1, each uplink has 25 Gb/s.

    Args:
        servers_per_leaf: servers below each leaf.
        oversubscription: bandwidth down from a leaf over its bandwidth up; at least 1 in practice.
        network: the link from a NIC to its leaf; uplinks have its medium and latency.
    """
    link = LinkSpec.parse(network, key="network")
    read_size(leaves, key="leaves")
    read_size(servers_per_leaf, key="servers_per_leaf")
    read_size(spines, key="spines")
    fabric = Fabric(name)
    below: list[list[str]] = [[] for _ in range(leaves)]
    for index in range(leaves * servers_per_leaf):
        below[index // servers_per_leaf] += server.add_to(fabric, index)
    tops = [fabric.add_switch(f"spine{number}") for number in range(spines)]
    if not below[0]:
        raise InputError("has no NIC to join to a leaf", field="server.nics")
    for number, nics in enumerate(below):
        leaf = fabric.add_switch(f"leaf{number}")
        for nic in nics:
            fabric.connect(nic, leaf, link)
        for top in tops:
            fabric.connect(leaf, top, link.times(len(nics) / (spines * oversubscription)))
    return fabric_topology(name, fabric)


def fat_tree(name: str, server: Server, k: int, network: object) -> Topology:
    """A k-ary fat-tree of k**3 / 4 servers with one NIC each, non-blocking.

    k pods of k/2 edge and k/2 aggregation switches and (k/2)**2 core switches, all links alike
    (Al-Fares, Loukissas, Vahdat: A scalable, commodity data center network architecture, SIGCOMM
    2008, section 3).

    Args:
        server: the kind of server; it must have exactly one NIC.
        k: ports of a switch; even.
        network: every link of the tree.
    """
    link = LinkSpec.parse(network, key="network")
    half = read_size(k, key="k", at_least=2) // 2
    if k % 2:
        raise InputError(
            f"{k} is odd; a fat-tree's switches have an even number of ports", field="k"
        )
    fabric = Fabric(name)
    nics = [server.add_to(fabric, index) for index in range(k * half * half)]
    if len(nics[0]) != 1:
        raise InputError(f"{len(nics[0])} NICs; a fat-tree's servers have one", field="server.nics")
    cores = [fabric.add_switch(f"core{number}") for number in range(half * half)]
    for pod in range(k):
        upper = [fabric.add_switch(f"pod{pod}/aggregation{number}") for number in range(half)]
        for number, switch in enumerate(upper):
            for core in cores[number * half : (number + 1) * half]:
                fabric.connect(switch, core, link)
        for number in range(half):
            edge = fabric.add_switch(f"pod{pod}/edge{number}")
            for switch in upper:
                fabric.connect(edge, switch, link)
            first = (pod * half + number) * half
            for (nic,) in nics[first : first + half]:
                fabric.connect(nic, edge, link)
    return fabric_topology(name, fabric)


def torus(
    name: str,
    device: str | DeviceSpec,
    shape: Sequence[int],
    chip: object,
    link: object,
) -> Topology:
    """A torus of any dimension: one device, its NIC and its router at every point.

    Routers are joined to their two neighbours in each dimension (to one where the dimension is 2).
    A device injects through its NIC, so it sends one and receives one tensor at a time.

    Args:
        device: a kind of the catalogue, or a `DeviceSpec`.
        shape: points in each dimension.
        chip: the link from a device to its NIC and from there to its router.
        link: the link between neighbouring routers.
    """
    inside, between = LinkSpec.parse(chip, key="chip"), LinkSpec.parse(link, key="link")
    spec = device_spec(device)
    if not shape:
        raise InputError("has no dimensions", field="shape")
    sizes = [read_size(size, key="shape") for size in shape]
    points = list(product(*(range(size) for size in sizes)))
    label = {point: "-".join(str(coordinate) for coordinate in point) for point in points}
    fabric = Fabric(name)
    router = {}
    for server, point in enumerate(points):
        node = fabric.add_device(f"server{server}/{spec.name}/0", spec, server)
        nic = fabric.add_nic(f"server{server}/nic0", server)
        router[point] = fabric.add_switch(f"router{label[point]}")
        fabric.connect(node, nic, inside)
        fabric.connect(nic, router[point], inside)
    joined = set()
    for point in points:
        for axis, size in enumerate(sizes):
            ahead = (*point[:axis], (point[axis] + 1) % size, *point[axis + 1 :])
            pair = frozenset((point, ahead))
            if len(pair) == 2 and pair not in joined:
                joined.add(pair)
                fabric.connect(router[point], router[ahead], between)
    return fabric_topology(name, fabric)


Rng = np.random.Generator
# What random topologies are made of. Another device here changes what every seed draws.
DEVICES = (
    "V100-16GB", "V100-32GB", "P100-16GB", "P100-PCIe-16GB", "T4", "A10", "A100-40GB", "A100-80GB",
    "H100", "H200", "B200", "L4", "L40S", "MI300X",
)  # fmt: skip
MOST_PER_SERVER, MOST_SERVERS = 8, 8
SIZES = (2, 2, 3, 4, 4, 4, 5, 6, 6, 7, 8, 8, 8, 8, 8, 10, 12, 16, 16, 24, 32)  # most are small
NETWORK_GBPS = (10, 25, 40, 50, 100, 200, 400)
PCIE_GBYTES = (15.75, 31.5, 63.0)  # 16 lanes of generations 3, 4 and 5
NVLINK_GBYTES = (50, 100, 150, 300, 450)


def random_topology(rng: Rng, most_devices: int, wide: bool = True) -> Topology:
    """Between 2 and `most_devices` devices in at most `MOST_SERVERS` servers.

    Servers are alike, or of up to three kinds of devices. `wide`: up to four, and every fifth
    cluster has PCIe alone.
    """
    total = int(rng.choice([size for size in SIZES if size <= most_devices]))
    numbers = [1, 1, 2, 2, 3, 4] if wide else [1, 1, 2, 2, 3]
    kinds = rng.choice(DEVICES, size=int(rng.choice(numbers)), replace=False)
    joined = ("pcie",) if wide and rng.random() < 0.2 else ("pcie", "islands", "nvswitch")
    sizes, name = _server_sizes(rng, total), f"random_{total}"
    network = _link(rng, "network", NETWORK_GBPS, 1 / 8, float(rng.uniform(1, 20)))
    if len(set(sizes)) == 1 and len(sizes) in (4, 6, 8) and rng.random() < 0.5:
        server, spines = _server(rng, str(kinds[0]), sizes[0], joined), int(rng.integers(1, 3))
        times = float(rng.choice([1, 2, 4]))
        return leaf_spine(name, server, len(sizes) // 2, 2, spines, times, network)
    servers = [_server(rng, str(rng.choice(kinds)), size, joined) for size in sizes]
    return single_server(name, servers[0]) if len(servers) == 1 else mixed(name, servers, network)


def pairwise_topology(rng: Rng, most_devices: int) -> Topology:
    """Up to 8 devices of up to three kinds, every ordered pair with a link class of its own.

    As files with tabulated transfers describe their devices: no latencies, a pair of ports each.
    """
    total = int(rng.integers(2, min(most_devices, 8) + 1))
    kinds = rng.choice(DEVICES, size=int(rng.integers(1, 4)), replace=False)
    pairs = total * (total - 1)
    apart = ~np.eye(total, dtype=np.bool_)
    link = np.zeros((total, total), dtype=np.int64)
    link[apart] = np.arange(1, pairs + 1)
    spread = rng.uniform(0, 1) * rng.uniform(-1, 1, pairs)
    bandwidth = np.exp(rng.uniform(np.log(1), np.log(60)) + spread) * GIGA
    return port_topology(
        f"pairs_{total}",
        [
            Device(f"device{number}", device_spec(str(rng.choice(kinds))), 0)
            for number in range(total)
        ],
        link,
        ("same", *(f"{i}->{j}" for i, j in np.argwhere(apart).tolist())),
        np.concatenate([[np.inf], bandwidth]),
    )


def _server_sizes(rng: Rng, total: int) -> list[int]:
    """Devices of each server: all in one, equal servers, or servers of any sizes."""
    if total <= MOST_PER_SERVER and rng.random() < 0.35:
        return [total]
    equal = [
        size for size in range(1, MOST_PER_SERVER + 1)
        if total % size == 0 and 1 < total // size <= MOST_SERVERS
    ]  # fmt: skip
    if equal and rng.random() < 0.7:
        size = int(rng.choice(equal))
        return [size] * (total // size)
    least = max(2, -(-total // MOST_PER_SERVER))
    sizes = np.ones(int(rng.integers(least, min(total, MOST_SERVERS) + 1)), dtype=np.int64)
    while sizes.sum() < total:
        sizes[rng.choice(np.flatnonzero(sizes < MOST_PER_SERVER))] += 1
    return sizes.tolist()


def _server(rng: Rng, kind: str, count: int, ways: Sequence[str]) -> Server:
    pcie, nvlink = _link(rng, "PCIe", PCIE_GBYTES), _link(rng, "NVLink", NVLINK_GBYTES)
    inside = (
        2 if count >= 4 and rng.random() < 0.4 else 1,
        min(count, int(rng.choice([1, 1, 2, 8]))),
    )
    joined = str(rng.choice(ways)) if count > 1 else "pcie"
    if joined == "islands":
        island = int(rng.choice([size for size in range(2, count + 1) if count % size == 0]))
        return NvlinkServer(kind, count, island, nvlink, pcie, *inside)
    if joined == "nvswitch":
        return NvswitchServer(kind, count, nvlink, pcie, *inside)
    return PcieServer(kind, count, pcie, *inside)


def _link(
    rng: Rng, medium: str, rates: tuple[float, ...], share: float = 1.0, latency_us: float = 2.0
) -> LinkSpec:
    """One of the nominal `rates` in GB/s times `share`, three quarters of it at least."""
    rate = share * float(rng.choice(rates)) * float(rng.uniform(0.75, 1.0)) * GIGA
    return LinkSpec(medium, rate, latency_us * MICROSECOND)
