from __future__ import annotations

import pytest
from hypothesis import given

from agents.bandwidth.convex import ConvexRates
from agents.bandwidth.joint import Alternation, PlacementAlone
from envs.step.allocated import allocated_problem, uniform_allocation
from envs.step.problem import StepProblem
from envs.step.step import StepSimulator
from tests.agents.bandwidth.joint_steps import (
    AMPLE_S,
    best_of_all,
    check_promises,
    diamond_step,
    placer,
    unplaced_steps,
)
from tests.asking import allocated, jointly, planned
from tests.refusal import refusal
from tests.strength import examples


def planner(**changed: object) -> Alternation:
    arguments: dict[str, object] = {
        "placement": placer(), "bandwidth": ConvexRates(gap=1e-6, rounds=60), "turn_share": 0.25,
        "spared": 0.2, "patience": 2,
    }  # fmt: skip
    return Alternation(**{**arguments, **changed})  # type: ignore[arg-type]


@examples(8)
@given(problem=unplaced_steps())
def test_plans_are_feasible_and_never_slower_than_uniform_shares(problem: StepProblem) -> None:
    result = jointly(planner(), problem, AMPLE_S, 24)
    check_promises(problem, result)
    alone = PlacementAlone(placement=placer(), allocation=uniform_allocation)
    uniform = jointly(alone, problem, AMPLE_S, 6)  # the share of one turn
    assert result.value <= uniform.value


def test_the_rates_are_those_of_the_plan() -> None:
    """No other allocation to its plan is faster than the one it returns."""
    problem = diamond_step(15.0)
    result = jointly(planner(), problem, AMPLE_S, 80)
    assert result.solution is not None
    alone = allocated(ConvexRates(gap=1e-6, rounds=60), problem, result.solution, AMPLE_S)
    assert result.value == pytest.approx(alone.value, rel=1e-6)
    assert result.value < best_of_all(problem, [uniform_allocation(problem.topology.network)])


def test_every_turn_is_offered_with_uniform_shares_first() -> None:
    problem = diamond_step(15.0)
    result = jointly(planner(), problem, AMPLE_S, 80)
    shares = allocated_problem(problem, uniform_allocation(problem.topology.network))
    placed = planned(placer(), shares, AMPLE_S, 20)
    assert placed.solution is not None
    first = StepSimulator(shares).step_time(placed.solution.placement.device, placed.solution.order)
    assert result.history[0][1] == first


def test_what_fits_no_server_is_infeasible() -> None:
    result = jointly(planner(), diamond_step(3.0), AMPLE_S, 10)
    assert (result.solution, result.status, result.bound) == (None, "infeasible", float("inf"))


@pytest.mark.parametrize(
    ("field", "value"),
    [("turn_share", 0.0), ("turn_share", 1.5), ("spared", 0.0), ("spared", 1.0), ("patience", 0)],
)
def test_bad_arguments_are_named(field: str, value: object) -> None:
    with refusal() as error:
        planner(**{field: value})
    assert error.value.field == field
