"""Pipes whose rates change give the times of the problem made anew from the allocation."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.random import default_rng

from envs.cost import RooflineCost
from envs.graphs.synthetic import synthetic_training_graph
from envs.hardware.builders import planes
from envs.hardware.servers import PcieServer
from envs.placement.generator import toy_pipeline
from envs.step.allocated import (
    allocated_problem,
    piped_problem,
    set_pipe_rates,
    set_some_pipe_rates,
    weighted_allocation,
)
from envs.step.fusion import fuse, fused_problem
from envs.step.plans import BandwidthAllocation
from envs.step.problem import StepProblem
from envs.step.step import StepSimulator
from tests.refusal import refusal

PCIE = {"medium": "PCIe", "bandwidth": "2GB/s", "latency": "2us"}  # slower than the links
ETHERNET = {"medium": "Ethernet", "bandwidth": "25Gbps", "latency": "50us"}


@pytest.fixture(scope="module")
def problem() -> StepProblem:
    """Three servers of two devices; the way to the NICs is narrower than two links."""
    topology = planes("t", PcieServer("V100-16GB", 2, PCIE, nics=2), 3, ETHERNET)
    graph = synthetic_training_graph(default_rng(0), 5, 2, 3)
    return StepProblem.build(graph, topology, RooflineCost())


def allocations(problem: StepProblem, count: int) -> list[BandwidthAllocation]:
    network, rng = problem.topology.network, default_rng(1)
    return [
        weighted_allocation(network, np.exp2(rng.uniform(-5, 5, network.num_channels)))
        for _ in range(count)
    ]


@pytest.mark.parametrize("fused", [False, True])
def test_step_times_are_those_of_the_allocated_problem(problem: StepProblem, fused: bool) -> None:
    network, rng = problem.topology.network, default_rng(2)
    fusion = fuse(problem, 8)
    first, *others = allocations(problem, 6)
    piped = piped_problem(problem, first.pipes(network), fusion if fused else None)
    simulator = StepSimulator(piped.problem)
    for allocation in [first, *others]:
        rates = allocation.pipes(network).ravel()
        set_pipe_rates(piped.table, rates, simulator.arrays.transfer_seconds)
        anew = allocated_problem(problem, allocation)
        expected = StepSimulator(fused_problem(anew, fusion) if fused else anew)
        for _ in range(4):
            group = rng.integers(0, 6, fusion.num_groups)
            device = fusion.expand_pieces(group) if fused else fusion.expand(group)
            assert simulator.step_time(device) == pytest.approx(
                expected.step_time(device), rel=1e-12
            )


def test_some_rates_are_set_as_all_are(problem: StepProblem) -> None:
    network = problem.topology.network
    first, second = (a.pipes(network) for a in allocations(problem, 2))
    piped = piped_problem(problem, first)
    partly, wholly = piped.problem.transfer_seconds.copy(), piped.problem.transfer_seconds.copy()
    set_pipe_rates(piped.table, second.ravel(), wholly)
    tensor = np.array([0, 3, 7])
    kind = np.flatnonzero(piped.table.pipe >= 0)[[0, 4, 2]]
    set_some_pipe_rates(piped.table, second.ravel(), tensor, kind, 3, partly)
    before = piped.problem.transfer_seconds
    np.testing.assert_array_equal(partly[tensor, kind], wholly[tensor, kind])
    partly[tensor, kind] = before[tensor, kind]
    np.testing.assert_array_equal(partly, before)


def test_a_pipe_without_rate_takes_for_ever_and_inside_a_server_nothing_changes(
    problem: StepProblem,
) -> None:
    piped = piped_problem(problem, np.zeros((3, 3)))
    device = np.zeros(problem.graph.num_operators, dtype=np.int64)
    inside, across = device.copy(), device.copy()
    inside[::2], across[::2] = 1, 2
    order = np.arange(problem.graph.num_operators)
    simulator = StepSimulator(piped.problem)
    assert simulator.step_time(inside, order) == StepSimulator(problem).step_time(inside, order)
    assert simulator.step_time(across, order) == np.inf


def test_classes_without_bandwidth_are_refused() -> None:
    with refusal("no bandwidth to allocate"):
        piped_problem(toy_pipeline(), np.ones((2, 2)))
