"""Transfers driven from outside take the times of the fluid simulation of known flows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.errors import InputError
from envs.hardware.builders import planes, single_server, uniform
from envs.hardware.servers import PcieServer
from envs.hardware.topology import Topology
from envs.network.fluid import simulate_flows
from envs.network.shared_links import SharedLinks
from tests.envs.network.made_flows import flows_between
from tests.strength import examples

PCIE = {"medium": "PCIe", "bandwidth": "5GB/s", "latency": "2us"}
ETHERNET = {"medium": "Ethernet", "bandwidth": "25Gbps", "latency": "5us"}
TOPOLOGIES = (
    planes("two planes", PcieServer("V100-16GB", 2, PCIE, nics=2), 3, ETHERNET),
    uniform("one switch", PcieServer("V100-16GB", 3, PCIE, nics=1), 2, ETHERNET),
    single_server("alone", PcieServer("V100-16GB", 4, PCIE, nics=1)),
)


def played(
    topology: Topology, rows: list[tuple[float, int, int, float]]
) -> tuple[list[float], list[int]]:
    """Finish of each (start, source, destination, bytes), and the keys in the order they ended."""
    links = SharedLinks(topology)
    finish, ended = [0.0] * len(rows), []
    waiting = sorted(range(len(rows)), key=lambda key: rows[key][0])
    while len(ended) < len(rows):
        start = rows[waiting[0]][0] if waiting else np.inf
        for key in links.advance(min(start, links.next_event())):
            finish[key] = links.now
            ended.append(key)
        while waiting and rows[waiting[0]][0] <= links.now:
            key = waiting.pop(0)
            links.send(key, *rows[key][1:])
    return finish, ended


@st.composite
def transfers(draw) -> tuple[Topology, list[tuple[float, int, int, float]]]:
    topology = draw(st.sampled_from(TOPOLOGIES))
    device = st.integers(0, topology.num_devices - 1)
    row = st.tuples(
        st.sampled_from([0.0, 0.0, 1e-4, 3e-3, 0.02]) | st.floats(0.0, 0.05),
        device,
        device,
        st.sampled_from([0.0, 1.0, 1e7, 1e7, 4e7]) | st.floats(0.0, 1e8),
    )
    return topology, draw(st.lists(row.filter(lambda r: r[1] != r[2]), min_size=1, max_size=12))


@examples(200)
@given(transfers())
def test_finishes_are_those_of_the_fluid_simulation(drawn) -> None:
    topology, rows = drawn
    start, source, destination, size = (np.array(column) for column in zip(*rows, strict=True))
    flows = flows_between(
        topology.network, start, size, source, destination,
        latency=topology.latency[source, destination],
    )  # fmt: skip
    expected = start + simulate_flows(topology.network.link_capacity, flows).completion
    finish, ended = played(topology, rows)
    assert finish == pytest.approx(expected, rel=1e-9, abs=1e-14)
    assert sorted(ended) == list(range(len(rows)))


def test_two_transfers_of_a_pair_share_its_links_and_the_second_goes_on_alone() -> None:
    topology = TOPOLOGIES[1]
    wait, rate = topology.latency[0, 3], 3.125e9
    finish, _ = played(topology, [(0.0, 0, 3, rate), (0.0, 0, 3, 2 * rate)])
    assert finish == pytest.approx([wait + 2.0, wait + 3.0], rel=1e-12)


def test_a_device_sends_to_itself_at_once() -> None:
    links = SharedLinks(TOPOLOGIES[0])
    links.send(7, 1, 1, 1e9)
    assert links.next_event() == 0.0
    assert links.advance(0.0) == [7]
    assert links.next_event() == np.inf


def test_a_given_latency_replaces_the_topologys() -> None:
    links = SharedLinks(TOPOLOGIES[1])
    links.send(0, 0, 3, 3.125e9, latency=0.5)
    assert links.next_event() == 0.5
    assert links.advance(0.5) == []
    assert links.next_event() == pytest.approx(1.5, rel=1e-12)


def test_devices_without_a_path_are_named() -> None:
    topology = planes("apart", PcieServer("V100-16GB", 1, PCIE, nics=1), 2, ETHERNET)
    network = topology.network
    topology.__dict__["network"] = replace(  # in place of the cached one
        network,
        pair_ptr=np.zeros_like(network.pair_ptr),
        path_channel=network.path_channel[:0],
        path_ptr=network.path_ptr[:1],
        path_links=network.path_links[:0],
    )
    with pytest.raises(InputError, match="no path from 'server0"):
        SharedLinks(topology)


def test_links_without_capacity_are_named() -> None:
    topology = planes("dark", PcieServer("V100-16GB", 1, PCIE, nics=1), 2, ETHERNET)
    topology.__dict__["network"] = replace(
        topology.network, link_capacity=np.zeros_like(topology.network.link_capacity)
    )
    links = SharedLinks(topology)
    links.send(0, 0, 1, 1.0)
    links.advance(links.next_event())
    with pytest.raises(InputError, match="from device 0 to device 1 has links without capacity"):
        links.next_event()
