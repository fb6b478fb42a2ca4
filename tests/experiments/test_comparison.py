"""The table says what the simulator says, and the summary of seeds is the textbook's."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from agents.placement.baselines import SingleDevice
from agents.solver import Result
from agents.step.problems import evaluate_plan
from envs.step.plans import Plan
from envs.step.problem import StepProblem
from envs.step.step import NO_COMMUNICATION, SINGLE_PORT, StepSimulator
from experiments.run.statistics import half_width
from experiments.step.comparison import DOES_NOT_FIT, Comparison, Row, row_of
from experiments.step.tasks import StepTask
from tests.asking import planned


def found(plan: Plan | None, reason: str = "") -> Result[Plan]:
    status = "limit" if plan is None else "feasible"
    return Result(plan, status, 1e-9, 2.0, reason=reason)


def comparison(problem: StepProblem, plan: Plan) -> Comparison:
    rows = (
        row_of("single", planned(SingleDevice(), problem, 1.0), StepTask(problem)),
        row_of("split", found(plan), StepTask(problem)),
        row_of("lost", found(None, "no plan was tried"), StepTask(problem)),
    )
    return Comparison(rows, "single", lower_bound=0.05)


def test_a_planners_own_estimate_is_never_shown(problem: StepProblem, plan: Plan) -> None:
    table = comparison(problem, plan)
    simulated = StepSimulator(problem).step_time(plan.placement.device, plan.order)
    assert table.rows[1].step_time == simulated
    assert f"{simulated * 1e3:.1f} ms" in table.markdown()


def test_the_best_row_is_the_fastest_feasible_one(problem: StepProblem, plan: Plan) -> None:
    table = comparison(problem, plan)
    assert table.best is not None
    assert table.best.step_time == min(row.step_time for row in table.rows)


def test_speed_up_and_distance_from_the_bound(problem: StepProblem, plan: Plan) -> None:
    table = comparison(problem, plan)
    single, split = (row.step_time for row in table.rows[:2])
    cells = table.cells()[1]
    assert cells[2] == f"{single / split:.2f}x"
    assert cells[3] == f"+{split / 0.05 - 1:.1%}"
    numbers = table.document()[1]
    assert numbers["times_lower_bound"] == pytest.approx(split / 0.05)


def test_a_plan_that_overflows_does_not_fit(problem: StepProblem, plan: Plan) -> None:
    # state is 800 MB a device, activations come on top
    tight = replace(problem, capacity=np.full(4, 8.2e8))
    row = row_of("split", found(plan), StepTask(tight))
    assert not row.feasible
    assert math.isinf(row.step_time)
    assert "too many" in row.reason
    assert row.evaluation is not None
    table = Comparison((row,), "split", 0.05)
    assert table.best is None
    assert table.cells()[0][1] == DOES_NOT_FIT
    assert table.document()[0]["times_lower_bound"] is None


def test_where_no_single_device_holds_the_step_the_column_says_so(
    problem: StepProblem, plan: Plan
) -> None:
    row = row_of("split", found(plan), StepTask(problem))
    single = Row("single", None, 0.1, "does not fit: 'a' has 5 bytes too few")
    table = Comparison((single, row), "single", 0.05)
    assert table.cells()[0][1] == DOES_NOT_FIT
    assert table.cells()[1][2] == DOES_NOT_FIT


def test_evaluation_obeys_the_communication_model(problem: StepProblem, plan: Plan) -> None:
    ports = evaluate_plan(problem, plan, SINGLE_PORT)
    free = evaluate_plan(problem, plan, NO_COMMUNICATION)
    assert ports.feasible
    assert free.step_time < ports.step_time


def test_an_order_that_breaks_a_dependency_is_not_feasible(
    problem: StepProblem, plan: Plan
) -> None:
    backwards = Plan(plan.placement, plan.order[::-1].copy())
    assert not evaluate_plan(problem, backwards, SINGLE_PORT).feasible


def test_the_interval_is_students() -> None:
    times = [0.2, 0.25, 0.22, 0.21, 0.26]
    low, high = stats.t.interval(0.95, 4, np.mean(times), stats.sem(times))
    assert half_width(times) == pytest.approx((high - low) / 2)
    assert math.isnan(half_width([1.0]))
