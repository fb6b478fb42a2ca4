"""Compiled list schedules against a slow reference, the simulator, the paper's example, by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.placement.list_planners import earliest_finish, schedule_by
from agents.placement.list_scheduling.rank import favourite_children, upward_rank
from agents.placement.list_scheduling.schedule import (
    ListRule,
    Schedule,
    earliest_start,
    empty_schedule,
    first_gap,
    occupy,
    released,
)
from agents.step.grouping import GroupedProblem
from envs.graphs.builder import GraphBuilder
from envs.graphs.op_graph import NONE
from envs.step.problem import StepProblem
from envs.step.step import NO_COMMUNICATION, StepSimulator
from tests.agents.placement import list_reference
from tests.agents.placement.random_problems import cluster, dag, on, pipeline, problems
from tests.strength import examples, trials


def by_rank(grouped: GroupedProblem) -> np.ndarray:
    return np.argsort(-upward_rank(grouped.problem), kind="stable")


def make_heft(grouped: GroupedProblem) -> Callable[[], ListRule]:
    priority = by_rank(grouped)
    return lambda: earliest_finish(priority)


def make_earliest(grouped: GroupedProblem, favourite: list[int]) -> Callable[[], ListRule]:
    rank, devices = upward_rank(grouped.problem), grouped.problem.topology.num_devices
    return lambda: earliest_start(rank, np.array(favourite, dtype=np.int64), devices)


def agree(
    grouped: GroupedProblem, schedule: Schedule | None, slow: list_reference.Reference | None
) -> None:
    """The two are the same to the last bit."""
    assert (schedule is None) == (slow is None)
    if schedule is None or slow is None:
        return
    pieces = range(grouped.problem.graph.num_operators)
    assert schedule.group_device.tolist() == [slow.home[g] for g in range(grouped.num_groups)]
    assert schedule.start.tolist() == [slow.start[piece] for piece in pieces]
    assert schedule.finish.tolist() == [slow.finish[piece] for piece in pieces]
    sent = {
        (int(t), int(d)): float(schedule.arrival[t, d])
        for t, d in np.argwhere(np.isfinite(schedule.arrival))
    }
    assert sent == slow.arrival


@examples(100)
@given(problem=problems(), groups=st.integers(1, 12))
def test_heft_is_the_slow_one_to_the_last_bit(problem: StepProblem, groups: int) -> None:
    grouped = GroupedProblem.of(problem, groups)
    schedule = schedule_by(make_heft(grouped), grouped, problem.capacity)
    slow = list_reference.heft(grouped, problem.capacity.tolist(), by_rank(grouped).tolist())
    agree(grouped, schedule, slow)


@examples(150)
@given(problem=problems(max_operators=14), groups=st.integers(1, 14), data=st.data())
def test_etf_and_sct_are_the_slow_ones_to_the_last_bit(
    problem: StepProblem, groups: int, data: st.DataObject
) -> None:
    grouped = GroupedProblem.of(problem, groups)
    graph = grouped.problem.graph
    favourite = []
    for piece in range(graph.num_operators):
        children = graph.use_op[graph.use_ptr[piece] : graph.use_ptr[piece + 1]].tolist()
        favourite.append(data.draw(st.sampled_from([NONE, *children])))
    schedule = schedule_by(make_earliest(grouped, favourite), grouped, problem.capacity)
    rank = upward_rank(grouped.problem).tolist()
    slow = list_reference.earliest(grouped, problem.capacity.tolist(), rank, favourite)
    agree(grouped, schedule, slow)


def crowded(seed: int, bound: bool) -> StepProblem:
    """Many short operators, each bound to a device or not, and long transfers between them."""
    random = np.random.default_rng(seed)
    n, d = 24, 5
    builder = GraphBuilder("crowded")
    for op in range(n):
        builder.add_operator(f"op{op}")
    for op in range(n - 1):
        tensor = builder.add_tensor(op, 1.0)
        for consumer in random.integers(op + 1, n, 2).tolist():
            builder.add_use(tensor, consumer)
    graph = builder.build()
    seconds = random.integers(0, 9, (n, d)).astype(np.float64)
    if bound:
        home = random.integers(0, d, n)[:, None] == np.arange(d)
        seconds = np.where(home, seconds / 4.0, np.inf)
    moves = random.integers(1, 9, (graph.num_tensors, 3)) * np.array([0.0, 0.5, 1.0])
    return on(cluster([0, 0, 0, 1, 2], 1.0), graph, seconds, moves)


@pytest.mark.parametrize("seed", range(trials(12)))
@pytest.mark.parametrize("bound", [True, False])
def test_crowded_ports_are_shared_as_by_the_slow_ones(seed: int, bound: bool) -> None:
    problem = crowded(seed, bound)
    grouped = GroupedProblem.of(problem, problem.graph.num_operators)
    capacity = problem.capacity.tolist()
    heft = schedule_by(make_heft(grouped), grouped, problem.capacity)
    agree(grouped, heft, list_reference.heft(grouped, capacity, by_rank(grouped).tolist()))
    favourite = favourite_children(grouped.problem, 60.0)
    rank = upward_rank(grouped.problem).tolist()
    for children in ([NONE] * len(rank), favourite.tolist()):
        fast = schedule_by(make_earliest(grouped, children), grouped, problem.capacity)
        agree(grouped, fast, list_reference.earliest(grouped, capacity, rank, children))


@examples(100)
@given(
    tasks=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 4)), max_size=12),
    ready=st.integers(0, 14),
    seconds=st.integers(0, 5),
)
def test_gaps_are_found_among_busy_times_of_any_order(
    tasks: list[tuple[int, int]], ready: int, seconds: int
) -> None:
    problem = pipeline([1.0] * 2, 3, cluster([0]))
    schedule = empty_schedule(GroupedProblem.of(problem, 2), problem.capacity)
    calendar: list[tuple[float, float]] = []
    for wish, length in tasks:
        start = first_gap(schedule, 0, float(wish), float(length))
        assert start == list_reference.gap([calendar], float(wish), float(length))
        occupy(schedule, 0, start, start + length)
        calendar.append((start, start + length))
    slow = list_reference.gap([calendar], float(ready), float(seconds))
    assert first_gap(schedule, 0, float(ready), float(seconds)) == slow
    assert released(schedule, 0) == max((end for _, end in calendar), default=0.0)


@examples(100)
@given(problem=problems(tight=False, unsupported=False), etf=st.booleans())
def test_resources_do_one_thing_at_a_time_and_inputs_come_first(
    problem: StepProblem, etf: bool
) -> None:
    grouped = GroupedProblem.of(problem, 12)
    graph, link = grouped.problem.graph, problem.topology.link_class
    nobody = [NONE] * graph.num_operators
    make = make_earliest(grouped, nobody) if etf else make_heft(grouped)
    schedule = schedule_by(make, grouped, problem.capacity)
    used = int(schedule.used[0])
    begin, end, owner = (x[:used] for x in (schedule.begin, schedule.end, schedule.owner))
    order = np.lexsort((end, begin, owner))
    same = owner[order[1:]] == owner[order[:-1]]
    assert (end[order[:-1]] <= begin[order[1:]])[same].all()
    device = grouped.fusion.expand_pieces(schedule.group_device)
    sent = np.full(schedule.arrival.shape, np.inf)
    for producer, consumer, tensor in graph.edges.tolist():
        at, here, there = schedule.finish[producer], device[producer], device[consumer]
        if here != there:
            sent[tensor, there] = grouped.problem.transfer_seconds[tensor, link[here, there]]
            assert schedule.arrival[tensor, there] >= at + sent[tensor, there]
            at = schedule.arrival[tensor, there]
        assert schedule.start[consumer] >= at
    np.testing.assert_array_equal(np.isfinite(schedule.arrival), np.isfinite(sent))
    transfers = np.count_nonzero((sent > 0.0) & np.isfinite(sent))
    assert used == graph.num_operators + 2 * transfers


@examples(60)
@given(problem=problems(tight=False, unsupported=False), etf=st.booleans())
def test_a_schedule_without_transfers_is_what_the_simulator_plays(
    problem: StepProblem, etf: bool
) -> None:
    problem = replace(problem, transfer_seconds=0.0 * problem.transfer_seconds)
    grouped = GroupedProblem.of(problem, 12)
    nobody = [NONE] * grouped.problem.graph.num_operators
    make = make_earliest(grouped, nobody) if etf else make_heft(grouped)
    schedule = schedule_by(make, grouped, problem.capacity)
    simulator = StepSimulator(grouped.problem, communication=NO_COMMUNICATION)
    order = np.lexsort((schedule.finish, schedule.start))
    timeline = simulator.run(grouped.fusion.expand_pieces(schedule.group_device), order)
    # without transfers nothing starts later than it was scheduled
    assert (timeline.op_start <= schedule.start).all()
    if etf:  # ETF starts nothing later than it can
        np.testing.assert_array_equal(timeline.op_start, schedule.start)


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


def test_the_example_of_the_paper_has_its_ranks_and_its_makespan_of_80() -> None:
    problem = dag(SECONDS, TRANSFERS, [0.0] * 10)
    # transfers hold no port; the simulator knows no such devices, but the schedule does
    none = np.full_like(problem.topology.send_port, NONE)
    topology = replace(problem.topology, send_port=none, receive_port=none)
    problem = replace(problem, topology=topology)
    assert upward_rank(problem) == pytest.approx(RANKS)
    grouped = GroupedProblem.of(problem, 10)
    schedule = schedule_by(make_heft(grouped), grouped, problem.capacity)
    device = grouped.fusion.expand(schedule.group_device) + 1
    start = schedule.start[grouped.fusion.piece]
    # figure 3a: processor and start of each task
    assert device.tolist() == [3, 1, 3, 2, 3, 2, 3, 1, 2, 2]
    assert start.tolist() == [0, 27, 9, 18, 28, 26, 38, 57, 56, 73]
    assert schedule.finish.max() == 80.0


# n1 feeds n2, its favourite, and n3, which is worth more but dear to nobody
FORK, FEEDS = [[1] * 3, [2] * 3, [2] * 3, [2] * 3], {(1, 2): 1.0, (1, 3): 0.5, (3, 4): 0.1}


@pytest.mark.parametrize(
    ("favourite", "seconds", "transfers", "starts"),
    [
        # HEFT: d1 waits for n1 until 1 + 4 = 5 to run n3, and n2, the last, fits in before
        (None, [[1, 9], [6, 2], [99, 10]], {(1, 3): 4}, [0, 0, 5]),
        # HEFT: n2 and n3 belong on d1 and d2, and both inputs leave d0 through its one port
        (None, [[1, 50, 50], [50, 5, 50], [50, 50, 4]], {(1, 2): 3, (1, 3): 3}, [0, 4, 7]),
        # ETF: n1 and n2 can start at once, n2 leads to more; n3 then waits for n2, n4 for n1
        (
            [NONE] * 4,
            [[1] * 2, [2] * 2, [4] * 2, [1] * 2],
            {(2, 3): 0.5, (1, 4): 0.5},
            [0, 0, 2, 1],
        ),
        # ETF: d1 is idle but ten times slower, n2 ends first behind n1
        ([NONE] * 2, [[3, 30], [3, 30]], {}, [0, 3]),
        # ETF: n3 of the larger rank takes d0 behind n1; n2 moves away and waits for its transfer
        ([NONE] * 4, FORK, FEEDS, [0, 2, 1, 3]),
        # SCT: d0 is kept for n2, the favourite child; n3 is elsewhere at 1.5, urgent or not
        ([1, NONE, NONE, NONE], FORK, FEEDS, [0, 1, 1.5, 3.5]),
    ],
)
def test_schedules_worked_by_hand(
    favourite: list[int] | None,
    seconds: list[list[float]],
    transfers: dict[tuple[int, int], float],
    starts: list[float],
) -> None:
    problem = dag(seconds, transfers, [0.0] * len(seconds))
    grouped = GroupedProblem.of(problem, len(seconds))
    make = make_earliest(grouped, favourite) if favourite else make_heft(grouped)
    schedule = schedule_by(make, grouped, problem.capacity)
    assert schedule.start[grouped.fusion.piece].tolist() == starts


def test_a_tensor_is_sent_to_a_device_once() -> None:
    builder = GraphBuilder("shared")
    for number in range(3):
        builder.add_operator(f"n{number}")
    tensor = builder.add_tensor(0, 1.0)
    for reader in (1, 2):
        builder.add_use(tensor, reader)
    seconds = [[1, 50], [50, 2], [50, 2]]
    problem = on(cluster([0, 0]), builder.build(), seconds, [0, 3, 3])
    grouped = GroupedProblem.of(problem, 3)
    schedule = schedule_by(make_heft(grouped), grouped, problem.capacity)
    assert schedule.start.tolist() == [0.0, 4.0, 6.0]
