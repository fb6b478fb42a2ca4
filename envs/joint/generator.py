"""What an episode is about when nothing is said."""

from __future__ import annotations

from envs.cost.roofline import RooflineCost
from envs.hardware.builders import planes
from envs.hardware.servers import PcieServer
from envs.placement.generator import SyntheticInstances


def default_generator() -> SyntheticInstances:
    """Random training graphs on four servers of one V100, with two 25 Gb/s links each."""
    pcie = {"medium": "PCIe 3.0 x16", "bandwidth": "15.75GB/s", "latency": "2us"}
    network = {"medium": "Ethernet 25G", "bandwidth": "25Gbps", "latency": "5us"}
    topology = planes("two_planes", PcieServer("V100-16GB", 1, pcie, nics=2), 4, network)
    return SyntheticInstances(topology, RooflineCost())
