"""Three servers with two NICs each, in two planes: as a network, and as machines."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.hardware.builders import planes
from envs.hardware.network import Network
from envs.hardware.servers import PcieServer
from envs.step.plans import BandwidthAllocation
from experiments.config.config_source import SHIPPED_CONFIGS
from experiments.config.targets import build
from experiments.papers.enforcement.hosts import Host, HostNic, Hosts, ServerPlan, server_plans

SERVERS, PLANES = 3, 2
LINK = 1e6  # bytes/s

Pipes = dict[tuple[int, int], tuple[float, ...]]


def network_of(rate: float) -> Network:
    """The network, with links of `rate` bytes/s each way."""
    pcie = {"medium": "PCIe", "bandwidth": "15GB/s", "latency": "2us"}
    cable = {"medium": "cable", "bandwidth": rate, "latency": "50us"}
    server = PcieServer("V100-16GB", 1, pcie, 1, PLANES)
    return planes("links", server, SERVERS, cable).network


NETWORK = network_of(LINK)


def machines(line_overhead: int = 0) -> Hosts:
    """Machine s is `node<s>`, NIC p is `nic<p>` on bridge `br<p>`."""

    def nic(server: int, plane: int) -> HostNic:
        address = f"10.{plane}.0.{server + 1}"
        return HostNic(interface=f"nic{plane}", address=address, bridge=f"br{plane}")

    hosts = {
        f"node{s}": Host(
            address=f"10.255.0.{s + 1}",
            nics={f"server{s}/nic{p}": nic(s, p) for p in range(PLANES)},
        )
        for s in range(SERVERS)
    }
    return Hosts(mtu=1500, line_overhead=line_overhead, servers=hosts)


def rates(network: Network, pipes: Pipes) -> NDArray[Any]:
    """(C,) the rates of the channels from server to server, 0 for all others."""
    found = np.zeros(network.num_channels)
    for (source, destination), values in pipes.items():
        found[network.channels_between(source, destination)] = values
    return found


def plans(
    rate: NDArray[Any], network: Network = NETWORK, hosts: Hosts | None = None
) -> list[ServerPlan]:
    return server_plans(BandwidthAllocation(rate), network, hosts or machines())


def files(option: str, own: list[ServerPlan]) -> dict[str, str]:
    """The text of every file of plans, by an option of the group `backend`."""
    backend = build(SHIPPED_CONFIGS.node(f"backend/{option}"))
    return {
        name: text for plan in own for name, text in backend.script(plan).files(plan.name).items()
    }
