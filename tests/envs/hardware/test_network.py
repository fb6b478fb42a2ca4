"""Links, channels and paths: of a fabric, and of a topology that knows ports only."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from envs.hardware.builders import fat_tree, leaf_spine, mixed, planes, uniform
from envs.hardware.network import NO_CHANNEL, Network
from envs.hardware.servers import PcieServer
from envs.hardware.topology import Topology
from tests.envs.topologies import BUILT, topology_named

PCIE = {"medium": "PCIe", "bandwidth": "16GB/s", "latency": "2us"}
ETHERNET = {"medium": "Ethernet", "bandwidth": "25Gbps", "latency": "5us"}


def servers_of(nics: int, count: int = 1) -> PcieServer:
    return PcieServer("V100-16GB", count, PCIE, nics=nics)


def paths_of(network: Network, i: int, j: int) -> list[list[str]]:
    pair = i * network.num_devices + j
    return [
        [network.link_names[k] for k in network.links_on(path)] for path in network.paths_of(pair)
    ]


def without_fabric(topology: Topology) -> Topology:
    return replace(topology, fabric=None)


@pytest.mark.parametrize("name", BUILT)
def test_every_pair_of_devices_has_paths_over_links_that_follow_one_another(name: str) -> None:
    topology = topology_named(name)
    network = topology.network
    for i in range(topology.num_devices):
        for j in range(topology.num_devices):
            paths = paths_of(network, i, j)
            assert bool(paths) == (i != j)
            for path in paths:
                ends = [link.split(" -> ") for link in path]
                assert ends[0][0] == topology.devices[i].name
                assert ends[-1][1] == topology.devices[j].name
                assert all(a[1] == b[0] for a, b in pairwise(ends))


@pytest.mark.parametrize("name", BUILT)
def test_the_best_path_of_a_pair_has_the_bandwidth_of_its_link_class(name: str) -> None:
    topology = topology_named(name)
    network = topology.network
    for i in range(topology.num_devices):
        for j in range(topology.num_devices):
            pair = i * topology.num_devices + j
            best = max(
                (
                    network.link_capacity[network.links_on(path)].min()
                    for path in network.paths_of(pair)
                ),
                default=np.inf,
            )
            assert best == topology.bandwidth[i, j]


def test_planes_give_every_pair_of_servers_a_channel_for_each_nic() -> None:
    topology = planes("t", servers_of(nics=2), servers=3, network=ETHERNET)
    network = topology.network
    assert network.num_channels == 3 * 2 * 2
    between = network.channels_between(0, 2)
    assert [network.channel_names[c] for c in between] == [
        "server0/nic0 -> plane0 -> server2/nic0",
        "server0/nic1 -> plane1 -> server2/nic1",
    ]
    assert [network.channel_source_nic[c] for c in between] == ["server0/nic0", "server0/nic1"]
    assert [network.channel_destination_nic[c] for c in between] == ["server2/nic0", "server2/nic1"]
    links = [network.link_names[k] for k in network.links_of(int(between[1]))]
    assert links == ["server0/nic1 -> plane1", "plane1 -> server2/nic1"]


def test_transfers_between_planes_stay_on_the_links_of_the_first_device() -> None:
    topology = planes("t", servers_of(nics=2, count=2), servers=2, network=ETHERNET)
    names = topology.port_names
    ports = lambda i, j: (names[topology.send_port[i, j]], names[topology.receive_port[i, j]])  # noqa: E731
    assert ports(0, 3) == ("server0/nic0 send", "server1/nic0 receive")
    assert ports(3, 0) == ("server1/nic0 send", "server0/nic0 receive")
    assert ports(1, 2) == ("server0/nic1 send", "server1/nic1 receive")


def test_equally_short_ways_over_several_spines_are_channels_of_their_own() -> None:
    topology = leaf_spine("t", servers_of(nics=1), 2, 1, 3, 1.0, ETHERNET)
    assert len(topology.network.channels_between(0, 1)) == 3
    tree = fat_tree("t", servers_of(nics=1), 4, ETHERNET).network
    assert len(tree.channels_between(0, 1)) == 1  # below one edge switch
    assert len(tree.channels_between(0, 2)) == 2  # in one pod
    assert len(tree.channels_between(0, 4)) == 4  # through the core


def test_a_server_with_more_nics_than_the_other_uses_all_of_its_own() -> None:
    network = mixed("t", [servers_of(nics=2), servers_of(nics=1)], ETHERNET).network
    assert len(network.channels_between(0, 1)) == 2
    assert len(network.channels_between(1, 0)) == 1
    assert set(network.channel_destination_nic) == {"server1/nic0", "server0/nic0"}


def test_what_limits_a_transfer_beside_its_channel_is_the_way_to_the_nic() -> None:
    network = uniform("t", servers_of(nics=1, count=2), 2, ETHERNET).network
    assert network.inner_bandwidth[0, 2] == 16e9  # PCIe
    assert network.inner_bandwidth[0, 1] == 16e9
    assert np.isinf(network.inner_bandwidth[0, 0])


def test_without_a_fabric_the_ports_are_the_links() -> None:
    topology = without_fabric(uniform("t", servers_of(nics=1, count=2), 2, ETHERNET))
    network = topology.network
    assert paths_of(network, 0, 3) == [["server0/nic0 send", "server1/nic0 receive"]]
    assert paths_of(network, 0, 1) == [["server0/V100-16GB/0 send", "server0/V100-16GB/1 receive"]]
    assert network.num_channels == 2
    assert network.channel_names[0] == "server0/nic0 send -> server1/nic0 receive"
    inside = network.path_channel[network.pair_ptr[1]]
    assert inside == NO_CHANNEL
    capacity = dict(zip(network.link_names, network.link_capacity, strict=True))
    assert capacity["server0/nic0 send"] == 3.125e9
    assert capacity["server0/V100-16GB/0 send"] == 16e9


def test_a_pair_slower_than_its_ports_has_a_link_of_its_own() -> None:
    topology = without_fabric(leaf_spine("t", servers_of(nics=1), 2, 2, 1, 4.0, ETHERNET))
    network = topology.network
    assert paths_of(network, 0, 1) == [["server0/nic0 send", "server1/nic0 receive"]]
    slow = paths_of(network, 0, 2)[0]
    assert slow[:2] == ["server0/nic0 send", "server2/nic0 receive"]
    assert slow[2] == "device 0 -> device 2"
    assert network.link_capacity[network.link_names.index(slow[2])] == topology.bandwidth[0, 2]
