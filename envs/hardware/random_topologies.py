"""Clusters drawn at random: servers of one kind or several, joined by fast and slow links."""

from __future__ import annotations

import numpy as np

from envs.hardware.builders import leaf_spine, mixed, single_server
from envs.hardware.devices import CATALOGUE, Device, device_spec
from envs.hardware.fabric import LinkSpec
from envs.hardware.servers import NvlinkServer, NvswitchServer, PcieServer, Server
from envs.hardware.topology import Topology, device_ports
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
    sizes, name = _server_sizes(rng, total), f"random_{total}"
    network = _link(rng, "network", NETWORK_GBPS, 1 / 8, float(rng.uniform(1, 20)))
    if len(set(sizes)) == 1 and len(sizes) in (4, 6, 8) and rng.random() < 0.5:
        server, spines = _server(rng, str(kinds[0]), sizes[0]), int(rng.integers(1, 3))
        times = float(rng.choice([1, 2, 4]))
        return leaf_spine(name, server, len(sizes) // 2, 2, spines, times, network)
    servers = [_server(rng, str(rng.choice(kinds)), size) for size in sizes]
    return single_server(name, servers[0]) if len(servers) == 1 else mixed(name, servers, network)


def pairwise_topology(rng: Rng, most_devices: int) -> Topology:
    """Up to 8 devices of up to three kinds, every ordered pair with a link class of its own.

    As files with tabulated transfers describe their devices: no latencies, a pair of ports each.
    """
    total = int(rng.integers(2, min(most_devices, 8) + 1))
    kinds = rng.choice(DEVICES, size=int(rng.integers(1, 4)), replace=False)
    names, pairs = [f"device{number}" for number in range(total)], total * (total - 1)
    send, receive, ports = device_ports(names)
    apart = ~np.eye(total, dtype=np.bool_)
    link = np.zeros((total, total), dtype=np.int64)
    link[apart] = np.arange(1, pairs + 1)
    spread = rng.uniform(0, 1) * rng.uniform(-1, 1, pairs)
    bandwidth = np.exp(rng.uniform(np.log(1), np.log(60)) + spread) * GIGA
    return Topology(
        name=f"pairs_{total}",
        devices=tuple(Device(node, device_spec(str(rng.choice(kinds))), 0) for node in names),
        link_class=link,
        class_names=("same", *(f"{i}->{j}" for i, j in np.argwhere(apart).tolist())),
        class_latency=np.zeros(pairs + 1),
        class_bandwidth=np.concatenate([[np.inf], bandwidth]),
        send_port=send,
        receive_port=receive,
        port_names=ports,
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


def _server(rng: Rng, kind: str, count: int) -> Server:
    pcie, nvlink = _link(rng, "PCIe", PCIE_GBYTES), _link(rng, "NVLink", NVLINK_GBYTES)
    inside = (
        2 if count >= 4 and rng.random() < 0.4 else 1,
        min(count, int(rng.choice([1, 1, 2, 8]))),
    )
    joined = str(rng.choice(["pcie", "islands", "nvswitch"])) if count > 1 else "pcie"
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
