"""HEFT on the example of its paper and on schedules worked by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from agents.placement.list_planners import earliest_finish, schedule_by
from agents.placement.list_scheduling.rank import upward_rank
from agents.placement.list_scheduling.schedule import Schedule
from agents.step.grouping import GroupedProblem
from envs.graphs.builder import GraphBuilder
from envs.graphs.op_graph import NONE
from envs.step.problem import StepProblem
from tests.agents.placement.random_problems import cluster

# Topcuoglu, Hariri, Wu 2002, figure 1: seconds of ten tasks on three processors, and of transfers
SECONDS = [
    [14, 16, 9], [13, 19, 18], [11, 13, 19], [13, 8, 17], [12, 13, 10],
    [13, 16, 9], [7, 15, 11], [5, 11, 14], [18, 12, 20], [21, 7, 16],
]  # fmt: skip
TRANSFERS = {
    (1, 2): 18, (1, 3): 12, (1, 4): 9, (1, 5): 11, (1, 6): 14, (2, 8): 19, (2, 9): 16, (3, 7): 23,
    (4, 8): 27, (4, 9): 23, (5, 9): 13, (6, 8): 15, (7, 10): 17, (8, 10): 11, (9, 10): 13,
}  # fmt: skip
RANKS = [108.0, 77.0, 80.0, 80.0, 69.0, 190 / 3, 128 / 3, 107 / 3, 133 / 3, 44 / 3]  # table 1


def dag(
    seconds: list[list[float]], transfers: dict[tuple[int, int], float], state: list[float]
) -> StepProblem:
    """Tasks 1.. with one tensor per arc, on devices of one server with 100 bytes each."""
    builder = GraphBuilder("dag")
    for number in range(len(seconds)):
        op = builder.add_operator(f"n{number + 1}")
        builder.add_parameter(f"w{number}", op, parameter=state[number], gradient=0, optimizer=0)
    for u, v in transfers:
        builder.add_use(builder.add_tensor(u - 1, 0.0), v - 1)
    graph = builder.build()
    assert graph.op_names == tuple(f"n{number + 1}" for number in range(len(seconds)))
    moves = np.zeros((graph.num_tensors, 3))
    for u, v, tensor in graph.edges.tolist():
        moves[tensor, 1] = transfers[u + 1, v + 1]
    topology = cluster([0] * len(seconds[0]))
    return StepProblem(graph, topology, np.array(seconds, float), moves, topology.memory_bytes)


def without_contention(problem: StepProblem) -> StepProblem:
    """Transfers hold no port; the simulator knows no such devices, but the schedule does."""
    none = np.full_like(problem.topology.send_port, NONE)
    topology = replace(problem.topology, send_port=none, receive_port=none)
    return replace(problem, topology=topology)


def schedule_of(problem: StepProblem) -> tuple[GroupedProblem, Schedule]:
    grouped = GroupedProblem.of(problem, problem.graph.num_operators)
    priority = np.argsort(-upward_rank(grouped.problem), kind="stable")
    schedule = schedule_by(lambda: earliest_finish(priority), grouped, problem.capacity)
    assert schedule is not None
    return grouped, schedule


def test_the_example_of_the_paper_has_its_ranks_and_its_makespan_of_80() -> None:
    problem = without_contention(dag(SECONDS, TRANSFERS, [0.0] * 10))
    assert upward_rank(problem) == pytest.approx(RANKS)
    grouped, schedule = schedule_of(problem)
    device = grouped.fusion.expand(schedule.group_device) + 1
    start = schedule.start[grouped.fusion.piece]
    # figure 3a: processor and start of each task
    assert device.tolist() == [3, 1, 3, 2, 3, 2, 3, 1, 2, 2]
    assert start.tolist() == [0, 27, 9, 18, 28, 26, 38, 57, 56, 73]
    assert schedule.finish.max() == 80.0


def test_a_short_task_goes_into_the_gap_before_a_task_that_waits() -> None:
    # n1 on d0 feeds n3, which d1 alone runs fast: d1 is idle until 1 + 4 = 5. n2 comes last
    seconds = [[1.0, 9.0], [6.0, 2.0], [99.0, 10.0]]
    _, schedule = schedule_of(dag(seconds, {(1, 3): 4.0}, [0.0] * 3))
    assert schedule.start.tolist() == [0.0, 0.0, 5.0]
    assert schedule.finish.tolist() == [1.0, 2.0, 15.0]


def test_transfers_from_one_device_wait_for_each_other() -> None:
    # n2 and n3 belong on d1 and d2; both inputs leave d0 through its one send port
    seconds = [[1.0, 50.0, 50.0], [50.0, 5.0, 50.0], [50.0, 50.0, 4.0]]
    problem = dag(seconds, {(1, 2): 3.0, (1, 3): 3.0}, [0.0] * 3)
    _, schedule = schedule_of(problem)
    assert schedule.start.tolist() == [0.0, 4.0, 7.0]
    _, schedule = schedule_of(without_contention(problem))
    assert schedule.start.tolist() == [0.0, 4.0, 4.0]


def test_a_tensor_is_sent_to_a_device_once() -> None:
    builder = GraphBuilder("shared")
    ops = [builder.add_operator(f"n{number}") for number in range(3)]
    tensor = builder.add_tensor(ops[0], 1.0)
    for op in ops[1:]:
        builder.add_use(tensor, op)
    topology = cluster([0, 0], 1.0)
    seconds = np.array([[1.0, 50.0], [50.0, 2.0], [50.0, 2.0]])
    moves = np.array([[0.0, 3.0, 3.0]])
    problem = StepProblem(builder.build(), topology, seconds, moves, topology.memory_bytes)
    _, schedule = schedule_of(problem)
    assert schedule.start.tolist() == [0.0, 4.0, 6.0]


def test_a_device_without_room_is_not_taken() -> None:
    seconds = [[1.0, 5.0], [1.0, 5.0]]
    problem = dag(seconds, {(1, 2): 1.0}, [60.0, 60.0])
    grouped, schedule = schedule_of(problem)
    assert grouped.fusion.expand(schedule.group_device).tolist() == [0, 1]
