"""The compiled list schedules against the slow reference, and what any schedule must keep."""

from __future__ import annotations

from collections.abc import Callable

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
    list_problem,
    occupy,
    receive,
    released,
)
from agents.step.grouping import GroupedProblem
from envs.graphs.builder import GraphBuilder
from envs.graphs.op_graph import NONE
from envs.step.problem import StepProblem
from envs.step.step import NO_COMMUNICATION, StepSimulator
from tests.agents.placement import list_reference
from tests.agents.placement.random_problems import cluster, pipeline, problems
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
    topology = cluster([0, 0, 0, 1, 2], 1.0)
    return StepProblem(graph, topology, seconds, moves, topology.memory_bytes)


@pytest.mark.parametrize("seed", range(trials(12)))
@pytest.mark.parametrize("bound", [True, False])
def test_crowded_ports_are_shared_as_by_the_slow_ones(seed: int, bound: bool) -> None:
    problem = crowded(seed, bound)
    grouped = GroupedProblem.of(problem, problem.graph.num_operators)
    capacity = problem.capacity.tolist()
    heft = schedule_by(make_heft(grouped), grouped, problem.capacity)
    agree(grouped, heft, list_reference.heft(grouped, capacity, by_rank(grouped).tolist()))
    favourite = favourite_children(grouped.problem, 60.0)
    assert favourite is not None
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


TIMES = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 4)), max_size=6)


@examples(200)
@given(sends=TIMES, receives=TIMES, finish=st.integers(0, 9), seconds=st.integers(1, 4))
def test_a_transfer_takes_the_first_gap_its_two_ports_have_in_common(
    sends: list[tuple[int, int]], receives: list[tuple[int, int]], finish: int, seconds: int
) -> None:
    builder = GraphBuilder("one transfer")
    for number in range(2):
        builder.add_operator(f"op{number}")
    builder.add_use(builder.add_tensor(0, 1.0), 1)
    topology = cluster([0, 0], 1.0)
    moves = np.array([[0.0, float(seconds), 99.0]])
    problem = StepProblem(builder.build(), topology, np.eye(2) + 1.0, moves, np.ones(2))
    grouped = GroupedProblem.of(problem, 2)
    schedule = empty_schedule(grouped, problem.capacity)
    schedule.group_device[:] = [0, 1]
    schedule.finish[0] = finish
    calendars: list[list[tuple[float, float]]] = [[], []]
    ports = (2 + int(topology.send_port[0, 1]), 2 + int(topology.receive_port[0, 1]))
    size = len(schedule.begin) + len(sends) + len(receives)
    room = {name: np.empty(size, dtype=getattr(schedule, name).dtype)
            for name in ("before", "after", "begin", "end", "owner")}  # fmt: skip
    schedule = schedule._replace(**room)
    for calendar, port, wishes in zip(calendars, ports, (sends, receives), strict=True):
        for wish, length in wishes:
            start = first_gap(schedule, port, float(wish), float(length))
            occupy(schedule, port, start, start + length)
            calendar.append((start, start + length))
    begin = list_reference.gap(calendars, float(finish), float(seconds))
    arrays = list_problem(grouped)
    assert receive(arrays, schedule, 1, 1, False) == begin + seconds
    assert int(schedule.used[0]) == len(sends) + len(receives)  # nothing has changed
    assert receive(arrays, schedule, 1, 1, True) == begin + seconds
    assert int(schedule.used[0]) == len(sends) + len(receives) + 2


@examples(100)
@given(problem=problems(tight=False, unsupported=False), rule=st.sampled_from(["heft", "etf"]))
def test_resources_do_one_thing_at_a_time_and_inputs_come_first(
    problem: StepProblem, rule: str
) -> None:
    grouped = GroupedProblem.of(problem, 12)
    graph, topology = grouped.problem.graph, problem.topology
    nobody = [NONE] * graph.num_operators
    make = make_heft(grouped) if rule == "heft" else make_earliest(grouped, nobody)
    schedule = schedule_by(make, grouped, problem.capacity)
    assert schedule is not None
    for resource in range(len(schedule.first)):
        interval, end = int(schedule.first[resource]), 0.0
        while interval != NONE:
            assert schedule.begin[interval] >= end
            end = schedule.end[interval]
            interval = int(schedule.after[interval])
    device = grouped.fusion.expand_pieces(schedule.group_device)
    moves = 0
    for producer, consumer, tensor in graph.edges.tolist():
        at = schedule.finish[producer]
        if device[producer] != device[consumer]:
            link = topology.link_class[device[producer], device[consumer]]
            at += grouped.problem.transfer_seconds[tensor, link]
            arrival = schedule.arrival[tensor, device[consumer]]
            assert arrival >= at
            at = arrival
        assert schedule.start[consumer] >= at
    for tensor, target in np.argwhere(np.isfinite(schedule.arrival)):
        link = topology.link_class[device[graph.producer[tensor]], target]
        moves += grouped.problem.transfer_seconds[tensor, link] > 0.0
    assert int(schedule.used[0]) == graph.num_operators + 2 * moves


@examples(60)
@given(problem=problems(tight=False, unsupported=False), rule=st.sampled_from(["heft", "etf"]))
def test_a_schedule_without_transfers_is_what_the_simulator_plays(
    problem: StepProblem, rule: str
) -> None:
    problem = StepProblem(
        problem.graph, problem.topology, problem.op_seconds, 0.0 * problem.transfer_seconds,
        problem.capacity,
    )  # fmt: skip
    grouped = GroupedProblem.of(problem, 12)
    nobody = [NONE] * grouped.problem.graph.num_operators
    make = make_heft(grouped) if rule == "heft" else make_earliest(grouped, nobody)
    schedule = schedule_by(make, grouped, problem.capacity)
    assert schedule is not None
    simulator = StepSimulator(grouped.problem, communication=NO_COMMUNICATION)
    order = np.lexsort((schedule.finish, schedule.start))
    timeline = simulator.run(grouped.fusion.expand_pieces(schedule.group_device), order)
    # without transfers nothing starts later than it was scheduled
    assert (timeline.op_start <= schedule.start).all()
    if rule == "etf":  # ETF starts nothing later than it can
        np.testing.assert_array_equal(timeline.op_start, schedule.start)
