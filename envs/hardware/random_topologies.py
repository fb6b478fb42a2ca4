"""Clusters drawn at random: servers of one kind or several, joined by fast and slow links."""

from __future__ import annotations

import numpy as np

from envs.hardware.builders import leaf_spine, mixed, single_server
from envs.hardware.devices import CATALOGUE, Device, device_spec
from envs.hardware.fabric import LinkSpec
from envs.hardware.servers import NvlinkServer, NvswitchServer, PcieServer, Server
from envs.hardware.topology import Topology
from envs.units import GIGA, MICROSECOND

Rng = np.random.Generator
DEVICES = tuple(kind for kind in CATALOGUE if kind != "CPU")
MOST_PER_SERVER, MOST_SERVERS = 8, 8
SIZES = (2, 2, 3, 4, 4, 4, 5, 6, 6, 7, 8, 8, 8, 8, 8, 10, 12, 16, 16, 24, 32)  # most are small
NETWORK_GBPS = (10, 25, 40, 50, 100, 200, 400)
PCIE_GBYTES = (15.75, 31.5, 63.0)  # 16 lanes of generations 3, 4 and 5
NVLINK_GBYTES = (50, 100, 150, 300, 450)


def random_topology(rng: Rng, most_devices: int) -> Topology:
    """Between 2 and `most_devices` devices in at most `MOST_SERVERS` servers.

    Servers are alike, or of up to three kinds of devices.
    """
    total = int(rng.choice([size for size in SIZES if size <= most_devices]))
    kinds = rng.choice(DEVICES, size=int(rng.choice([1, 1, 2, 2, 3])), replace=False)
    sizes = _server_sizes(rng, total)
    network = LinkSpec(
        "network",
        float(rng.choice(NETWORK_GBPS)) * GIGA / 8,
        float(rng.uniform(1, 20)) * MICROSECOND,
    )
    name = f"random_{total}"
    if len(set(sizes)) == 1 and len(sizes) in (4, 6, 8) and rng.random() < 0.5:
        server = _server(rng, str(kinds[0]), sizes[0])
        return leaf_spine(
            name, server, leaves=len(sizes) // 2, servers_per_leaf=2,
            spines=int(rng.integers(1, 3)), oversubscription=float(rng.choice([1, 2, 4])),
            network=network,
        )  # fmt: skip
    servers = [_server(rng, str(rng.choice(kinds)), size) for size in sizes]
    return single_server(name, servers[0]) if len(servers) == 1 else mixed(name, servers, network)


def pairwise_topology(rng: Rng, most_devices: int) -> Topology:
    """Devices of several kinds with a link class of its own for every ordered pair, no latencies.

    As files with tabulated transfers describe their devices.
    """
    total = int(rng.integers(2, min(most_devices, 8) + 1))
    kinds = rng.choice(DEVICES, size=int(rng.integers(1, 4)), replace=False)
    apart = ~np.eye(total, dtype=np.bool_)
    link = np.zeros((total, total), dtype=np.int64)
    link[apart] = np.arange(1, total * (total - 1) + 1)
    fastest = np.exp(rng.uniform(np.log(1), np.log(60))) * GIGA
    bandwidth = fastest * np.exp(rng.uniform(-1, 1) * rng.uniform(0, 1, link.max()))
    names = [f"device{number}" for number in range(total)]
    send = np.where(apart, np.arange(total)[:, None], -1)
    receive = np.where(apart, total + np.arange(total)[None, :], -1)
    return Topology(
        name=f"pairs_{total}",
        devices=tuple(Device(node, device_spec(str(rng.choice(kinds))), 0) for node in names),
        link_class=link,
        class_names=("same", *(f"{i}->{j}" for i, j in np.argwhere(apart).tolist())),
        class_latency=np.zeros(link.max() + 1),
        class_bandwidth=np.concatenate([[np.inf], bandwidth]),
        send_port=send.astype(np.int64),
        receive_port=receive.astype(np.int64),
        port_names=(*(f"{node}.send" for node in names), *(f"{node}.receive" for node in names)),
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
    least = max(2 if total > 1 else 1, -(-total // MOST_PER_SERVER))
    sizes = np.ones(int(rng.integers(least, min(total, MOST_SERVERS) + 1)), dtype=np.int64)
    while sizes.sum() < total:
        sizes[rng.choice(np.flatnonzero(sizes < MOST_PER_SERVER))] += 1
    return [int(size) for size in sizes]


def _server(rng: Rng, kind: str, count: int) -> Server:
    reached = float(rng.uniform(0.75, 1.0))  # of the nominal rate
    pcie = LinkSpec("PCIe", reached * float(rng.choice(PCIE_GBYTES)) * GIGA, 2 * MICROSECOND)
    nvlink = LinkSpec("NVLink", float(rng.choice(NVLINK_GBYTES)) * GIGA, 2 * MICROSECOND)
    switches = 2 if count >= 4 and rng.random() < 0.4 else 1
    nics = int(rng.choice([1, 1, 2])) if count > 1 else 1
    joined = str(rng.choice(["pcie", "islands", "nvswitch"])) if count > 1 else "pcie"
    if joined == "islands":
        island = int(rng.choice([size for size in range(2, count + 1) if count % size == 0]))
        return NvlinkServer(kind, count, island, nvlink, pcie, switches, nics)
    if joined == "nvswitch":
        return NvswitchServer(kind, count, nvlink, pcie, switches, nics)
    return PcieServer(kind, count, pcie, switches, nics)
