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
from experiments.execution.namespaces import Framing
from experiments.papers.enforcement.hosts import Host, HostNic, Hosts
from experiments.papers.enforcement.scripts import enforcement_files

SERVERS, PLANES = 3, 2
LINK = 1e6  # bytes/s

Pipes = dict[tuple[int, int], tuple[float, ...]]


def network_of(rate: float, servers: int = SERVERS) -> Network:
    """The network, with links of `rate` bytes/s each way."""
    pcie = {"medium": "PCIe", "bandwidth": "15GB/s", "latency": "2us"}
    server = PcieServer("V100-16GB", 1, pcie, 1, PLANES)
    cable = {"medium": "cable", "bandwidth": rate, "latency": "50us"}
    return planes("links", server, servers, cable).network


def machines(line_overhead: int = 0) -> Hosts:
    """Machine s is `node<s>`, NIC p is `nic<p>` on bridge `br<p>`."""
    hosts = [
        Host(
            f"node{s}",
            f"10.255.0.{s + 1}",
            {
                f"server{s}/nic{p}": HostNic(f"nic{p}", f"10.{p}.0.{s + 1}", f"br{p}")
                for p in range(PLANES)
            },
        )
        for s in range(SERVERS)
    ]
    return Hosts(Framing(1500, line_overhead), tuple(hosts))


def rates(network: Network, pipes: Pipes) -> NDArray[Any]:
    """(C,) the rates of the channels from server to server, 0 for all others."""
    found = np.zeros(network.num_channels)
    for (source, destination), values in pipes.items():
        found[network.channels_between(source, destination)] = values
    return found


def backend_of(option: str, **changed: object) -> Any:
    """An option of the group `backend`."""
    return build({**SHIPPED_CONFIGS.node(f"backend/{option}"), **changed})


def files(option: str, pipes: Pipes) -> dict[str, str]:
    """The text of every file of a plan over links of `LINK`."""
    network = network_of(LINK)
    allocation = BandwidthAllocation(rates(network, pipes))
    made = enforcement_files(allocation, network, machines(), backend_of(option))
    return {file.name: file.text for file in made}
