from __future__ import annotations

from itertools import combinations

import numpy as np
from hypothesis import given

from agents.bandwidth.joint_search.pipes import Pipes
from agents.bandwidth.joint_search.rates import servers_alike
from envs.step.allocated import allocated_problem, uniform_allocation
from envs.step.plans import Plan
from envs.step.problem import StepProblem
from tests.agents.bandwidth.placed_steps import cluster, placed_steps, with_capacities
from tests.strength import examples


def test_servers_of_equal_planes_can_change_places() -> None:
    network = cluster(4, 2, 2).network
    assert all(servers_alike(network, a, b) for a, b in combinations(range(4), 2))


def test_a_slower_link_tells_a_server_apart() -> None:
    topology = cluster(3, 1, 2)
    names = topology.network.link_names
    slow = [0.5 if name.startswith("server1/nic0") else 1.0 for name in names]
    assert slow.count(0.5) > 0
    network = with_capacities(topology, slow).network
    assert not servers_alike(network, 0, 1)
    assert not servers_alike(network, 1, 2)
    assert servers_alike(network, 0, 2)


@examples(40)
@given(step=placed_steps())
def test_servers_alike_have_pipes_alike(step: tuple[StepProblem, Plan]) -> None:
    topology = step[0].topology
    network = topology.network
    uniform = allocated_problem(step[0], uniform_allocation(network))
    servers = network.num_servers
    full = Pipes.of(uniform, topology).full.reshape(servers, servers)
    for a, b in combinations(range(servers), 2):
        if servers_alike(network, a, b):
            swap = np.arange(servers)
            swap[[a, b]] = b, a
            assert np.allclose(full[np.ix_(swap, swap)], full)
