"""`ConvexRates`: closed forms, brute force, bounds that nothing beats."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from agents.bandwidth.convex import ConvexRates, PipeRange, dual_bound
from agents.bandwidth.piped_step import PipedStep
from envs.graphs.builder import GraphBuilder
from envs.step.allocated import allocated_problem, weighted_allocation
from envs.step.plans import BandwidthAllocation, Placement, Plan
from envs.step.problem import StepProblem
from envs.step.step import StepSimulator
from tests.agents.bandwidth.placed_steps import (
    AMPLE,
    cluster,
    concurrent_sends,
    placed_steps,
    plan_of,
    problem_of,
    serial_sends,
)
from tests.asking import allocated
from tests.strength import SEEDS, examples

GAP = 1e-7
VOLUMES = [1.0, 4.0, 9.0]
CONVEX = ConvexRates(gap=GAP, rounds=400)


def simulated(problem: StepProblem, plan: Plan, allocation: BandwidthAllocation) -> float:
    simulator = StepSimulator(allocated_problem(problem, allocation))
    return simulator.step_time(plan.placement.device, plan.order)


@pytest.mark.parametrize("planes", [1, 2])
@pytest.mark.parametrize("volumes", [VOLUMES, [1e-3, 1.0, 1e3], [2.0] * 5])
def test_sends_have_their_closed_form(volumes: list[float], planes: int) -> None:
    """One after another: the square of the sum of roots; at once: the sum; over the capacity."""
    topology = cluster(len(volumes) + 1, planes_=planes, bandwidth=2.0)
    capacity, roots = 2.0 * planes, np.sqrt(volumes)
    for made, seconds in (
        (serial_sends, roots.sum() ** 2 / capacity), (concurrent_sends, sum(volumes) / capacity)
    ):  # fmt: skip
        found = allocated(CONVEX, *made(volumes, topology), 100.0)
        assert found.status == "optimal"
        assert found.value == pytest.approx(seconds, rel=1e-6)
        assert found.bound == pytest.approx(seconds, rel=1e-6)
        assert found.bound <= seconds * (1 + 1e-12)
        if made is serial_sends:
            pipes = found.solution.allocation.pipes(topology.network)[0, 1:]
            np.testing.assert_allclose(pipes, capacity * roots / roots.sum(), rtol=1e-3)


def test_latencies_add_to_the_closed_form() -> None:
    problem, plan = serial_sends(VOLUMES, cluster(4, latency=0.5))
    found = allocated(CONVEX, problem, plan, 100.0)
    assert found.value == pytest.approx(36.0 + 3 * 0.5, rel=1e-6)


def test_a_slow_way_inside_a_server_caps_what_a_pipe_is_worth() -> None:
    """Serial sends over a way of 1/2 inside the servers: no more than 1/2 each is of use."""
    problem, plan = serial_sends([1.0, 100.0], cluster(3, inner=0.5))
    found = allocated(CONVEX, problem, plan, 10.0)
    assert found.value == pytest.approx(101.0 / 0.5, rel=1e-6)
    assert found.status == "optimal"


@pytest.mark.slow
def test_two_pipes_agree_with_a_fine_grid() -> None:
    """One long send beside two serial ones, all by server 0: no closed form, but one unknown."""
    problem, plan = serial_sends([1.0, 2.0, 0.5], cluster(4))
    problem.op_seconds[2, :] = 0.7
    found = allocated(CONVEX, problem, plan, 10.0)
    number = problem.topology.network.channel_destination
    source = problem.topology.network.channel_source
    best = np.inf
    for one in np.linspace(0.01, 0.98, 98):
        for two in np.linspace(0.01, 0.99 - one, 60):
            rate = np.zeros(len(number))
            for destination, share in enumerate((one, two, 1.0 - one - two), 1):
                rate[(source == 0) & (number == destination)] = share
            best = min(best, simulated(problem, plan, BandwidthAllocation(rate)))
    assert found.bound <= best
    assert found.value == pytest.approx(best, rel=2e-3)


@examples(100)
@given(placed=placed_steps(), seed=SEEDS)
def test_no_allocation_near_the_best_beats_the_bound(
    placed: tuple[StepProblem, Plan], seed: int
) -> None:
    problem, plan = placed
    network, generator = problem.topology.network, np.random.default_rng(seed)
    found = allocated(CONVEX, problem, plan, 10.0)
    assert found.bound <= found.value <= found.bound * (1 + GAP)
    for spread in (0.01, 0.1, 1.0):
        noise = np.exp(spread * generator.normal(size=network.num_channels))
        around = np.maximum(found.solution.allocation.rate, 1e-6) * noise
        other = weighted_allocation(network, around)
        assert simulated(problem, plan, other) >= found.bound


@examples(100)
@given(placed=placed_steps(), seed=SEEDS)
def test_any_multipliers_prove_a_bound(placed: tuple[StepProblem, Plan], seed: int) -> None:
    problem, plan = placed
    network, generator = problem.topology.network, np.random.default_rng(seed)
    step = PipedStep(problem, plan)

    def rates(sharpness: float) -> BandwidthAllocation:
        weight = np.exp(sharpness * generator.normal(size=network.num_channels))
        return weighted_allocation(network, weight)

    slow = [step.slowness(rates(1.0).pipes(network)) for _ in range(3)]
    paths = [step.longest_path(slowness) for slowness in slow]
    used = np.flatnonzero(step.transfers)
    number = network.channel_source * step.num_servers + network.channel_destination
    most = np.zeros(step.num_servers**2)
    np.add.at(most, number, network.channel_capacity)
    within = PipeRange(used, np.zeros(len(used)), most[used])
    price = generator.gamma(0.3, size=network.num_links) * paths[0].seconds
    bound = dual_bound(step, paths, generator.gamma(1.0, size=3) + 1e-3, price, within)
    for sharpness in (0.1, 1.0, 3.0):
        assert bound <= simulated(problem, plan, rates(sharpness))


def test_a_slower_allocation_is_taken_where_the_fastest_needs_too_much_memory() -> None:
    """Device 2 holds one of two tensors of 4 bytes at a time.

    Under uniform shares of 1/2 the first arrives after 8 s and is used until 9 s; that is when the
    message of 4.5 bytes has reached device 1 and the second tensor leaves there, to arrive 8 s
    later. More bandwidth for that message, and the two tensors meet.
    """
    builder = GraphBuilder("overlap")
    for name in ("begin", "use", "forward", "end"):
        builder.add_operator(name)
    builder.add_use(builder.add_tensor(0, 4.0), 1)
    builder.add_use(builder.add_tensor(0, 4.5), 2)
    builder.add_use(builder.add_tensor(2, 4.0), 3)
    free = problem_of(builder, [0.0, 1.0, 0.0, 0.0], cluster(3))
    problem = replace(free, capacity=np.array([AMPLE, AMPLE, 7.0]))
    plan = plan_of(problem, {"begin": 0, "use": 2, "forward": 1, "end": 2})
    found = allocated(CONVEX, problem, plan, 10.0)
    assert found.value == pytest.approx(17.0)
    assert found.status == "feasible"
    assert "the fastest allocation was refused" in found.reason
    assert "at its peak" in found.reason
    fastest = allocated(CONVEX, free, plan, 10.0)
    assert fastest.status == "optimal"
    assert fastest.value < 16.9
    assert found.bound == pytest.approx(fastest.bound)


def test_a_plan_that_overflows_under_every_rate_is_not_offered() -> None:
    problem, plan = serial_sends([6.0], cluster(2, memory=5.0))
    found = allocated(CONVEX, problem, plan, 10.0)
    assert (found.solution, found.status) == (None, "limit")
    assert "at its peak" in found.reason
    assert found.bound == pytest.approx(6.0)


def test_one_server_has_nothing_to_allocate() -> None:
    problem, _ = serial_sends([1.0], cluster(1, devices=2))
    plan = Plan(Placement(np.array([0, 1])), np.arange(2))
    found = allocated(CONVEX, problem, plan, 10.0)
    assert found.status == "optimal"
    assert found.solution.allocation is not None
    assert found.solution.allocation.rate.shape == (0,)


def test_the_limit_is_on_longest_paths() -> None:
    problem, plan = serial_sends(VOLUMES, cluster(4))
    first, second = (allocated(CONVEX, problem, plan, 10.0, 3) for _ in range(2))
    assert first.status == "feasible"
    assert first.reason == "the search was stopped before the proof was complete"
    assert first.bound < first.value
    assert (first.value, first.evaluations) == (second.value, second.evaluations)


def test_rounds_are_counted() -> None:
    problem, plan = serial_sends([1.0, 2.0, 0.5], cluster(4, latency=0.1))
    problem.op_seconds[2, :] = 0.7
    found = allocated(ConvexRates(gap=0.0, rounds=1), problem, plan, 10.0)
    assert found.reason == "1 rounds left a gap"
