"""m-ETF on schedules worked by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from agents.placement.list_planners import ListRule, MEtf, schedule_by
from agents.placement.list_scheduling.rank import upward_rank
from agents.placement.list_scheduling.schedule import Schedule, earliest_start
from agents.step.grouping import GroupedProblem
from envs.graphs.op_graph import NONE
from envs.step.problem import StepProblem
from tests.agents.placement.random_problems import cluster, pipeline
from tests.agents.placement.test_heft import dag
from tests.asking import planned


def rule_of(grouped: GroupedProblem) -> Callable[[], ListRule]:
    rank = upward_rank(grouped.problem)
    nobody = np.full(len(rank), NONE, dtype=np.int64)
    return lambda: earliest_start(rank, nobody, grouped.problem.topology.num_devices)


def schedule_of(problem: StepProblem) -> tuple[list[int], Schedule]:
    """Device of every operator, and the schedule."""
    grouped = GroupedProblem.of(problem, problem.graph.num_operators)
    schedule = schedule_by(rule_of(grouped), grouped, problem.capacity)
    assert schedule is not None
    return grouped.fusion.expand(schedule.group_device).tolist(), schedule


def test_the_task_that_can_start_first_is_next_and_among_equals_the_more_important_one() -> None:
    # n1 and n2 can start at once; n2 leads to more. n3 then waits for n2, n4 for n1
    seconds = [[1.0, 1.0], [2.0, 2.0], [4.0, 4.0], [1.0, 1.0]]
    device, schedule = schedule_of(dag(seconds, {(2, 3): 0.5, (1, 4): 0.5}, [0.0] * 4))
    assert device == [1, 0, 0, 1]
    assert schedule.start.tolist() == [0.0, 0.0, 2.0, 1.0]


def test_a_child_moves_away_from_a_busy_device_only_if_it_starts_earlier_there() -> None:
    seconds = [[1.0, 1.0], [3.0, 3.0], [3.0, 3.0]]
    near, _ = schedule_of(dag(seconds, {(1, 2): 0.0, (1, 3): 2.5}, [0.0] * 3))
    far, _ = schedule_of(dag(seconds, {(1, 2): 0.0, (1, 3): 3.5}, [0.0] * 3))
    assert sorted(near) == [0, 0, 1]
    assert far == [0, 0, 0]


def test_on_unequal_devices_a_task_is_where_it_finishes_first() -> None:
    # d1 is idle but ten times slower: it would start n2 at once and end it at 30
    device, schedule = schedule_of(dag([[3.0, 30.0], [3.0, 30.0]], {}, [0.0] * 2))
    assert device == [0, 0]
    assert schedule.finish.max() == 6.0


def test_memory_closes_a_device() -> None:
    device, _ = schedule_of(dag([[3.0, 30.0], [3.0, 30.0]], {}, [60.0] * 2))
    assert device == [0, 1]


def test_a_pipeline_runs_on_both_devices() -> None:
    problem = pipeline([1.0, 1.0], 8, cluster([0, 0]))
    result = planned(MEtf(groups=(2,)), problem, 10.0)
    assert result.solution is not None
    assert result.solution.violations(problem) == []
    alone = problem.op_seconds[:, 0].sum()
    assert result.value < 0.7 * alone


def test_groups_that_only_just_fit_are_packed() -> None:
    # n1 and n2 would be apart, and then n3 had no room
    problem = dag([[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]], {(1, 3): 9.0}, [40.0, 50.0, 100.0])
    grouped = GroupedProblem.of(problem, 3)
    assert schedule_by(rule_of(grouped), grouped, problem.capacity) is None
    result = planned(MEtf(groups=(3,)), problem, 1.0)
    assert result.solution is not None
    assert result.solution.violations(problem) == []
    assert result.solution.placement.device.tolist() in ([0, 0, 1], [1, 1, 0])
