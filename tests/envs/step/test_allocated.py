"""Allocated bandwidth: rules of an allocation, and steps whose transfers go through pipes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.cost import RooflineCost
from envs.graphs.builder import GraphBuilder
from envs.hardware.builders import planes, uniform
from envs.hardware.network import Network
from envs.hardware.servers import PcieServer
from envs.hardware.topology import Topology
from envs.placement.generator import toy_pipeline
from envs.step.allocated import Allocated, allocated_problem, uniform_allocation
from envs.step.plans import BandwidthAllocation
from envs.step.problem import StepProblem
from envs.step.step import StepSimulator
from tests.refusal import refusal
from tests.strength import examples

PCIE = {"medium": "PCIe", "bandwidth": "16GB/s", "latency": "2us"}
ETHERNET = {"medium": "Ethernet", "bandwidth": "25Gbps", "latency": "5us"}
NIC = 3.125e9  # bytes/s
ALPHA = 18e-6  # seconds: four PCIe links and two of Ethernet


def two_links(servers: int, count: int = 1) -> Topology:
    return planes("t", PcieServer("V100-16GB", count, PCIE, nics=2), servers, ETHERNET)


def sends(topology: Topology, sizes: list[float]) -> StepProblem:
    """One operator sends a tensor of each size, to a consumer each; nothing takes time to run."""
    builder = GraphBuilder("sends")
    builder.add_operator("source")
    for number, size in enumerate(sizes):
        builder.add_operator(f"sink{number}")
        builder.add_use(builder.add_tensor(0, size), number + 1)
    return StepProblem.build(builder.build(), topology, RooflineCost())


def test_uniform_shares_fill_every_link_and_are_feasible() -> None:
    network = two_links(servers=4).network
    allocation = uniform_allocation(network)
    assert allocation.violations(network) == []
    assert allocation.rate == pytest.approx(NIC / 3)
    pipes = allocation.pipes(network)
    assert np.all(np.diag(pipes) == 0)
    assert pipes[0, 1] == pytest.approx(2 * NIC / 3)


def test_violations_name_channels_and_links() -> None:
    network = two_links(servers=3).network
    rate = np.zeros(network.num_channels)
    assert BandwidthAllocation(rate[:-1]).violations(network)[0].startswith("allocates (11,)")
    rate[0] = -1.0
    assert (
        "'server0/nic0 -> plane0 -> server1/nic0' has rate -1"
        in (BandwidthAllocation(rate).violations(network)[0])
    )
    rate[:] = 0.0
    rate[network.channels_between(0, 1)[0]] = NIC
    rate[network.channels_between(2, 1)[0]] = 0.5 * NIC
    found = BandwidthAllocation(rate).violations(network)
    assert found == [
        "link 'plane0 -> server1/nic0' is given 4.6875e+09 bytes/s, 1.5625e+09 too many"
    ]


def test_a_pipe_may_have_more_than_one_links_capacity() -> None:
    network = two_links(servers=3).network
    rate = np.zeros(network.num_channels)
    rate[network.channels_between(0, 1)] = NIC
    allocation = BandwidthAllocation(rate)
    assert allocation.violations(network) == []
    problem = sends(two_links(servers=3), [NIC])
    device = np.array([0, 1])
    alone = StepSimulator(problem).step_time(device)
    both = StepSimulator(allocated_problem(problem, allocation)).step_time(device)
    assert alone == pytest.approx(ALPHA + 1.0)
    assert both == pytest.approx(ALPHA + 0.5)


def test_transfers_of_one_pipe_follow_one_another_and_pipes_do_not_wait_for_others() -> None:
    topology = two_links(servers=3)
    problem = sends(topology, [NIC, NIC, 3 * NIC])
    allocated = allocated_problem(problem, uniform_allocation(topology.network))
    timeline = StepSimulator(allocated).run(np.array([0, 1, 1, 2]))
    assert timeline.transfer_finish == pytest.approx([ALPHA + 1, 2 * ALPHA + 2, ALPHA + 3])


def test_the_way_to_the_nic_limits_a_rich_pipe() -> None:
    slow = {"medium": "PCIe", "bandwidth": "4GB/s", "latency": "2us"}
    topology = planes("t", PcieServer("V100-16GB", 1, slow, nics=2), 2, ETHERNET)
    problem = sends(topology, [4e9])
    allocated = allocated_problem(problem, uniform_allocation(topology.network))
    assert StepSimulator(allocated).step_time(np.array([0, 1])) == pytest.approx(ALPHA + 1.0)


def test_a_pipe_without_a_rate_never_ends() -> None:
    topology = two_links(servers=2)
    nothing = BandwidthAllocation(np.zeros(topology.network.num_channels))
    allocated = allocated_problem(sends(topology, [1.0]), nothing)
    simulator = StepSimulator(allocated)
    assert simulator.step_time(np.array([0, 1])) == np.inf
    assert simulator.step_time(np.array([1, 1])) == 0.0


def test_control_dependencies_need_no_pipe() -> None:
    topology = two_links(servers=2)
    nothing = BandwidthAllocation(np.zeros(topology.network.num_channels))
    allocated = allocated_problem(sends(topology, [0.0]), nothing)
    assert StepSimulator(allocated).step_time(np.array([0, 1])) == 0.0


def test_an_infeasible_allocation_is_an_input_error() -> None:
    topology = two_links(servers=2)
    too_much = BandwidthAllocation(np.full(topology.network.num_channels, 2 * NIC))
    with refusal("too many"):
        allocated_problem(sends(topology, [1.0]), too_much)


def test_a_rule_is_asked_for_an_allocation_of_a_network() -> None:
    problem = sends(two_links(servers=2), [1.0])

    def as_list(network: Network) -> BandwidthAllocation:
        return BandwidthAllocation(uniform_allocation(network).rate.tolist())

    rule = Allocated(allocation=as_list)
    seconds = [made.simulator(problem).problem.transfer_seconds for made in (rule, Allocated())]
    np.testing.assert_array_equal(*seconds)
    for wrong in (lambda: None, BandwidthAllocation, 3):
        with refusal("allocation"):
            Allocated(allocation=wrong)
    with refusal("not a BandwidthAllocation"):
        Allocated(allocation=lambda network: np.ones(3)).simulator(problem)
    listed = Allocated(
        allocation=lambda network: BandwidthAllocation([-1.0] * network.num_channels)
    )
    with refusal("has rate -1.0"):
        listed.simulator(problem)


def test_tabulated_times_without_bandwidth_cannot_be_allocated() -> None:
    problem = toy_pipeline()
    apart = tuple(replace(d, server=n) for n, d in enumerate(problem.topology.devices))
    problem = replace(problem, topology=replace(problem.topology, devices=apart))
    with refusal("no bandwidth to allocate"):
        allocated_problem(problem, uniform_allocation(problem.topology.network))


@examples(60)
@given(data=st.data())
def test_full_pipes_on_one_device_per_server_are_the_single_port_model(data: st.DataObject) -> None:
    """Between two servers with one link each, a pipe with all of it is the pair of NIC ports."""
    topology = uniform("t", PcieServer("V100-16GB", 2, PCIE, nics=1), 2, ETHERNET)
    sizes = data.draw(st.lists(st.sampled_from([0.0, 1e6, 5e7]), min_size=1, max_size=6))
    problem = sends(topology, sizes)
    whole = BandwidthAllocation(np.full(topology.network.num_channels, NIC))
    allocated = allocated_problem(problem, whole)
    count = len(sizes) + 1
    device = np.array(data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count)))
    assert StepSimulator(allocated).step_time(device) == pytest.approx(
        StepSimulator(problem).step_time(device), rel=1e-12
    )


def test_a_transfer_faster_than_its_latency_keeps_its_time() -> None:
    topology = two_links(servers=2)
    problem = sends(topology, [1.0])
    quick = replace(problem, transfer_seconds=np.where(problem.transfer_seconds > 0, 1e-6, 0.0))
    slow = BandwidthAllocation(np.full(topology.network.num_channels, 1e-3 * NIC))
    assert StepSimulator(allocated_problem(quick, slow)).step_time(np.array([0, 1])) == 1e-6
