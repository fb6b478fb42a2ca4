from __future__ import annotations

import pytest
from hypothesis import given, settings

from agents.bandwidth.convex import ConvexRates
from agents.bandwidth.joint import JointMilp
from agents.bandwidth.placement_alone import PlacementAlone
from agents.base import PlannerResult
from agents.placement.fusion_milp import FusionMilp
from agents.placement.integer_program.order import OrderFormulation
from agents.placement.lower_bound import lower_bound
from envs.errors import InputError
from envs.graphs.builder import GraphBuilder
from envs.network.allocated import allocated_problem, uniform_allocation
from envs.simulation.problem import StepProblem
from envs.simulation.step import StepSimulator
from tests.agents.bandwidth.joint_steps import best_of_all, level_allocations, unplaced_steps
from tests.agents.bandwidth.placed_steps import cluster, problem_of

AMPLE_S = 120.0  # seconds; the deterministic limits end the searches


def placer() -> FusionMilp:
    formulation = OrderFormulation(gap=0.0, at_once=8)
    return FusionMilp(coarse=(4,), levels=(4, 8), formulation=formulation, warm_start=None, seed=0)


def planner(**changed: object) -> JointMilp:
    arguments: dict[str, object] = {
        "start": placer(), "start_share": 0.3, "coarse": (4,), "levels": (4, 8),
        "rates": (0.25, 0.5, 1.0), "gap": 0.0, "at_once": 8,
        "allocator": ConvexRates(gap=1e-6, rounds=60), "promising": 1.2, "allocation_s": 10.0,
        "seed": 0,
    }  # fmt: skip
    return JointMilp(**{**arguments, **changed})  # type: ignore[arg-type]


def check(problem: StepProblem, result: PlannerResult) -> None:
    """What a plan with an allocation promises."""
    assert result.plan is not None
    assert result.allocation is not None
    assert result.allocation.violations(problem.topology.network) == []
    allocated = allocated_problem(problem, result.allocation)
    assert result.plan.violations(allocated) == []
    played = StepSimulator(allocated).step_time(result.plan.placement.device, result.plan.order)
    assert result.step_time == played >= result.lower_bound
    assert result.lower_bound == lower_bound(problem).seconds
    assert (result.status == "optimal") == (played <= result.lower_bound * (1 + 1e-9))
    assert result.trajectory[-1][1] == played
    steps = [seconds for _, seconds in result.trajectory]
    assert steps == sorted(steps, reverse=True)


@settings(max_examples=8, deadline=None)
@given(problem=unplaced_steps())
def test_plans_are_feasible_and_never_slower_than_uniform_shares(problem: StepProblem) -> None:
    result = planner().plan_jointly(problem, AMPLE_S, 30)
    check(problem, result)
    alone = PlacementAlone(placement=placer(), allocation=uniform_allocation)
    uniform = alone.plan_jointly(problem, AMPLE_S, 9)  # the share of the start
    assert result.step_time <= uniform.step_time
    assert uniform.allocation is not None


@settings(max_examples=8, deadline=None)
@given(problem=unplaced_steps(operators=(3, 6), memory=3.0))
def test_tight_memory_is_kept_or_the_reason_given(problem: StepProblem) -> None:
    result = planner().plan_jointly(problem, AMPLE_S, 30)
    if result.plan is not None:
        check(problem, result)
    else:
        assert result.status in ("infeasible", "limit")
        assert result.reason


def fork(memory: float) -> StepProblem:
    """Four operators, the first and the last co-operate with two in the middle."""
    builder = GraphBuilder("diamond")
    for op in range(4):
        builder.add_operator(f"op{op}")
        builder.add_parameter(f"w{op}", op, parameter=4.0, gradient=0.0, optimizer=0.0)
    for op, size in ((1, 2.0), (2, 1.0)):
        builder.add_use(builder.add_tensor(0, size), op)
        builder.add_use(builder.add_tensor(op, size), 3)
    return problem_of(builder, [0.5, 2.0, 3.0, 0.5], cluster(3, 1, 2, memory=memory))


@pytest.mark.parametrize("memory", [100.0, 15.0])
def test_it_is_at_least_as_fast_as_every_plan_at_every_level(memory: float) -> None:
    problem = fork(memory)
    best = best_of_all(problem, level_allocations(problem.topology.network, (0.25, 0.5, 1.0)))
    result = planner().plan_jointly(problem, AMPLE_S, 80)
    check(problem, result)
    assert result.step_time <= best * (1 + 1e-6)
    assert "bound of the model of 4 groups" in result.reason


def test_it_gains_where_uniform_shares_waste_links() -> None:
    problem = fork(15.0)
    uniform = best_of_all(problem, [uniform_allocation(problem.topology.network)])
    result = planner().plan_jointly(problem, AMPLE_S, 80)
    assert result.step_time < 0.95 * uniform


def test_what_fits_no_server_is_infeasible() -> None:
    problem = fork(3.0)
    result = planner().plan_jointly(problem, AMPLE_S, 10)
    assert (result.plan, result.status, result.lower_bound) == (None, "infeasible", float("inf"))
    assert "does not fit" in result.reason


def test_two_runs_agree() -> None:
    problem = fork(15.0)
    first, second = (planner().plan_jointly(problem, AMPLE_S, 30) for _ in range(2))
    assert first.step_time == second.step_time
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
    with pytest.raises(InputError) as error:
        planner(**{field: value})
    assert error.value.field == field
