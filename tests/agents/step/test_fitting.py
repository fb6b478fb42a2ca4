"""What groups hold for micro-batches under way, and placements made until one fits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from numpy.typing import NDArray

from agents.solver import UNLIMITED, Budget
from agents.step.fitting import Fitting
from agents.step.grouping import GroupedProblem
from agents.step.incumbent import StepIncumbent
from envs.graphs.op_graph import Phase
from envs.step.problem import StepProblem
from tests.agents.placement.random_problems import cluster, pipeline, problems
from tests.strength import examples

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


def slow_live(problem: StepProblem, group: IntArray) -> list[float]:
    """`GroupedProblem.live`, tensor by tensor on the operators themselves."""
    graph = problem.graph
    total = [0.0] * (int(group.max()) + 1)
    for tensor in range(graph.num_tensors):
        producer = int(graph.producer[tensor])
        later = any(graph.phase[op] != Phase.FORWARD for op in graph.consumers(tensor))
        if graph.phase[producer] == Phase.FORWARD and later:
            total[group[producer]] += float(graph.tensor_bytes[tensor])
    return [held / max(graph.num_micro_batches, 1) for held in total]


@examples(50)
@given(problem=problems(tight=False, unsupported=False))
def test_a_group_holds_what_later_phases_need(problem: StepProblem) -> None:
    grouped = GroupedProblem.of(problem, 4)
    np.testing.assert_allclose(grouped.live, slow_live(problem, grouped.fusion.group), atol=1e-9)
    two = grouped.holding(2)
    np.testing.assert_allclose(two.state, grouped.state + 2 * grouped.live)
    assert (two.state[:, None] <= problem.capacity)[two.allowed].all()


def line(capacity: float) -> tuple[StepIncumbent, GroupedProblem]:
    """Six layers of 4 bytes of state that send each other 1 byte; four micro-batches in 1F1B."""
    problem = pipeline([1.0] * 6, 4, cluster([0, 0], capacity))
    problem = replace(problem, orders=("one_f_one_b",))
    return StepIncumbent(problem), GroupedProblem.of(problem, 6)


class Recorder:
    """Puts the first groups that fit on d0, the others on d1, and remembers what it was given."""

    def __init__(self) -> None:
        self.state: list[float] = []
        self.room: list[FloatArray] = []

    def __call__(self, grouped: GroupedProblem, room: FloatArray) -> tuple[IntArray, None] | None:
        self.state.append(grouped.state[-1])
        self.room.append(room)
        first = np.cumsum(grouped.state) <= room[0]
        if grouped.state[~first].sum() > room[1]:
            return None
        device = np.where(first, 0, 1)
        return device, None


@pytest.mark.parametrize(
    ("capacity", "states"),
    # 18: room for four layers of a device, not for what they send, 1 byte a micro-batch
    [(100.0, [4.0]), (18.0, [4.0, 8.0, 6.0, 5.0])],
)
def test_activations_are_counted_until_a_placement_fits(
    capacity: float, states: list[float]
) -> None:
    incumbent, grouped = line(capacity)
    attempt, fitting = Recorder(), Fitting(incumbent, UNLIMITED)
    fitting.run(grouped, attempt)
    assert fitting.binds == (len(states) > 1)
    assert list(dict.fromkeys(attempt.state)) == states
    assert len(attempt.state) > 1 or not fitting.binds
    assert incumbent.plan.violations(incumbent.problem) == []


def test_what_overflows_least_is_repaired_by_moving_groups() -> None:
    incumbent, grouped = line(18.0)

    def stubborn(grouped: GroupedProblem, room: FloatArray) -> tuple[IntArray, None] | None:
        return np.array([0, 0, 0, 0, 0, 1]), None  # whatever the room

    Fitting(incumbent, UNLIMITED).run(grouped, stubborn)
    assert incumbent.trajectory[0][1] == incumbent.step_time  # nothing fitted before
    assert incumbent.plan.violations(incumbent.problem) == []


@pytest.mark.parametrize("limited", [True, False])
def test_the_search_ends_where_nothing_new_comes_or_the_time_is_up(limited: bool) -> None:
    incumbent, grouped = line(13.0)
    attempt = Recorder()
    fitting = Fitting(incumbent, Budget(evaluations=1 if limited else None))
    fitting.run(grouped, attempt)
    fitting.insist()
    assert incumbent.plan is None
    late = Fitting(incumbent, Budget(0.0))
    made = len(attempt.room)
    late.run(grouped, attempt)
    late.insist()
    assert len(attempt.room) == made
