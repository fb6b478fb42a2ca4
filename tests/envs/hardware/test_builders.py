"""Each builder against numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from envs.hardware import builders
from envs.hardware.devices import custom_device
from envs.hardware.servers import (
    HYBRID_CUBE_MESH,
    HybridCubeMeshServer,
    NvlinkServer,
    NvswitchServer,
    PcieServer,
)
from tests.refusal import refusal

PCIE = {"medium": "PCIe", "bandwidth": "16GB/s", "latency": "2us"}
NVLINK = {"medium": "NVLink", "bandwidth": "25GB/s", "latency": "1us"}
NETWORK = {"medium": "Ethernet", "bandwidth": "40Gbps", "latency": "5us"}  # 5 GB/s
ONE = PcieServer("V100-16GB", 1, PCIE)


def test_leaf_spine_uplinks_bind_only_between_leaves() -> None:
    """Two NICs of 5 GB/s per leaf, 2 spines, 4:1: an uplink has 2 * 5 / (2 * 4) = 1.25 GB/s."""
    topology = builders.leaf_spine("ls", ONE, 2, 2, 2, 4.0, NETWORK)
    assert topology.num_devices == 4
    # device - PCIe - NIC - leaf - NIC - PCIe - device: 4 x 2 us + 2 x 5 us
    assert topology.bandwidth[0, 1] == 5e9
    assert topology.latency[0, 1] == pytest.approx(18e-6)
    # two hops more, over a spine
    for far in (2, 3):
        assert topology.bandwidth[0, far] == 1.25e9
        assert topology.latency[0, far] == pytest.approx(28e-6)


def test_leaf_spine_without_oversubscription_is_bound_by_the_uplinks_share() -> None:
    """1:1 with one spine: the only uplink carries both NICs, so the NIC's 5 GB/s binds."""
    topology = builders.leaf_spine("ls", ONE, 2, 2, 1, 1.0, NETWORK)
    assert topology.bandwidth[0, 2] == 5e9


def test_fat_tree_of_four_port_switches_has_sixteen_hosts_in_three_distances() -> None:
    """2, 4 or 6 network hops of 5 us: same edge switch, same pod, over a core."""
    topology = builders.fat_tree("ft", ONE, 4, NETWORK)
    assert topology.num_devices == 16
    hops = np.rint((topology.latency[0] - 8e-6) / 5e-6)
    assert hops[1:].tolist() == [2, 4, 4] + [6] * 12
    assert (topology.bandwidth[0, 1:] == 5e9).all()


@pytest.mark.parametrize(("k", "hosts"), [(2, 2), (6, 54)])
def test_a_fat_tree_has_a_quarter_of_k_cubed_hosts(k: int, hosts: int) -> None:
    assert builders.fat_tree("ft", ONE, k, NETWORK).num_devices == hosts


def test_torus_hops_are_the_distances_around_both_rings() -> None:
    """4 x 4: |dx| and |dy| around the ring; injection costs two chip links of 1 us on each side."""
    chip = {"medium": "chip", "bandwidth": "50GB/s", "latency": "1us"}
    link = {"medium": "ring", "bandwidth": "10GB/s", "latency": "3us"}
    topology = builders.torus("torus", "A100-40GB", [4, 4], chip, link)
    hops = np.rint((topology.latency - 4e-6) / 3e-6)
    for a in range(16):
        for b in range(16):
            if a == b:
                continue
            dx, dy = abs(a // 4 - b // 4), abs(a % 4 - b % 4)
            assert hops[a, b] == min(dx, 4 - dx) + min(dy, 4 - dy)
    # one corner sees 4 points at 1 hop, 6 at 2, 4 at 3, 1 at 4
    assert np.bincount(hops[0, 1:].astype(int)).tolist() == [0, 4, 6, 4, 1]
    assert (topology.bandwidth[~np.eye(16, dtype=bool)] == 10e9).all()


@pytest.mark.parametrize("shape", [[1], [2], [2, 2, 2], [5]])
def test_a_torus_has_any_dimensions(shape: list[int]) -> None:
    chip = {"medium": "chip", "bandwidth": "50GB/s", "latency": "1us"}
    topology = builders.torus("torus", "T4", shape, chip, chip)
    assert topology.num_devices == np.prod(shape)


def dgx1(servers: int) -> Any:
    socket = {"medium": "QPI", "bandwidth": "20GB/s", "latency": "1us"}
    return builders.dgx1("d", "V100-16GB", NVLINK, PCIE, socket, 4, servers, NETWORK)


def test_every_gpu_of_a_dgx1_has_six_bricks_and_four_neighbours() -> None:
    bricks = np.zeros((8, 8), dtype=int)
    for (a, b), count in HYBRID_CUBE_MESH.items():
        bricks[a, b] = bricks[b, a] = count
    assert (bricks.sum(axis=0) == 6).all()
    assert ((bricks > 0).sum(axis=0) == 4).all()
    assert (bricks[:4, :4] > 0).sum() == (bricks[4:, 4:] > 0).sum() == 12  # halves all to all
    assert [b for a, b in HYBRID_CUBE_MESH if a < 4 <= b] == [4, 5, 6, 7]  # one edge across each


def test_dgx1_routes_use_one_or_two_bricks_or_pcie() -> None:
    topology = dgx1(servers=1)
    assert topology.bandwidth[0, 1] == 25e9
    assert topology.bandwidth[0, 3] == 50e9
    assert topology.bandwidth[0, 4] == 50e9
    assert topology.bandwidth[2, 6] == 25e9
    # 0 and 5 share no brick: PCIe switch, processor, QPI, processor, PCIe switch
    assert topology.bandwidth[0, 5] == 16e9
    assert topology.latency[0, 5] == pytest.approx(4 * 2e-6 + 1e-6)
    nvlink = topology.latency[~np.eye(8, dtype=bool)] < 2e-6
    assert nvlink.sum() == 2 * len(HYBRID_CUBE_MESH)


def test_dgx1_pairs_of_gpus_share_the_nic_of_their_pcie_switch() -> None:
    topology = dgx1(servers=2)
    sends = [topology.port_names[topology.send_port[gpu, 8]] for gpu in range(8)]
    assert sends == [f"server0/nic{gpu // 2} send" for gpu in range(8)]


def test_nvswitch_gives_every_pair_the_full_nvlink_bandwidth() -> None:
    topology = builders.nvswitch_servers("d", "V100-32GB", 16, NVLINK, PCIE, 8, 8, 2, NETWORK)
    inside = topology.server[:, None] == topology.server[None, :]
    off = ~np.eye(32, dtype=bool)
    assert (topology.bandwidth[inside & off] == 25e9).all()
    assert topology.latency[inside & off] == pytest.approx(2e-6)
    assert (topology.bandwidth[~inside] == 5e9).all()


def test_dgx_a100_gives_each_gpu_its_own_nic() -> None:
    topology = builders.nvswitch_servers("d", "A100-40GB", 8, NVLINK, PCIE, 4, 8, 2, NETWORK)
    assert len(set(topology.send_port[:8, 8])) == 8
    assert topology.num_ports == 2 * (16 + 16)


def test_nvlink_islands_are_joined_by_pcie() -> None:
    topology = builders.nvlink_islands("i", "V100-16GB", 4, 2, NVLINK, PCIE)
    assert topology.bandwidth[0, 1] == topology.bandwidth[2, 3] == 25e9
    assert topology.bandwidth[0, 2] == topology.bandwidth[1, 3] == 16e9
    assert topology.latency[0, 2] == pytest.approx(4e-6)


def test_devices_of_two_pcie_switches_meet_at_the_host() -> None:
    topology = builders.single_server("s", PcieServer("T4", 4, PCIE, switches=2))
    assert topology.latency[0, 1] == pytest.approx(4e-6)
    assert topology.latency[0, 2] == pytest.approx(8e-6)


def test_mixed_servers_keep_their_devices_and_their_insides() -> None:
    servers = [NvlinkServer("V100-16GB", 2, 2, NVLINK, PCIE), PcieServer("P100-16GB", 2, PCIE)]
    topology = builders.mixed("m", servers, NETWORK)
    assert [device.name for device in topology.devices] == [
        "server0/V100-16GB/0",
        "server0/V100-16GB/1",
        "server1/P100-16GB/0",
        "server1/P100-16GB/1",
    ]
    assert topology.server.tolist() == [0, 0, 1, 1]
    assert topology.bandwidth[0, 1] == 25e9
    assert topology.bandwidth[2, 3] == 16e9
    assert topology.bandwidth[0, 2] == 5e9
    assert topology.memory_bytes.tolist() == [16 * 2.0**30] * 4


def test_a_device_of_ones_own_can_stand_in_a_server() -> None:
    mine = custom_device("V100-16GB", "V100-12GB", memory="12GiB")
    topology = builders.single_server("s", PcieServer(mine, 1, PCIE))
    assert topology.devices[0].name == "server0/V100-12GB/0"
    assert topology.memory_bytes.tolist() == [12 * 2.0**30]


WRONG_UNIT = {**PCIE, "bandwidth": "16GB"}


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: PcieServer("V100", 1, PCIE), "field 'device': unknown device kind 'V100'"),
        (lambda: PcieServer(["T4"], 1, PCIE), r"field 'device': \['T4'\] is not the name"),
        (lambda: PcieServer("T4", 0, PCIE), "field 'count': 0 is less than 1"),
        (lambda: PcieServer("T4", 1.5, PCIE), "field 'count': 1.5 is not a whole number"),
        (lambda: PcieServer("T4", 1, WRONG_UNIT), "field 'pcie.bandwidth': '16GB' is not a rate"),
        (lambda: PcieServer("T4", 1, {**PCIE, "bandwidth": 25}), "field 'pcie.bandwidth': 25 is"),
        (lambda: PcieServer("T4", 1, {**PCIE, "latency": "2GB"}), "field 'pcie.latency'"),
        (lambda: PcieServer("T4", 1, {**PCIE, "lag": 1}), "field 'pcie.lag': unknown key"),
        (lambda: PcieServer("T4", 1, {"medium": "x"}), "field 'pcie.bandwidth': is missing"),
        (lambda: PcieServer("T4", 1, "16GB/s"), "field 'pcie': '16GB/s' is not a section"),
        (lambda: NvlinkServer("T4", 3, 2, NVLINK, PCIE), "field 'island': 2 does not divide 3"),
        (lambda: NvswitchServer("T4", 1, WRONG_UNIT, PCIE), "field 'nvlink.bandwidth'"),
        (lambda: HybridCubeMeshServer("T4", NVLINK, PCIE, WRONG_UNIT), "'socket.bandwidth'"),
        (lambda: builders.uniform("u", ONE, 0, NETWORK), "field 'servers': 0 is less than 1"),
        (lambda: builders.mixed("m", [ONE], WRONG_UNIT), "field 'network.bandwidth'"),
        (lambda: builders.fat_tree("f", ONE, 3, NETWORK), "field 'k': 3 is odd"),
        (
            lambda: builders.fat_tree("f", PcieServer("T4", 1, PCIE, nics=2), 4, NETWORK),
            "field 'server.nics': 2 NICs",
        ),
        (lambda: builders.leaf_spine("l", ONE, 2, 2, 2, 0.0, NETWORK), "'oversubscription'"),
        (
            lambda: builders.leaf_spine(
                "l", PcieServer("T4", 1, PCIE, nics=0), 2, 2, 2, 1, NETWORK
            ),
            "field 'server.nics'",
        ),
        (lambda: builders.torus("t", "T4", [], PCIE, PCIE), "field 'shape': has no dimensions"),
        (lambda: builders.torus("t", "T4", [0, 4], PCIE, PCIE), "field 'shape': 0 is less"),
    ],
)
def test_a_bad_value_is_refused_by_its_key(build: Any, message: str) -> None:
    with refusal(message):
        build()
