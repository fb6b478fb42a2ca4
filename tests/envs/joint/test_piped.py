"""The look-ahead of allocators is what the problem made anew says."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.random import default_rng
from numpy.testing import assert_allclose, assert_array_equal

from envs.arrays import FloatArray
from envs.bandwidth.generator import star
from envs.cost import RooflineCost
from envs.graphs.synthetic import synthetic_training_graph
from envs.hardware.builders import mixed, planes
from envs.hardware.network import Network
from envs.hardware.servers import PcieServer
from envs.joint.piped import WeightedStep, pipe_rates, shares_of
from envs.step.allocated import allocated_problem, uniform_allocation, weighted_allocation
from envs.step.fusion import fuse, fused_problem
from envs.step.problem import StepProblem
from envs.step.step import StepSimulator

PCIE = {"medium": "PCIe", "bandwidth": "16GB/s", "latency": "2us"}
ETHERNET = {"medium": "Ethernet", "bandwidth": "25Gbps", "latency": "50us"}
SERVERS, TOP, STEP = 3, 4, 0.5


@pytest.fixture(scope="module")
def problem() -> StepProblem:
    topology = planes("t", PcieServer("V100-16GB", 2, PCIE, nics=2), SERVERS, ETHERNET)
    graph = synthetic_training_graph(default_rng(0), 5, 2, 3)
    return StepProblem.build(graph, topology, RooflineCost())


@pytest.fixture
def piped(problem: StepProblem) -> WeightedStep:
    return WeightedStep(problem, fuse(problem, 8), TOP, STEP)


def looked(piped: WeightedStep, turn: int | None = None) -> FloatArray:
    """What changes of levels do to `GROUPS` in the order of the simulator."""
    device = piped.fusion.expand_pieces(GROUPS)
    return piped.look(device, piped.simulator.order(device), turn)


def anew(problem: StepProblem, level: np.ndarray[tuple[int, int], np.dtype[np.int64]]) -> float:
    """Seconds of `GROUPS` with the allocation made of `level` from first principles."""
    network = problem.topology.network
    pipe = network.channel_source, network.channel_destination
    allocation = weighted_allocation(network, np.exp2(level * STEP)[pipe])
    fusion = fuse(problem, 8)
    fused = fused_problem(allocated_problem(problem, allocation), fusion)
    return StepSimulator(fused).step_time(fusion.expand_pieces(GROUPS))


GROUPS = np.array([0, 3, 1, 2, 5, 4, 0, 2])


def test_every_change_of_a_level_is_simulated(problem: StepProblem, piped: WeightedStep) -> None:
    rng = default_rng(3)
    device = fuse(problem, 8).expand_pieces(GROUPS)
    for _ in range(3):
        level = rng.integers(-TOP, TOP + 1, (SERVERS, SERVERS))
        piped.set_levels(level)
        changed = looked(piped)
        assert piped.simulator.step_time(device) == pytest.approx(anew(problem, level), rel=1e-12)
        for source in range(SERVERS):
            for target in range(SERVERS):
                for way, change in enumerate((1, -1)):
                    trial = level.copy()
                    trial[source, target] += change
                    if source == target or abs(trial[source, target]) > TOP:
                        assert changed[source, target, way] == np.inf
                    else:
                        assert changed[source, target, way] == pytest.approx(
                            anew(problem, trial), rel=1e-12
                        )


def test_the_server_whose_turn_it_is_sees_the_same_as_beside_the_others(
    piped: WeightedStep,
) -> None:
    together = looked(piped)
    for turn in range(SERVERS):
        alone = looked(piped, turn)
        assert_array_equal(alone[turn], together[turn])
        assert np.isinf(np.delete(alone, turn, axis=0)).all()


def test_looking_leaves_everything_as_it_was(piped: WeightedStep) -> None:
    piped.set_levels(np.full((SERVERS, SERVERS), 1) + np.arange(SERVERS))
    held = piped.arrays.transfer_seconds, piped.level, piped.rate
    before = [array.copy() for array in held]
    first = looked(piped)
    for array, kept in zip(held, before, strict=True):
        assert_array_equal(array, kept)
    assert_array_equal(looked(piped), first)


def test_crossings_are_the_transfers_of_the_simulation(
    problem: StepProblem, piped: WeightedStep
) -> None:
    rng = default_rng(1)
    piped.set_levels(rng.integers(-TOP, TOP + 1, (SERVERS, SERVERS)))
    looked(piped)
    device = piped.fusion.expand_pieces(GROUPS)
    timeline, server = piped.simulator.run(device), problem.topology.server
    source, target = timeline.transfer_source, timeline.transfer_destination
    pipe = server[source] * SERVERS + server[target]
    lasting = timeline.transfer_finish - timeline.transfer_start
    sent = (server[source] != server[target]) & (lasting > 0)
    size = SERVERS * SERVERS
    assert_array_equal(piped.crossings.transfers, np.bincount(pipe[sent], minlength=size))
    assert_allclose(
        piped.crossings.seconds, np.bincount(pipe[sent], lasting[sent], minlength=size), atol=1e-12
    )


def test_class_seconds_are_the_sums_of_the_table(piped: WeightedStep) -> None:
    piped.set_levels(np.arange(SERVERS * SERVERS).reshape(SERVERS, SERVERS) - 4)
    assert_allclose(
        piped.class_seconds, piped.simulator.arrays.transfer_seconds.sum(axis=0), rtol=1e-12
    )


def test_a_pipe_alone_has_its_links(piped: WeightedStep) -> None:
    alone = piped.alone_rate
    assert not np.diag(alone).any()
    assert_allclose(alone[~np.eye(SERVERS, dtype=bool)], 2 * 3.125e9)


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
    servers, rng = network.num_servers, default_rng(0)
    shares, rate = shares_of(network, step=0.5), np.empty(servers * servers)
    pipe = network.channel_source * servers + network.channel_destination
    for _ in range(20):
        level = rng.integers(-10, 11, servers * servers)
        pipe_rates(shares, level, rate)
        allocation = weighted_allocation(network, np.exp2(level / 2)[pipe])
        assert allocation.violations(network) == []
        assert_allclose(rate.reshape(servers, servers), allocation.pipes(network), rtol=1e-12)


def test_equal_weights_are_uniform_shares_where_servers_are_alike() -> None:
    for name in ("star", "two planes"):
        network = NETWORKS[name]
        servers = network.num_servers
        rate = np.empty(servers * servers)
        pipe_rates(shares_of(network, 1.0), np.full(servers * servers, 3), rate)
        assert_allclose(
            rate.reshape(servers, servers), uniform_allocation(network).pipes(network), rtol=1e-12
        )
