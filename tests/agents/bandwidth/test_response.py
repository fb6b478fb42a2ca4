from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.bandwidth.pipes import ResponsiveSimulator
from envs.step.allocated import allocated_problem, uniform_allocation, weighted_allocation
from envs.step.plans import BandwidthAllocation, Plan
from envs.step.problem import StepProblem
from envs.step.step import StepSimulator
from tests.agents.bandwidth.placed_steps import cluster, placed_steps, serial_sends
from tests.strength import examples

CLOSE = 1e-9


def responsive(problem: StepProblem) -> ResponsiveSimulator:
    uniform = allocated_problem(problem, uniform_allocation(problem.topology.network))
    return ResponsiveSimulator(uniform, problem.topology)


def asked(problem: StepProblem, device: np.ndarray) -> BandwidthAllocation:
    """The rates that the traffic of a placement asks for, counted tensor by tensor."""
    graph, topology, network = problem.graph, problem.topology, problem.topology.network
    traffic, used = np.zeros((2, network.num_servers, network.num_servers))
    for tensor in range(graph.num_tensors):
        source = device[graph.producer[tensor]]
        for target in set(device[graph.consumers(tensor)].tolist()) - {source}:
            pair = topology.server[source], topology.server[target]
            kind = topology.link_class[source, target]
            seconds = problem.transfer_seconds[tensor, kind]
            if pair[0] != pair[1] and seconds > 0.0:
                moving = seconds - topology.class_latency[kind]
                traffic[pair] += moving * topology.class_bandwidth[kind]
                used[pair] += 1
    weight = np.where(used > 0, np.sqrt(np.maximum(traffic, 1.0)), 0.0)
    return weighted_allocation(network, weight[network.channel_source, network.channel_destination])


@examples(60)
@given(step=placed_steps())
def test_a_placement_is_played_at_the_rates_it_asks_for(step: tuple[StepProblem, Plan]) -> None:
    problem, plan = step
    device = plan.placement.device
    simulator = responsive(problem)
    allocation = simulator.allocation(device)
    assert allocation.violations(problem.topology.network) == []
    assert allocation.rate == pytest.approx(asked(problem, device).rate, rel=CLOSE)
    played = StepSimulator(allocated_problem(problem, allocation))
    for order in (plan.order, None):
        wanted = played.step_time(device, order)
        assert simulator.step_time(device, order) == pytest.approx(wanted, rel=CLOSE)
        timeline = simulator.run(device, order)
        assert timeline.step_time == pytest.approx(wanted, rel=CLOSE)
        assert timeline.peak_memory == pytest.approx(played.run(device, order).peak_memory)


@examples(20)
@given(step=placed_steps(), seed=st.integers(0, 9))
def test_placements_side_by_side_are_those_one_by_one(
    step: tuple[StepProblem, Plan], seed: int
) -> None:
    problem, _ = step
    drawn = np.random.default_rng(seed).integers(
        problem.topology.num_devices, size=(5, problem.graph.num_operators)
    )
    simulator = responsive(problem)
    alone = [responsive(problem).step_time(device) for device in drawn]
    assert simulator.step_times(drawn).tolist() == alone


def test_serial_sends_take_the_square_of_the_sum_of_roots() -> None:
    volumes = [9.0, 4.0, 1.0]
    problem, plan = serial_sends(volumes, cluster(4))
    seconds = responsive(problem).step_time(plan.placement.device, plan.order)
    assert seconds == pytest.approx(np.sqrt(volumes).sum() ** 2, rel=1e-6)
