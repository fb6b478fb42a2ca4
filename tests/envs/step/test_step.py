"""The compiled step simulator: hand-worked cases of each rule, and the slow reference."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given
from numpy.testing import assert_allclose
from random_steps import placed_problems, problems, topology_of
from reference_step import log_of, peak_memory, play_in_order, play_ready

from envs.graphs.builder import GraphBuilder
from envs.step.order import OneFOneB, TopologicalOrder
from envs.step.problem import StepProblem
from envs.step.ready import ReadySimulator
from envs.step.step import NO_COMMUNICATION, StepSimulator
from tests.strength import examples


def problem_of(edges, seconds, servers=(0, 1), nic=False, move=1.0, sizes=None) -> StepProblem:
    """One tensor per (producer, consumers) in `edges`; every transfer takes `move` seconds."""
    builder = GraphBuilder("hand")
    for op in range(len(seconds)):
        builder.add_operator(f"op{op}")
    for index, (producer, consumers) in enumerate(edges):
        tensor = builder.add_tensor(producer, sizes[index] if sizes else 1.0)
        for consumer in consumers:
            builder.add_use(tensor, consumer)
    graph = builder.build()
    topology = topology_of(list(servers), nic)
    transfer = np.full((graph.num_tensors, 3), float(move))
    transfer[:, 0] = 0.0
    return StepProblem(
        graph=graph,
        topology=topology,
        op_seconds=np.repeat(np.array(seconds, dtype=float)[:, None], len(servers), axis=1),
        transfer_seconds=transfer,
        capacity=topology.memory_bytes,
    )


def place(*devices):
    return np.array(devices, dtype=np.int64)


ORDER3 = np.arange(3)


CHAIN = [(0, [1]), (1, [2])]
CROSSING = [(0, [2]), (1, [3])]
APART = {"servers": (0, 0, 0), "move": 3}
HAND_WORKED = {  # tensors, seconds, options of the problem, devices; what is found
    "a chain on one device takes the sum": (CHAIN, [1, 2, 3], {}, (0, 0, 0), {"step_time": 6}),
    "a transfer delays the consumer and overlaps compute": (
        [(0, [2])], [1, 5, 1], {"move": 2}, (0, 0, 1), {"op_start": [0, 1, 3], "step_time": 6},
    ),
    "a tensor is sent once per receiving device": (
        [(0, [1, 2])], [1, 1, 1], {"move": 4}, (0, 1, 1),
        {"transfer_tensor": [0], "step_time": 1 + 4 + 1 + 1},
    ),
    "one send port serves one transfer at a time": (
        [(0, [1]), (0, [2])], [1, 1, 1], APART, (0, 1, 2),
        {"transfer_start": [1, 4], "step_time": 8},
    ),
    "one receive port serves one transfer at a time": (
        [(0, [2]), (1, [2])], [1, 1, 1], APART, (0, 1, 2), {"step_time": 1 + 3 + 3 + 1},
    ),
    "ports are full duplex": (
        CROSSING, [1] * 4, {"servers": (0, 0), "move": 3}, (0, 1, 1, 0), {"transfer_start": [1, 1]},
    ),
    "inside a server devices have ports of their own": (
        CROSSING, [1] * 4, {"servers": (0,) * 4, "nic": True, "move": 3}, range(4),
        {"step_time": 5},
    ),
    "between servers they share the NIC": (
        CROSSING, [1] * 4, {"servers": (0, 0, 1, 1), "nic": True, "move": 3}, range(4),
        {"step_time": 8},
    ),
    "zero-cost transfers hold no port": (
        [(0, [1]), (0, [2])], [1, 1, 1], APART | {"move": 0}, (0, 1, 2), {"step_time": 2},
    ),
    "peak memory of a chain counts input and output together": (
        CHAIN, [1, 1, 1], {"sizes": [10.0, 4.0]}, (0, 0, 0), {"peak_memory": [14, 0]},
    ),
    "peak memory holds a sent tensor on both sides": (
        [(0, [1])], [1, 5, 1], {"sizes": [10.0], "move": 2}, (0, 1, 1), {"peak_memory": [10, 10]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HAND_WORKED)
def test_hand_worked_steps(name):
    edges, seconds, options, devices, expected = HAND_WORKED[name]
    simulator = StepSimulator(problem_of(edges, seconds, **options))
    device, order = place(*devices), np.arange(len(seconds))
    timeline = simulator.run(device, order)
    assert simulator.step_time(device, order) == timeline.step_time
    for what, value in expected.items():
        assert np.array_equal(getattr(timeline, what), value)


def test_ports_serve_by_first_consumer_even_when_the_tensor_was_numbered_later():
    problem = problem_of([(0, [2]), (0, [1])], [1, 1, 1], servers=(0, 0, 0), move=3)
    timeline = StepSimulator(problem).run(place(0, 1, 2), ORDER3)
    assert timeline.transfer_destination.tolist() == [1, 2]
    swapped = StepSimulator(problem).run(place(0, 1, 2), np.array([0, 2, 1]))
    assert swapped.transfer_destination.tolist() == [2, 1]


def test_a_port_waits_for_its_next_transfer_in_the_order():
    """Operator 1's tensor is ready at 1, but operator 0 comes first in the order and ends at 5."""
    problem = problem_of([(0, [2]), (1, [3])], [5, 1, 1, 1], servers=(0, 1, 2, 2), move=1)
    device, order = place(0, 1, 2, 2), np.arange(4)
    assert StepSimulator(problem).run(device, order).transfer_start.tolist() == [5, 6]
    assert ReadySimulator(problem).run(device, order).op_start[3] == 2


def test_without_communication_transfers_are_free():
    problem = problem_of([(0, [1]), (1, [2])], [1, 1, 1], move=9)
    simulator = StepSimulator(problem, communication=NO_COMMUNICATION)
    assert simulator.step_time(place(0, 1, 0), ORDER3) == 3
    assert simulator.run(place(0, 1, 0), ORDER3).step_time == 3


def test_the_order_decides_who_computes_first():
    problem = problem_of([(0, [2])], [1, 5, 1])
    simulator = StepSimulator(problem)
    device = place(0, 0, 1)
    assert simulator.step_time(device, np.array([0, 1, 2])) == 6
    assert simulator.step_time(device, np.array([1, 0, 2])) == 8


def test_the_ready_discipline_skips_what_is_not_ready():
    problem = problem_of([(0, [1])], [4, 1, 1], move=1)
    device, order = place(0, 1, 1), np.array([0, 1, 2])
    assert StepSimulator(problem).run(device, order).op_start.tolist() == [0, 5, 6]
    assert ReadySimulator(problem).run(device, order).op_start.tolist() == [0, 5, 0]


def test_a_transfer_too_short_to_move_the_clock_gives_its_ports_back():
    problem = problem_of([(0, [1]), (0, [2])], [1, 1, 1], servers=(0, 0), move=1e-17)
    device = place(0, 1, 1)
    assert StepSimulator(problem).step_time(device, ORDER3) == 3
    assert ReadySimulator(problem).step_time(device, ORDER3) == 3


@examples(150)
@given(placed_problems())
def test_agrees_with_the_reference(case):
    problem, device, order = case
    expected = play_in_order(problem, device, order)
    timeline = StepSimulator(problem).run(device, order)
    assert_allclose(timeline.op_start, expected.start, rtol=1e-12)
    assert_allclose(timeline.op_finish, expected.finish, rtol=1e-12)
    assert StepSimulator(problem).step_time(device, order) == pytest.approx(
        expected.step_time, rel=1e-12
    )
    assert log_of(timeline) == expected.transfers
    assert_allclose(timeline.peak_memory, peak_memory(problem, device, expected))


@examples(80)
@given(placed_problems(max_operators=10))
def test_ready_agrees_with_the_reference(case):
    problem, device, order = case
    expected = play_ready(problem, device, order)
    timeline = ReadySimulator(problem).run(device, order)
    assert_allclose(timeline.op_start, expected.start, rtol=1e-12)
    assert_allclose(timeline.op_finish, expected.finish, rtol=1e-12)


@examples(60)
@given(placed_problems())
def test_free_communication_agrees_with_the_reference(case):
    problem, device, order = case
    expected = play_in_order(problem, device, order, ports=False)
    simulator = StepSimulator(problem, communication=NO_COMMUNICATION)
    assert simulator.step_time(device, order) == pytest.approx(expected.step_time, rel=1e-12)


@examples(60)
@given(problems())
def test_batches_agree_with_single_placements_and_leave_no_trace(problem):
    rng = np.random.default_rng(0)
    simulator = StepSimulator(problem)
    devices = rng.integers(0, problem.topology.num_devices, (5, problem.graph.num_operators))
    once = simulator.step_times(devices)
    again = simulator.step_times(devices[::-1])[::-1]
    alone = [StepSimulator(problem).step_time(device) for device in devices]
    recorded = [simulator.run(device).step_time for device in devices]
    assert once.tolist() == again.tolist() == alone == recorded


@examples(60)
@given(problems())
def test_order_rules_are_topological(problem):
    rng = np.random.default_rng(1)
    device = rng.integers(0, problem.topology.num_devices, problem.graph.num_operators)
    for rule in (OneFOneB(), TopologicalOrder()):
        order = rule(problem.graph, device)
        position = np.empty_like(order)
        position[order] = np.arange(len(order))
        assert sorted(order) == list(range(len(order)))
        edges = problem.graph.edges
        assert (position[edges[:, 0]] < position[edges[:, 1]]).all()


def test_simulators_can_be_copied_and_pickled():
    problem = problem_of([(0, [1])], [1, 2, 3])
    simulator = StepSimulator(problem)
    for twin in (copy.deepcopy(simulator), pickle.loads(pickle.dumps(simulator))):
        assert twin.step_time(place(0, 1, 0)) == simulator.step_time(place(0, 1, 0))
