"""Routes: shortest, symmetric, inside the rules of who forwards; ports and NICs."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from envs.hardware.devices import device_spec
from envs.hardware.fabric import Fabric, LinkSpec, NodeKind, Routes
from envs.hardware.topology import Topology, fabric_topology
from tests.refusal import refusal
from tests.strength import examples

V100 = device_spec("V100-16GB")
PCIE = LinkSpec("PCIe", 16e9, 2e-6)
ETHERNET = LinkSpec("Ethernet", 3e9, 5e-6)


def two_servers(nics: int) -> Fabric:
    """Two servers of two devices, `nics` NICs each on one PCIe switch, one switch between."""
    fabric = Fabric("two servers")
    fabric.add_switch("switch")
    for server in range(2):
        host = fabric.add_switch(f"host{server}", server)
        for number in range(2):
            fabric.connect(fabric.add_device(f"d{server}{number}", V100, server), host, PCIE)
        for number in range(nics):
            nic = fabric.add_nic(f"n{server}{number}", server)
            fabric.connect(nic, host, PCIE)
            fabric.connect(nic, "switch", ETHERNET)
    return fabric


@pytest.mark.parametrize(
    ("nics", "source", "destination", "ports"),
    [
        (1, "d00", "d01", ("d00 send", "d01 receive")),  # inside a server: their own
        (1, "d01", "d00", ("d01 send", "d00 receive")),
        (1, "d00", "d10", ("n00 send", "n10 receive")),  # both share the only NIC
        (1, "d01", "d11", ("n00 send", "n10 receive")),
        (2, "d00", "d10", ("n00 send", "n10 receive")),  # one for each
        (2, "d01", "d11", ("n01 send", "n11 receive")),
        (2, "d01", "d10", ("n01 send", "n10 receive")),
    ],
)
def test_a_transfer_holds_the_ports_of_devices_or_of_their_nics(
    nics: int, source: str, destination: str, ports: tuple[str, str]
) -> None:
    topology = fabric_topology("t", two_servers(nics))
    pair = topology.index(source), topology.index(destination)
    assert topology.port_names[topology.send_port[pair]] == ports[0]
    assert topology.port_names[topology.receive_port[pair]] == ports[1]


def test_a_device_takes_the_nearest_nic_even_when_it_is_busier() -> None:
    fabric = two_servers(nics=1)
    far = fabric.add_switch("far", 0)
    fabric.connect(far, "host0", PCIE)
    fabric.connect(fabric.add_nic("n01", 0), far, PCIE)
    fabric.connect("n01", "switch", ETHERNET)
    fabric.connect(fabric.add_device("d02", V100, 0), far, PCIE)
    assert Routes(fabric).nic == {
        "d00": "n00", "d01": "n00", "d02": "n01", "d10": "n10", "d11": "n10",
    }  # fmt: skip


def test_five_devices_share_two_equally_near_nics_three_to_two() -> None:
    fabric = two_servers(nics=2)
    for number in (2, 3, 4):
        fabric.connect(fabric.add_device(f"d0{number}", V100, 0), "host0", PCIE)
    nic = Routes(fabric).nic
    assert [nic[f"d0{number}"] for number in range(5)] == ["n00", "n01", "n00", "n01", "n00"]


def test_send_and_receive_ports_are_different_for_full_duplex() -> None:
    topology = fabric_topology("t", two_servers(nics=1))
    off = ~np.eye(4, dtype=bool)
    assert not set(topology.send_port[off]) & set(topology.receive_port[off])
    assert (topology.send_port.diagonal() == -1).all()
    assert (topology.receive_port.diagonal() == -1).all()


def test_latency_adds_up_the_slowest_link_binds_and_class_zero_is_free() -> None:
    topology = fabric_topology("t", two_servers(nics=1))
    assert topology.latency[0].tolist() == pytest.approx([0.0, 4e-6, 18e-6, 18e-6])
    assert topology.bandwidth[0].tolist() == [np.inf, 16e9, 3e9, 3e9]
    assert (topology.link_class.diagonal() == 0).all()
    assert topology.class_names[0] == "same device"
    assert topology.class_names[1:] == (
        "PCIe, 16 GB/s, 4 us",
        "PCIe + Ethernet, 3 GB/s, 18 us",
    )


def test_a_device_does_not_forward_for_others() -> None:
    fabric = Fabric("chain")
    nvlink = LinkSpec("NVLink", 50e9, 1e-6)
    host = fabric.add_switch("host", 0)
    for name in ("a", "b", "c"):
        fabric.connect(fabric.add_device(name, V100, 0), host, PCIE)
    fabric.connect("a", "b", nvlink)
    fabric.connect("b", "c", nvlink)
    routes = Routes(fabric)
    assert routes.between("a", "b").nodes == ("a", "b")
    assert routes.between("a", "c").nodes == ("a", "host", "c")  # not a, b, c: 2 us but through b


def test_equal_latency_is_decided_by_hops_then_bandwidth_then_insertion() -> None:
    fabric = Fabric("ties")
    for name in ("a", "b"):
        fabric.add_device(name, V100, 0)
    for switch, rate in (("slow", 1e9), ("fast", 2e9), ("also fast", 2e9)):
        fabric.add_switch(switch, 0)
        for end in ("a", "b"):
            fabric.connect(end, switch, LinkSpec("wire", rate, 1e-6))
    assert Routes(fabric).between("a", "b").nodes == ("a", "fast", "b")
    assert Routes(fabric).between("b", "a").nodes == ("b", "fast", "a")
    fabric.connect("a", "b", LinkSpec("direct", 1e6, 2e-6))
    assert Routes(fabric).between("a", "b").nodes == ("a", "b")


def test_devices_without_a_route_are_refused() -> None:
    fabric = Fabric("islands")
    fabric.add_device("a", V100, 0)
    fabric.add_device("b", V100, 0)
    with refusal("fabric islands: no route from 'a' to 'b'"):
        fabric_topology("t", fabric)


def test_a_server_among_several_needs_a_nic() -> None:
    fabric = two_servers(nics=1)
    fabric.connect(fabric.add_device("lone", V100, 2), fabric.add_switch("host2", 2), PCIE)
    with refusal("'lone' reaches no NIC"):
        fabric_topology("t", fabric)


def test_a_fabric_without_devices_is_refused() -> None:
    with refusal("topology empty: has no devices"):
        fabric_topology("empty", Fabric("empty"))


def test_a_node_or_link_cannot_stand_twice() -> None:
    fabric = two_servers(nics=1)
    with refusal("'d00' stands twice"):
        fabric.add_device("d00", V100, 0)
    with refusal("already joined"):
        fabric.connect("host0", "d00", PCIE)
    with refusal("unknown node 'd99'"):
        fabric.connect("d99", "host0", PCIE)


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t))])
def test_a_topology_survives_pickle_and_deepcopy(copier: Callable[[Topology], Topology]) -> None:
    topology = fabric_topology("t", two_servers(nics=2))
    twin = copier(topology)
    assert twin.devices == topology.devices
    assert twin.class_names == topology.class_names
    assert twin.port_names == topology.port_names
    for column in (
        "link_class", "class_latency", "class_bandwidth", "send_port", "receive_port",
    ):  # fmt: skip
        assert_array_equal(getattr(twin, column), getattr(topology, column))


@st.composite
def fabrics(draw: st.DrawFn) -> Fabric:
    """Servers with random trees of switches and random shortcuts, around a random network."""

    def link() -> LinkSpec:
        return LinkSpec(
            draw(st.sampled_from(["copper", "glass"])),
            draw(st.integers(1, 9)) * 1e9,
            draw(st.integers(0, 6)) * 1e-6,
        )

    fabric = Fabric("random")
    backbone = [fabric.add_switch(f"x{n}") for n in range(draw(st.integers(1, 4)))]
    for number, switch in enumerate(backbone[1:]):
        fabric.connect(switch, backbone[draw(st.integers(0, number))], link())
    for server in range(draw(st.integers(1, 3))):
        inside = [
            fabric.add_switch(f"s{server}.{n}", server) for n in range(draw(st.integers(1, 4)))
        ]
        for number, switch in enumerate(inside[1:]):
            fabric.connect(switch, inside[draw(st.integers(0, number))], link())
        for number in range(draw(st.integers(1, 3))):
            device = fabric.add_device(f"d{server}.{number}", V100, server)
            for switch in draw(st.sets(st.sampled_from(inside), min_size=1)):
                fabric.connect(device, switch, link())
        for number in range(draw(st.integers(1, 2))):
            nic = fabric.add_nic(f"n{server}.{number}", server)
            fabric.connect(nic, draw(st.sampled_from(inside)), link())
            fabric.connect(nic, draw(st.sampled_from(backbone)), link())
    return fabric


@given(fabrics())
@examples(60)
def test_routes_and_ports_of_every_pair(fabric: Fabric) -> None:
    topology, routes = fabric_topology("t", fabric), Routes(fabric)
    names = [device.name for device in topology.devices]
    for i, a in enumerate(names):
        for j, b in enumerate(names):
            if i == j:
                continue
            route = routes.between(a, b)
            nodes = route.nodes
            assert (nodes[0], nodes[-1]) == (a, b)
            links = [fabric.link(u, v) for u, v in pairwise(nodes)]
            assert topology.latency[i, j] == math.fsum(link.latency for link in links)
            assert topology.bandwidth[i, j] == min(link.bandwidth for link in links)
            assert routes.between(b, a).nodes == nodes[::-1]
            if topology.server[i] != topology.server[j]:  # they meet at their NICs
                nics = [n for n in nodes if fabric.graph.nodes[n]["kind"] is NodeKind.NIC]
                assert nics == [routes.nic[a], routes.nic[b]]
                assert topology.port_names[topology.send_port[i, j]] == f"{nics[0]} send"
                assert topology.port_names[topology.receive_port[i, j]] == f"{nics[1]} receive"
    assert_array_equal(topology.link_class, topology.link_class.T)
    assert_array_equal(topology.bandwidth, topology.bandwidth.T)


@given(fabrics())
@examples(60)
def test_inside_a_server_no_way_over_its_switches_is_quicker(fabric: Fabric) -> None:
    """The oracle is networkx on the server's switches and the two devices alone."""
    routes = Routes(fabric)
    for a in fabric.nodes(NodeKind.DEVICE):
        server = fabric.server_of(a)
        for b in fabric.nodes(NodeKind.DEVICE, server):
            if a == b:
                continue
            allowed = fabric.graph.subgraph([*fabric.nodes(NodeKind.SWITCH, server), a, b])
            best = nx.shortest_path_length(
                allowed, a, b, weight=lambda u, v, facts: facts["link"].latency
            )
            assert routes.between(a, b).latency == pytest.approx(best, abs=1e-15)
