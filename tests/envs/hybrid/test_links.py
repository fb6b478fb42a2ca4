"""Servers beside those built cable by cable, and what sums over them take."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from envs.arrays import IntArray
from envs.hardware.builders import nvswitch_servers
from envs.hardware.devices import device_spec
from envs.hybrid.links import (
    COLLECTIVE_LATENCY_S,
    EFFICIENCY,
    Servers,
    usual_link,
)
from envs.network.allreduce import LINKS, allreduce_seconds
from tests.refusal import refusal

NVLINK = {"medium": "NVLink", "bandwidth": "300GB/s", "latency": "2us"}
PCIE = {"medium": "PCIe", "bandwidth": "31.5GB/s", "latency": "2us"}
NETWORK = {"medium": "Ethernet", "bandwidth": "25GB/s", "latency": "5us"}
DGX = Servers(device_spec("A100-80GB"), 8, LINKS["NVLink 3"], 4, 25e9)


def alike(values: IntArray) -> IntArray:
    """Which pairs of devices have the same value."""
    return np.asarray(values.reshape(-1, 1) == values.reshape(1, -1))


@pytest.mark.parametrize("cards", [2, 4])
def test_who_shares_a_port_is_as_in_a_fabric(cards: int) -> None:
    servers = Servers(device_spec("A100-80GB"), 4, LINKS["NVLink 3"], cards, 25e9)
    own = servers.topology(8)
    built = nvswitch_servers("d", "A100-80GB", 4, NVLINK, PCIE, 2, cards, 2, NETWORK)
    assert_array_equal(own.server, built.server)
    assert_array_equal(own.bandwidth, built.bandwidth)
    assert_array_equal(alike(own.link_class), alike(built.link_class))
    assert_array_equal(alike(own.send_port), alike(built.send_port))
    assert_array_equal(alike(own.receive_port), alike(built.receive_port))
    assert len(own.port_names) == own.num_ports


def test_sums_inside_a_server_are_those_measured() -> None:
    for count in (2, 4, 8):
        latency, per_byte = DGX.all_reduce([range(count)])
        expected = allreduce_seconds([0.0, 1e9], count, "NVLink 3")
        assert [latency, latency + 1e9 * per_byte] == pytest.approx(expected.tolist())
    assert DGX.all_reduce([[3]]) == (0.0, 0.0)


@pytest.mark.parametrize("rings", [1, 2, 8])
def test_rings_that_pass_a_server_share_its_cards(rings: int) -> None:
    found = DGX.all_reduce([(number, 8 + number) for number in range(rings)])
    assert found == (COLLECTIVE_LATENCY_S, pytest.approx(rings / (EFFICIENCY * 100e9)))


def test_a_ring_is_as_slow_as_its_slower_links() -> None:
    slow = replace(DGX, link=LINKS["PCIe 3"], card_bandwidth=1e15)
    apart, together = slow.all_reduce([(0, 8)]), slow.all_reduce([range(16)])
    assert apart[1] == pytest.approx(0.0, abs=1e-14)  # no two of it are in one server
    eight = np.diff(allreduce_seconds([0.0, 1.0], 8, "PCIe 3"))[0]
    assert together[1] == pytest.approx(eight)


@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 3, 4]), st.sampled_from([1, 2, 4, 8]))
def test_rings_beside_each_other_are_never_faster(per_server: int, cards: int, ways: int) -> None:
    servers = replace(DGX, per_server=per_server, cards=cards)
    rings = [range(first, 16, ways) for first in range(ways)]
    found = [servers.all_reduce(rings[: count + 1])[1] for count in range(ways)]
    assert np.all(np.diff(found) >= 0)


def test_usual_links() -> None:
    expected = {
        "A100-80GB": "NVLink 3", "A100-PCIe-40GB": "PCIe 4", "V100-32GB": "NVLink 2 mesh",
        "T4": "PCIe 3", "H100-80GB": "NVLink 4",
    }  # fmt: skip
    assert {name: usual_link(device_spec(name)) for name in expected} == expected
    assert set(expected.values()) <= set(LINKS)
    with refusal("no link of X") as caught:
        usual_link(replace(device_spec("T4"), name="X"))
    assert caught.value.field == "link"
