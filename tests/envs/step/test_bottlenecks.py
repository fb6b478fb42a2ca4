"""The links that decide: known topologies, and the rates of the whole network."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from random_steps import topology_of
from reference_fair import max_min, paths_of
from sends import sends

from envs.step.bottlenecks import bottlenecks
from envs.step.fair import fair_rates, rate_scratch
from tests.envs.topologies import topology_named
from tests.refusal import refusal

ROUTED = (
    "planes_4x1", "leaf_spine", "fat_tree", "torus", "h100_2x8", "a100_4x8", "dgx1", "t4_pcie",
    "nvlink_islands", "mixed_v100_p100",
)  # fmt: skip


def test_a_full_bisection_fat_tree_is_decided_by_its_nics():
    """Sixteen NICs, two directions; a transfer takes up to four paths through the tree."""
    chosen = topology_named("fat_tree")
    found = bottlenecks(chosen, multipath=True)
    assert found.capacity.tolist() == [12.5e9] * 32
    paths = np.diff(chosen.network.pair_ptr)
    assert found.size.tolist() == paths[paths > 0].tolist()
    assert np.array_equal(found.path_load, np.repeat(found.size, 2))


def test_oversubscribed_spines_stay():
    """Two spines of half the bandwidth of two servers' NICs are one link with half the paths."""
    found = bottlenecks(topology_named("leaf_spine"), multipath=True)
    assert sorted(Counter(found.capacity.tolist()).items()) == [
        (6.25e9, 8),  # up to a spine and down from it, four leaves
        (12.5e9, 16),  # NICs
        (15.75e9, 32),  # from a device and to it
    ]


def test_two_planes_are_one_link_twice():
    found = bottlenecks(topology_named("planes_4x1"), multipath=True)
    assert found.size.tolist() == [2.0] * 12
    assert len(found.capacity) == 8


def test_links_without_limit_never_count():
    chosen = topology_named("planes_4x1")
    network = chosen.network
    inner = np.isclose(network.link_capacity, 15.75e9)
    chosen.__dict__["network"] = replace(
        network, link_capacity=np.where(inner, np.inf, network.link_capacity)
    )
    assert bottlenecks(chosen, multipath=True).capacity.tolist() == [3.125e9] * 8


def test_devices_out_of_reach_are_named():
    chosen = topology_of([0, 1], nic_per_server=True)
    network = chosen.network
    chosen.__dict__["network"] = replace(
        network, pair_ptr=np.zeros_like(network.pair_ptr), path_ptr=network.path_ptr[:1]
    )
    with refusal("no path leads from 'd0' to 'd1'"):
        bottlenecks(chosen, multipath=True)


@pytest.mark.parametrize("multipath", [True, False])
@pytest.mark.parametrize("name", ROUTED)
def test_rates_are_those_of_the_whole_network(name, multipath):
    """Random transfers; every subflow over every physical link, exactly, beside the fewer links."""
    chosen = topology_named(name)
    d = chosen.num_devices
    problem = sends([(0, 1)], chosen, 1.0)
    network = bottlenecks(chosen, multipath)
    work = rate_scratch(network)
    rng = np.random.default_rng(d)
    for count in (1, 4, 20):
        ends = rng.integers(0, d, (count, 2))
        transfers = Counter(int(i * d + j) for i, j in ends if i != j)
        busy = np.array([*transfers, 0, 0], dtype=np.int64)
        flows, rate = np.zeros(d * d), np.zeros(d * d)
        for pair, many in transfers.items():
            flows[pair] = many
        fair_rates(network, work, busy, len(transfers), flows, rate)
        ways = {pair: paths_of(problem, *divmod(pair, d), multipath) for pair in transfers}
        subflows = [way for pair, many in transfers.items() for way in ways[pair] * many]
        exact = iter(max_min(chosen.network.link_capacity, subflows))
        for pair, many in transfers.items():
            expected = sum(next(exact) for _ in range(len(ways[pair]) * many)) / many
            assert rate[pair] == pytest.approx(expected, rel=1e-12)
