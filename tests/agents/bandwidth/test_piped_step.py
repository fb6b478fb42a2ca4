"""`PipedStep`: its longest path is the simulator's step, and a cut at all other rates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from agents.bandwidth.piped_step import PipedStep
from envs.graphs.builder import GraphBuilder
from envs.step.allocated import allocated_problem, weighted_allocation
from envs.step.plans import BandwidthAllocation, Plan
from envs.step.problem import StepProblem
from envs.step.step import StepSimulator
from tests.agents.bandwidth.placed_steps import (
    cluster,
    placed_steps,
    plan_of,
    problem_of,
    serial_sends,
)
from tests.refusal import refusal
from tests.strength import SEEDS, examples

SETTINGS = examples(150)


def random_allocation(problem: StepProblem, seed: int) -> BandwidthAllocation:
    network = problem.topology.network
    weight = np.random.default_rng(seed).gamma(0.5, size=network.num_channels) + 1e-3
    return weighted_allocation(network, weight)


def simulated(problem: StepProblem, plan: Plan, allocation: BandwidthAllocation) -> float:
    simulator = StepSimulator(allocated_problem(problem, allocation))
    return simulator.step_time(plan.placement.device, plan.order)


@SETTINGS
@given(placed=placed_steps(), seed=SEEDS)
def test_the_longest_path_is_the_simulated_step(
    placed: tuple[StepProblem, Plan], seed: int
) -> None:
    problem, plan = placed
    step, allocation = PipedStep(problem, plan), random_allocation(problem, seed)
    slowness = step.slowness(allocation.pipes(problem.topology.network))
    path = step.longest_path(slowness)
    assert path.seconds == pytest.approx(simulated(problem, plan, allocation), rel=1e-12)
    assert path.constant + path.volume @ slowness == pytest.approx(path.seconds, rel=1e-12)
    assert path.constant >= 0
    assert (path.volume >= 0).all()


@SETTINGS
@given(placed=placed_steps(), seed=SEEDS)
def test_a_path_is_no_longer_than_the_step_at_any_other_rates(
    placed: tuple[StepProblem, Plan], seed: int
) -> None:
    problem, plan = placed
    step = PipedStep(problem, plan)
    rates = [random_allocation(problem, seed + k) for k in range(4)]
    slow = [step.slowness(rate.pipes(problem.topology.network)) for rate in rates]
    for path in map(step.longest_path, slow):
        for slowness, rate in zip(slow, rates, strict=True):
            step_time = simulated(problem, plan, rate)
            assert path.constant + path.volume @ slowness <= step_time * (1 + 1e-12)


@SETTINGS
@given(placed=placed_steps(), seed=SEEDS)
def test_the_step_is_convex_and_monotone_in_the_rates(
    placed: tuple[StepProblem, Plan], seed: int
) -> None:
    problem, plan = placed
    one, two = (random_allocation(problem, seed + k) for k in range(2))
    ends = simulated(problem, plan, one), simulated(problem, plan, two)
    middle = BandwidthAllocation(0.3 * one.rate + 0.7 * two.rate)
    assert simulated(problem, plan, middle) <= (0.3 * ends[0] + 0.7 * ends[1]) * (1 + 1e-12)
    less = BandwidthAllocation(0.8 * one.rate)
    assert simulated(problem, plan, less) >= ends[0] * (1 - 1e-12)


@SETTINGS
@given(placed=placed_steps())
def test_traffic_counts_every_transfer_between_servers_once(
    placed: tuple[StepProblem, Plan],
) -> None:
    problem, plan = placed
    graph, device = problem.graph, plan.placement.device
    server, volume = problem.topology.server, np.zeros((problem.topology.num_servers,) * 2)
    number = np.zeros(volume.shape, dtype=np.int64)
    seen = set()
    for producer, consumer, tensor in graph.edges:
        source, destination = device[producer], device[consumer]
        size = graph.tensor_bytes[tensor]
        if server[source] != server[destination] and size > 0:
            if (tensor, destination) not in seen:
                volume[server[source], server[destination]] += size
                number[server[source], server[destination]] += 1
            seen.add((tensor, destination))
    step = PipedStep(problem, plan)
    np.testing.assert_allclose(step.volume, volume.ravel(), rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(step.transfers, number.ravel())


def test_the_path_leads_through_what_kept_a_receiving_port_busy() -> None:
    """Devices 0 and 1 send 2 and 3 bytes to device 2 of their server, which takes one at a time."""
    builder = GraphBuilder("receive")
    for name in ("one", "two", "both"):
        builder.add_operator(name)
    builder.add_use(builder.add_tensor(0, 2.0), 2)
    builder.add_use(builder.add_tensor(1, 3.0), 2)
    problem = problem_of(builder, [0.5, 1.0, 0.25], cluster(1, devices=3, inner=1.0))
    plan = plan_of(problem, {"one": 0, "two": 1, "both": 2})
    path = PipedStep(problem, plan).longest_path(np.zeros(0))
    assert path.seconds == pytest.approx(0.5 + 2.0 + 3.0 + 0.25)
    assert path.constant == pytest.approx(path.seconds)


def test_nothing_passes_a_pipe_of_rate_zero() -> None:
    problem, plan = serial_sends([1.0], cluster(2))
    step = PipedStep(problem, plan)
    assert step.longest_path(step.slowness(np.zeros((2, 2)))).seconds == np.inf


def test_links_without_bandwidth_cannot_be_allocated() -> None:
    problem, plan = serial_sends([1.0], cluster(2))
    topology = replace(problem.topology, class_bandwidth=np.full(2, np.inf))
    with refusal("has no bandwidth to allocate"):
        PipedStep(replace(problem, topology=topology), plan)


def test_a_tensor_faster_than_the_latency_of_its_way_is_refused() -> None:
    problem, plan = serial_sends([1.0], cluster(2, latency=1.0))
    seconds = np.where(problem.transfer_seconds > 0, 0.5, 0.0)
    with refusal("whose latency alone is 1 s"):
        PipedStep(replace(problem, transfer_seconds=seconds), plan)
