from __future__ import annotations

import pytest
from hypothesis import given

from agents.bandwidth.convex import ConvexRates
from agents.bandwidth.joint import JointMilp, PlacementAlone
from envs.step.allocated import uniform_allocation
from envs.step.problem import StepProblem
from tests.agents.bandwidth.joint_steps import (
    AMPLE_S,
    best_of_all,
    check_promises,
    diamond_step,
    level_allocations,
    placer,
    unplaced_steps,
)
from tests.asking import jointly
from tests.refusal import refusal
from tests.strength import examples

pytestmark = pytest.mark.slow


def planner(**changed: object) -> JointMilp:
    arguments: dict[str, object] = {
        "start": placer(), "start_share": 0.3, "coarse": (4,), "levels": (4, 8),
        "rates": (0.25, 0.5, 1.0), "gap": 0.0, "at_once": 8,
        "allocator": ConvexRates(gap=1e-6, rounds=60), "promising": 1.2, "allocation_s": 10.0,
        "seed": 0,
    }  # fmt: skip
    return JointMilp(**{**arguments, **changed})  # type: ignore[arg-type]


@examples(8)
@given(problem=unplaced_steps())
def test_plans_are_feasible_and_never_slower_than_uniform_shares(problem: StepProblem) -> None:
    result = jointly(planner(), problem, AMPLE_S, 30)
    check_promises(problem, result)
    alone = PlacementAlone(placement=placer(), allocation=uniform_allocation)
    uniform = jointly(alone, problem, AMPLE_S, 9)  # the share of the start
    assert result.value <= uniform.value
    assert uniform.solution.allocation is not None


@examples(8)
@given(problem=unplaced_steps(operators=(3, 6), memory=3.0))
def test_tight_memory_is_kept_or_the_reason_given(problem: StepProblem) -> None:
    result = jointly(planner(), problem, AMPLE_S, 30)
    if result.solution is not None:
        check_promises(problem, result)
    else:
        assert result.status in ("infeasible", "limit")
        assert result.reason


@pytest.mark.parametrize("memory", [100.0, 15.0])
def test_it_is_at_least_as_fast_as_every_plan_at_every_level(memory: float) -> None:
    problem = diamond_step(memory)
    best = best_of_all(problem, level_allocations(problem.topology.network, (0.25, 0.5, 1.0)))
    result = jointly(planner(), problem, AMPLE_S, 80)
    check_promises(problem, result)
    assert result.value <= best * (1 + 1e-6)
    assert "bound of the model of 4 groups" in result.reason


def test_it_gains_where_uniform_shares_waste_links() -> None:
    problem = diamond_step(15.0)
    uniform = best_of_all(problem, [uniform_allocation(problem.topology.network)])
    result = jointly(planner(), problem, AMPLE_S, 80)
    assert result.value < 0.95 * uniform


def test_what_fits_no_server_is_infeasible() -> None:
    problem = diamond_step(3.0)
    result = jointly(planner(), problem, AMPLE_S, 10)
    assert (result.solution, result.status, result.bound) == (None, "infeasible", float("inf"))
    assert "does not fit" in result.reason


def test_two_runs_agree() -> None:
    problem = diamond_step(15.0)
    first, second = (jointly(planner(), problem, AMPLE_S, 30) for _ in range(2))
    assert first.value == second.value
    assert first.evaluations == second.evaluations


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("coarse", ()), ("start_share", 0.0), ("start_share", 1.0), ("rates", ()),
        ("rates", (0.0, 1.0)), ("rates", (0.5, 0.25)), ("rates", (0.5, 1.5)), ("gap", 1.0),
        ("at_once", 0), ("promising", 0.9), ("allocation_s", 0.0),
    ],
)  # fmt: skip
def test_bad_arguments_are_named(field: str, value: object) -> None:
    with refusal() as error:
        planner(**{field: value})
    assert error.value.field == field
