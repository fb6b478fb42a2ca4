from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import highspy
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.linear_program import LinearProgram
from agents.placement.integer_program.model import AssignmentModel, PlacementModel, live_bytes
from agents.step.grouping import GroupedProblem, topological
from envs.graphs.contraction import contract
from envs.step.problem import StepProblem
from envs.step.step import StepSimulator
from tests.agents.placement.random_problems import cluster, pipeline, problems
from tests.envs.step.test_rematerialise import GB, chain
from tests.strength import examples

pytestmark = pytest.mark.slow


@examples(60)
@given(
    rows=st.lists(
        st.lists(st.tuples(st.integers(0, 4), st.integers(-3, 3)), max_size=6), max_size=5
    )
)
def test_the_matrix_is_the_sum_of_all_terms(rows: list[list[tuple[int, int]]]) -> None:
    program = LinearProgram()
    program.add_columns(5, upper=1.0)
    dense = np.zeros((len(rows), 5))
    for number, terms in enumerate(rows):
        columns = np.array([column for column, _ in terms], dtype=np.int64)
        values = np.array([float(value) for _, value in terms])
        program.add_row([(columns, values)], upper=1.0)
        np.add.at(dense[number], columns, values)
    solver = program.solver(time_limit=1.0)
    found = np.zeros_like(dense)
    for number in range(len(rows)):
        _, index, value = solver.getRowEntries(number)
        found[number, np.array(index, dtype=np.int64)] = value
    np.testing.assert_array_equal(found, dense)


def test_rows_added_together_are_the_rows_added_one_by_one() -> None:
    together, apart = LinearProgram(), LinearProgram()
    for program in (together, apart):
        program.add_columns((2, 3), cost=np.arange(6.0).reshape(2, 3), lower=1.0, upper=4.0)
    columns, values = np.arange(6).reshape(2, 3), np.array([[1.0, 2.0, 0.0], [3.0, 0.0, 5.0]])
    together.add_rows(2, [(columns, values), (np.array([0, 0]), 7.0)], lower=np.array([8.0, 9.0]))
    for row in range(2):
        apart.add_row([(columns[row], values[row]), ([0], 7.0)], lower=8.0 + row)
    found = []
    for program in (together, apart):
        solver = program.solver(time_limit=1.0)
        solver.run()
        assert solver.getInfo().objective_function_value == pytest.approx(15.0)
        found.append([[list(part) for part in solver.getRowEntries(row)[1:]] for row in range(2)])
    assert found[0] == found[1] == [[[0, 1], [8.0, 2.0]], [[0, 3, 5], [7.0, 3.0, 5.0]]]


def somewhere(data: st.DataObject, count: int, problem: StepProblem) -> np.ndarray:
    """(count,) devices."""
    devices = st.integers(0, problem.topology.num_devices - 1)
    return np.array(data.draw(st.lists(devices, min_size=count, max_size=count)), dtype=np.int64)


def least(model: AssignmentModel, device: Iterable[int] = ()) -> float:
    """Seconds of the optimum with the groups on `device`; inf: there is none."""
    solver = model.program.solver(time_limit=10.0)
    for group, chosen in enumerate(device):
        solver.changeColBounds(int(model.place[group, chosen]), 1.0, 1.0)
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return np.inf
    return float(solver.getInfo().objective_function_value * model.scale)


@examples(60)
@given(data=st.data(), problem=problems(tight=False, unsupported=False))
def test_no_placement_is_faster_than_its_loads_and_ports(
    data: st.DataObject, problem: StepProblem
) -> None:
    grouped = GroupedProblem.of(problem, 4)
    device = somewhere(data, grouped.num_groups, problem)
    step_time = StepSimulator(grouped.problem).step_time(grouped.fusion.expand_pieces(device))
    for model in (AssignmentModel(grouped), PlacementModel(grouped)):
        seconds = least(model, device)
        assert seconds <= step_time + 1e-6 or np.isinf(seconds)  # then: a mirror image


def test_an_overflow_rules_out_its_set_of_groups_and_any_with_more_state() -> None:
    problem = pipeline([1.0] * 3, 1, cluster([0, 1]), [2, 1])
    model = AssignmentModel(GroupedProblem.of(problem, 3))
    model.add_overflow(np.array([0, 0, 1]), np.array([10.0, 0.0]))
    for device, feasible in (([0, 0, 1], False), ([0, 0, 0], False), ([0, 1, 1], True)):
        assert np.isfinite(least(model, device)) == feasible


@examples(60)
@given(data=st.data(), problem=problems(tight=False, unsupported=False))
def test_live_bytes_live_together_whatever_the_placement_and_the_order(
    data: st.DataObject, problem: StepProblem
) -> None:
    problem = replace(problem, op_seconds=problem.op_seconds + 1.0)
    grouped, devices = GroupedProblem.unfused(problem), problem.topology.num_devices
    device = somewhere(data, grouped.num_groups, problem)
    rank = np.array(data.draw(st.permutations(range(problem.graph.num_operators))))
    order = topological(problem.graph.edges[:, :2], rank)
    peak = StepSimulator(problem).run(grouped.fusion.expand(device), order).peak_memory
    least = np.bincount(device, grouped.state + live_bytes(grouped), minlength=devices)
    assert (peak >= least - 1e-9).all()


def test_a_pipeline_keeps_what_its_forward_pass_hands_on() -> None:
    problem = pipeline([1.0] * 3, 2, cluster([0, 0]))
    np.testing.assert_array_equal(live_bytes(GroupedProblem.of(problem, 3)), [0.0, 0.0, 1.0])


@pytest.mark.parametrize(
    ("gigabytes", "moves", "seconds"),
    [
        (12, (), np.inf), (12, ("recompute",), 11.0), (22, ("recompute",), 10.0),
        (31, ("recompute",), 9.0), (12, ("recompute", "offload"), 9.0),
    ],
)  # fmt: skip
def test_groups_make_the_moves_that_memory_asks_for(
    gigabytes: float, moves: tuple[str, ...], seconds: float
) -> None:
    """Three layers of 10 GB on one device: 1 s forward each, 2 s back; the host is not busy."""
    problem = replace(chain(3), capacity=np.array([gigabytes * GB]), memory_moves=moves)
    layer = np.array([int(name[1]) for name in problem.graph.op_names])
    model = AssignmentModel(GroupedProblem.fused(problem, contract(problem.graph, layer)))
    assert least(model) == pytest.approx(seconds)
