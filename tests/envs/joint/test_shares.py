"""The compiled shares of pipes are those of the checked allocation."""

from __future__ import annotations

import numpy as np
import pytest

from envs.bandwidth.toy import star
from envs.hardware.builders import mixed, planes
from envs.hardware.network import Network
from envs.hardware.servers import PcieServer
from envs.joint.shares import pipe_rates, shares_of
from envs.step.allocated_problem import uniform_allocation
from envs.step.weighted_allocation import weighted_allocation

PCIE = {"medium": "PCIe", "bandwidth": "16GB/s", "latency": "2us"}
ETHERNET = {"medium": "Ethernet", "bandwidth": "25Gbps", "latency": "5us"}


def server(nics: int) -> PcieServer:
    return PcieServer("V100-16GB", 1, PCIE, nics=nics)


NETWORKS = {
    "star": star(4, 1.0, 1.0).network,
    "two planes": planes("t", server(2), 4, ETHERNET).network,
    "unlike servers": mixed("t", [server(1), server(2), server(3)], ETHERNET).network,
}


@pytest.fixture(params=NETWORKS)
def network(request: pytest.FixtureRequest) -> Network:
    return NETWORKS[request.param]


def test_rates_are_the_weighted_max_min_shares(network: Network) -> None:
    servers, rng = network.num_servers, np.random.default_rng(0)
    shares, rate = shares_of(network, step=0.5), np.empty(servers * servers)
    pipe = network.channel_source * servers + network.channel_destination
    for _ in range(20):
        level = rng.integers(-10, 11, servers * servers)
        pipe_rates(shares, level, rate)
        allocation = weighted_allocation(network, np.exp2(level / 2)[pipe])
        assert allocation.violations(network) == []
        np.testing.assert_allclose(
            rate.reshape(servers, servers), allocation.pipes(network), rtol=1e-12
        )


def test_equal_weights_are_uniform_shares_where_servers_are_alike() -> None:
    for name in ("star", "two planes"):
        network = NETWORKS[name]
        servers = network.num_servers
        rate = np.empty(servers * servers)
        pipe_rates(shares_of(network, 1.0), np.full(servers * servers, 3), rate)
        np.testing.assert_allclose(
            rate.reshape(servers, servers), uniform_allocation(network).pipes(network), rtol=1e-12
        )
