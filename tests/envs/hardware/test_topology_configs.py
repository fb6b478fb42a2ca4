"""The topologies in conf/topology are what their names say."""

from __future__ import annotations

import numpy as np
import pytest

from envs.hardware.topology import Topology
from tests.envs.topologies import BUILT, topology_named


def kinds(topology: Topology) -> list[str]:
    return [device.spec.name for device in topology.devices]


@pytest.mark.parametrize("name", BUILT)
def test_every_config_builds_a_symmetric_topology_of_its_own_name(name: str) -> None:
    topology = topology_named(name)
    assert topology.name == name
    off = ~np.eye(topology.num_devices, dtype=bool)
    np.testing.assert_array_equal(topology.link_class, topology.link_class.T)
    assert (topology.link_class[off] > 0).all()
    assert (topology.class_bandwidth > 0).all()
    assert (topology.send_port[off] >= 0).all()
    assert (topology.receive_port[off] >= 0).all()
    assert len(set(topology.class_names)) == len(topology.class_names)


@pytest.mark.parametrize(
    ("name", "devices", "servers"),
    [
        ("single_v100", ["V100-16GB"], 1),
        ("dgx1", ["V100-16GB"] * 8, 1),
        ("dgx2", ["V100-32GB"] * 16, 1),
        ("dgx_a100", ["A100-40GB"] * 8, 1),
        ("a100_4x8", ["A100-40GB"] * 32, 4),
        ("h100_2x8", ["H100"] * 16, 2),
        ("b200_8", ["B200"] * 8, 1),
        ("mi300x_8", ["MI300X"] * 8, 1),
        ("l40s_8", ["L40S"] * 8, 1),
        ("l4_4", ["L4"] * 4, 1),
        ("t4_pcie", ["T4"] * 4, 1),
        ("leaf_spine", ["V100-16GB"] * 16, 8),
        ("fat_tree", ["V100-16GB"] * 16, 16),
        ("torus", ["A100-40GB"] * 16, 16),
    ],
)
def test_configs_hold_the_devices_they_promise(name: str, devices: list[str], servers: int) -> None:
    topology = topology_named(name)
    assert kinds(topology) == devices
    assert len(set(topology.server)) == servers


def test_the_main_cluster_has_two_kinds_and_25_gigabits_between() -> None:
    topology = topology_named("mixed_v100_p100")
    assert kinds(topology) == ["V100-16GB"] * 2 + ["P100-16GB"] * 2
    assert topology.server.tolist() == [0, 0, 1, 1]
    assert topology.bandwidth[0, 1] == 50e9  # NVLink
    assert topology.bandwidth[2, 3] == 15.75e9  # PCIe 3.0 x16
    assert (topology.bandwidth[:2, 2:] == 25e9 / 8).all()
    # one NIC per server: everything out of server 0 leaves by the same port
    assert len(set(topology.send_port[:2, 2:].ravel())) == 1
    assert len(set(topology.receive_port[:2, 2:].ravel())) == 1


@pytest.mark.parametrize(
    ("name", "between"), [("b200_8", 900e9), ("mi300x_8", 64e9), ("l40s_8", 31.5e9)]
)
def test_newer_servers_have_the_links_of_their_makers(name: str, between: float) -> None:
    """Bytes per second between two devices, one direction."""
    assert (topology_named(name).bandwidth[0, 1:] == between).all()
