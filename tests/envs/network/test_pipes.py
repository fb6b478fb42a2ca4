"""Pipes as ports of a topology: classes by mark, numbered as they appear."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from envs.hardware.topology import Topology
from envs.network.pipes import check_bandwidth, pipe_topology
from tests.envs.topologies import topology_named
from tests.refusal import refusal


@pytest.fixture(params=["planes_4x1", "fat_tree"])
def topology(request: pytest.FixtureRequest) -> Topology:
    return topology_named(request.param)


@pytest.mark.parametrize("marks", [1, 3])
def test_classes_are_pairs_of_old_class_and_mark(topology: Topology, marks: int) -> None:
    d, servers = topology.num_devices, topology.num_servers
    mark = np.random.default_rng(0).integers(0, marks, (d, d))
    through, before, marked = pipe_topology(topology, mark)
    known: list[tuple[int, int]] = [(0, -1)]
    for i in range(d):
        for j in range(d):
            if i == j:
                continue
            s, e = int(topology.server[i]), int(topology.server[j])
            key = int(topology.link_class[i, j]), int(mark[i, j]) if s != e else -1
            if key not in known:
                known.append(key)
            assert through.link_class[i, j] == known.index(key)
            ports = through.send_port[i, j], through.receive_port[i, j]
            if s == e:
                assert ports == (topology.send_port[i, j], topology.receive_port[i, j])
            else:
                first = topology.num_ports + 2 * (s * servers + e)
                assert ports == (first, first + 1)
                assert through.port_names[first] == f"server{s} -> server{e} send"
    assert list(zip(before.tolist(), marked.tolist(), strict=True)) == known
    assert through.num_ports == topology.num_ports + 2 * servers**2


def test_links_without_bandwidth_cannot_be_shared_out(topology: Topology) -> None:
    check_bandwidth(topology)
    unknown = replace(topology, class_bandwidth=np.full_like(topology.class_bandwidth, np.inf))
    with refusal("no bandwidth to allocate"):
        check_bandwidth(unknown)
