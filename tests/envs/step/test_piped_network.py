"""Flows in allocated pipes: never above the pipe, and untouched by anybody else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.errors import InputError
from envs.hardware.network import Network
from envs.network.flows import flow_set, flows_between
from envs.network.fluid import simulate_flows
from envs.step.piped_network import piped_network
from envs.step.plans import BandwidthAllocation
from envs.step.weighted_allocation import weighted_allocation
from experiments.step.problem import topology_file
from tests.paths import CONF
from tests.strength import examples


@pytest.fixture(scope="module")
def network() -> Network:
    return topology_file(CONF / "topology" / "planes_4x1.yaml").network


@examples(50)
@given(seed=st.integers(0, 2**32 - 1))
def test_pipes_hold_their_flows_and_keep_the_others_out(network: Network, seed: int) -> None:
    rng = np.random.default_rng(seed)
    weight = rng.exponential(size=network.num_channels)
    allocation = BandwidthAllocation(0.8 * weighted_allocation(network, weight).rate)
    piped = piped_network(network, allocation)
    k, own, others = network.num_links, 6, 5
    channel = rng.integers(network.num_channels, size=own)
    other = rng.integers(network.num_channels, size=others)
    arrival, volume = rng.uniform(0, 1e-3, own + others), rng.uniform(1e5, 1e7, own + others)
    paths = [[piped.links_of(c)] for c in channel] + [[network.links_of(c)] for c in other]
    assert [path[0].tolist() for path in paths[:own]] == [[k + c] for c in channel]
    together = simulate_flows(
        piped.link_capacity, flow_set(arrival, volume, paths), record_rates=True
    )
    alone = simulate_flows(piped.link_capacity, flow_set(arrival[:own], volume[:own], paths[:own]))
    np.testing.assert_allclose(together.completion[:own], alone.completion, rtol=1e-12)
    history = together.history
    assert history is not None
    for start in np.unique(history.start):
        now = (history.start == start) & (history.path < own)
        used = np.bincount(
            channel[history.path[now]], history.rate[now], minlength=network.num_channels
        )
        assert np.all(used <= allocation.rate * (1 + 1e-12))


def test_a_flow_alone_in_its_pipes_drains_at_their_sum(network: Network) -> None:
    allocation = weighted_allocation(network, np.ones(network.num_channels))
    flows = flows_between(piped_network(network, allocation), [0.0], [1e6], [0], [1], latency=[1.0])
    found = simulate_flows(piped_network(network, allocation).link_capacity, flows)
    assert found.completion[0] == pytest.approx(1.0 + 1e6 / allocation.pipes(network)[0, 1])


def test_pipes_replace_the_links_of_their_channel(network: Network) -> None:
    allocation = weighted_allocation(network, np.ones(network.num_channels))
    piped = piped_network(network, allocation)
    k = network.num_links
    np.testing.assert_allclose(piped.link_capacity[k:], allocation.rate)
    given_away = network.incidence @ allocation.rate
    np.testing.assert_allclose(
        piped.link_capacity[:k] + given_away, network.link_capacity, rtol=1e-12
    )
    for path, channel in enumerate(network.path_channel):
        before = network.path_links[network.path_ptr[path] : network.path_ptr[path + 1]]
        after = piped.path_links[piped.path_ptr[path] : piped.path_ptr[path + 1]]
        inner = [link for link in before if link not in network.links_of(channel)]
        assert sorted(after) == sorted([*inner, k + channel])
    assert piped.inner_bandwidth.tolist() == network.inner_bandwidth.tolist()


def test_an_allocation_that_does_not_fit_is_refused(network: Network) -> None:
    with pytest.raises(InputError, match="too many"):
        piped_network(network, BandwidthAllocation(np.full(network.num_channels, 1e12)))
