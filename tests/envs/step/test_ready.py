"""What is ready is played as the reference plays it; the faster of two orders is taken."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.random import default_rng
from reference_step import play_ready

from envs.cost import RooflineCost
from envs.graphs.synthetic import synthetic_training_graph
from envs.hardware.topology import Topology
from envs.joint.generator import default_generator
from envs.joint.generator import default_generator as two_planes
from envs.placement.generator import default_generator as mixed
from envs.step.order import TopologicalOrder
from envs.step.plans import Placement, Plan
from envs.step.problem import StepProblem
from envs.step.ready import FasterOrder, ReadySimulator
from envs.step.step import NO_COMMUNICATION, SINGLE_PORT, Ports, StepSimulator
from tests.strength import trials


@pytest.mark.parametrize("topology", [two_planes().topology, mixed().topology])
@pytest.mark.parametrize("ports", [SINGLE_PORT, NO_COMMUNICATION])
def test_operators_start_when_the_reference_starts_them(topology: Topology, ports: Ports) -> None:
    rng = default_rng(0)
    for _ in range(trials(12)):
        layers, width, batches = (int(rng.integers(1, top)) for top in (8, 4, 5))
        graph = synthetic_training_graph(rng, layers, width, batches)
        problem = StepProblem.build(graph, topology, RooflineCost())
        ready = ReadySimulator(problem, communication=ports)
        device = rng.integers(0, topology.num_devices, graph.num_operators)
        order = ready.order(device)
        expected = play_ready(problem, device, order, ports=ports.uses_ports)
        found = ready.run(device, order)
        np.testing.assert_array_equal(found.op_start, expected.start)
        moves = (found.transfer_tensor, found.transfer_source, found.transfer_destination,
                 found.transfer_start, found.transfer_finish)  # fmt: skip
        assert sorted(zip(*moves, strict=True)) == sorted(expected.transfers)


@pytest.fixture(scope="module")
def problem() -> StepProblem:
    graph = synthetic_training_graph(default_rng(2), 6, 2, 4)
    return StepProblem.build(graph, default_generator().topology, RooflineCost())


def placements(problem: StepProblem) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """(20, N), co-location groups together."""
    rng, owner = default_rng(0), problem.graph.colocation
    key = np.where(owner < 0, np.arange(len(owner)) + problem.graph.num_groups, owner)
    return np.array([rng.integers(0, 4, key.max() + 1)[key] for _ in range(20)])


def test_the_faster_of_the_rules_order_and_a_dynamic_runtimes_is_taken(
    problem: StepProblem,
) -> None:
    plain, faster, ready = StepSimulator(problem), FasterOrder(problem), ReadySimulator(problem)
    gained = 0
    for device in placements(problem):
        rank = np.argsort(plain.order(device)).tolist()
        start = ready.run(device).op_start.tolist()
        by_start = sorted(range(len(rank)), key=lambda op: (start[op], rank[op]))
        ranked, dynamic = plain.step_time(device), plain.step_time(device, np.array(by_start))
        order = faster.order(device)
        assert faster.step_time(device) == min(ranked, dynamic)
        assert plain.step_time(device, order) == min(ranked, dynamic)
        assert faster.run(device).step_time == pytest.approx(min(ranked, dynamic))
        assert Plan(Placement(device), order).violations(problem) == []
        gained += dynamic < ranked
    assert gained > 0


def test_placements_together_and_alone_take_the_same_time(problem: StepProblem) -> None:
    faster, devices = FasterOrder(problem), placements(problem)
    together = faster.step_times(devices)
    assert together.tolist() == [faster.step_time(device) for device in devices]


def test_a_given_order_is_kept(problem: StepProblem) -> None:
    faster, plain = FasterOrder(problem), StepSimulator(problem)
    device = placements(problem)[0]
    order = TopologicalOrder()(problem.graph, device)
    assert faster.step_time(device, order) == plain.step_time(device, order)


def test_the_rule_ranks_what_is_ready(problem: StepProblem) -> None:
    rule = TopologicalOrder()
    by_rule = FasterOrder(problem, order_rule=rule).step_times(placements(problem))
    assert (
        by_rule <= StepSimulator(problem, order_rule=rule).step_times(placements(problem))
    ).all()
    assert (by_rule != FasterOrder(problem).step_times(placements(problem))).any()
