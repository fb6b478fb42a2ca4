"""Frames, and a plan seen from one server."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from three_servers import LINK, PLANES, SERVERS, machines, network_of, rates

from envs.hardware.builders import leaf_spine
from envs.hardware.servers import PcieServer
from envs.step.plans import BandwidthAllocation
from experiments.execution.namespaces import Framing
from experiments.papers.enforcement.hosts import Hosts, server_plans
from tests.refusal import refusal


def test_full_segments_of_a_usual_mtu_carry_1448_of_1514_bytes() -> None:
    framing = Framing(mtu=1500, line_overhead=0)
    assert framing.kernel_rate(1514.0) == 1514.0
    assert framing.payload_rate(1514.0) == pytest.approx(1448.0)
    assert framing.payload_rate(1.0455801104972375e9) == pytest.approx(1e9, rel=1e-15)


def test_ethernet_carries_24_bytes_more_than_the_kernel_counts() -> None:
    framing = Framing(mtu=9000, line_overhead=24)
    assert framing.kernel_rate(9038.0) == pytest.approx(9014.0)
    assert framing.payload_rate(9038.0) == pytest.approx(8948.0)


@pytest.mark.parametrize(
    ("rate", "bits"), [(0.0, 0), (0.99, 0), (1.0, 8), (1.99, 8), (3.125e9, 25_000_000_000)]
)
def test_queues_get_whole_bytes_rounded_down(rate: float, bits: int) -> None:
    assert Framing(1500, 0).kernel_bits(rate) == bits


NETWORK = network_of(LINK)


@given(st.lists(st.floats(0, LINK / 2), min_size=12, max_size=12))
def test_every_channel_is_one_lane_of_its_server(values: list[float]) -> None:
    allocation = BandwidthAllocation(np.array(values))
    plans = server_plans(allocation, NETWORK, machines())
    assert [plan.host.name for plan in plans] == ["node0", "node1", "node2"]
    pipes = np.zeros((SERVERS, SERVERS))
    for source, plan in enumerate(plans):
        assert [up.name for up in plan.uplinks] == [f"server{source}/nic{p}" for p in range(PLANES)]
        for plane, up in enumerate(plan.uplinks):
            assert up.capacity == LINK
            for lane in up.lanes:
                pipes[source, lane.number - 1] += lane.rate
                assert lane.gateway.address == f"10.{plane}.0.{lane.number}"
                assert lane.destination.address == f"10.255.0.{lane.number}"
    assert np.allclose(pipes, allocation.pipes(NETWORK))


def test_an_allocation_that_is_too_large_is_refused() -> None:
    rate = rates(NETWORK, {(0, 1): (LINK, 0.0), (0, 2): (1.0, 0.0)})
    with refusal(r"'bandwidth'.*server0/nic0 -> plane0"):
        server_plans(BandwidthAllocation(rate), NETWORK, machines())


def test_a_missing_machine_is_refused() -> None:
    hosts = machines()
    less = Hosts(hosts.framing, hosts.hosts[:2])
    with refusal("'nics': no server has the NIC 'server2/nic0'"):
        server_plans(BandwidthAllocation(np.zeros(12)), NETWORK, less)


def test_two_servers_on_one_machine_are_refused() -> None:
    one, two, three = machines().hosts
    nics = {name: replace(nic, interface=f"b{nic.interface}", bridge=None)
            for name, nic in two.nics.items()}  # fmt: skip
    both = replace(one, nics={**one.nics, **nics})
    hosts = Hosts(machines().framing, (both, three))
    with refusal("record node0: field 'nics'"):
        server_plans(BandwidthAllocation(np.zeros(12)), NETWORK, hosts)


def test_channels_that_only_switches_tell_apart_are_refused() -> None:
    link = {"medium": "cable", "bandwidth": LINK, "latency": "5us"}
    server = PcieServer("V100-16GB", 1, link, 1, 1)
    spines = leaf_spine("spines", server, 2, 1, 2, 1.0, link).network
    assert spines.num_channels == 4
    with refusal(r"spine0.*spine1.* leave the same NIC"):
        server_plans(BandwidthAllocation(np.zeros(4)), spines, machines())
