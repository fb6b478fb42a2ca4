"""Weights of transfers: never slower than fair sharing, promises kept, small cases tried out."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from agents.bandwidth.shared_placement import SharedPlacement
from agents.bandwidth.weights import USUAL, JointMilp, WeightDescent, weights_of
from agents.solver import Budget, Result
from agents.step.lower_bound import lower_bound
from agents.step.problems import JointPlanning
from envs.graphs.builder import GraphBuilder
from envs.step.fair import Fair, FairSimulator
from envs.step.plans import PairWeights, Plan
from envs.step.problem import StepProblem
from tests.agents.bandwidth.joint_steps import AMPLE_S, diamond_step, placer, unplaced_steps
from tests.agents.bandwidth.placed_steps import cluster, placed_steps, plan_of, problem_of
from tests.asking import jointly
from tests.refusal import refusal
from tests.strength import examples


def planner(**changed: Any) -> JointMilp:
    sharing = SharedPlacement(levels=(4, 8), kick_groups=4, gap=0.0, at_once=8)
    arguments = {"placement": placer(), "sharing": sharing, "patience": 1}
    return JointMilp(**{**arguments, **changed})


def check_promises(problem: StepProblem, result: Result[Plan]) -> None:
    plan = result.solution
    assert plan is not None
    assert isinstance(plan.allocation, PairWeights)
    assert plan.allocation.violations(problem.topology.num_devices) == []
    simulator = Fair(weights=plan.allocation).simulator(problem)
    assert plan.violations(problem, simulator) == []
    played = simulator.step_time(plan.placement.device, plan.order)
    assert result.value == played >= result.bound == lower_bound(problem).seconds
    verdict = JointPlanning(problem).judge(plan)
    assert (verdict.objective, verdict.violations) == (played, ())
    steps = [seconds for _, seconds in result.history]
    assert steps == sorted(steps, reverse=True)
    assert steps[-1] == played


@examples(8)
@given(problem=unplaced_steps())
@pytest.mark.slow
def test_plans_are_feasible_and_never_slower_than_under_fair_sharing(problem: StepProblem) -> None:
    result = jointly(planner(), problem, AMPLE_S, 6)
    check_promises(problem, result)
    fair = jointly(planner(weights=None), problem, AMPLE_S, 6)
    check_promises(problem, fair)
    assert result.value <= fair.value
    assert result.figures == fair.figures == {"fair_sharing_s": fair.value}


@examples(8)
@given(problem=unplaced_steps(operators=(3, 6), memory=3.0))
@pytest.mark.slow
def test_tight_memory_is_kept_or_the_reason_given(problem: StepProblem) -> None:
    result = jointly(planner(), problem, AMPLE_S, 6)
    if result.solution is not None:
        check_promises(problem, result)
    else:
        assert result.status in ("infeasible", "limit")
        assert result.reason


def test_it_goes_on_from_plans_and_their_weights() -> None:
    problem = diamond_step(15.0)
    first = jointly(planner(), problem, AMPLE_S, 6)
    again = planner().solve(JointPlanning(problem), Budget(AMPLE_S, 1), [first.solution])
    assert again.value <= first.value
    check_promises(problem, again)
    fair = Fair().simulator(problem)
    assert again.figures["fair_sharing_s"] <= fair.step_time(
        first.solution.placement.device, first.solution.order
    )
    kept = planner(weights=None).solve(JointPlanning(problem), Budget(AMPLE_S, 1), [first.solution])
    assert len(np.unique(weights_of(kept.solution, problem))) <= 2  # 1 where nothing is sent


def test_what_fits_no_server_is_infeasible() -> None:
    result = jointly(planner(), diamond_step(3.0), AMPLE_S, 6)
    assert (result.solution, result.status, result.bound) == (None, "infeasible", float("inf"))
    assert "does not fit" in result.reason


def test_two_runs_agree() -> None:
    problem = diamond_step(15.0)
    first, second = (jointly(planner(), problem, AMPLE_S, 6) for _ in range(2))
    assert first.value == second.value
    assert first.evaluations == second.evaluations


@examples(20)
@given(step=placed_steps())
def test_weights_make_no_plan_slower(step: tuple[StepProblem, Plan]) -> None:
    problem, plan = step
    result = WeightDescent(patience=1).improve(
        problem, plan, Budget(AMPLE_S, 99), lower_bound(problem).seconds
    )
    fair = FairSimulator(problem, multipath=True).step_time(plan.placement.device, plan.order)
    if result.solution is None:  # its memory
        assert result.reason
        return
    check_promises(problem, result)
    assert result.value <= fair
    sent = np.zeros_like(weights_of(result.solution, problem))
    edges, device = problem.graph.edges, plan.placement.device
    sent[device[edges[:, 0]], device[edges[:, 1]]] = 1
    assert (weights_of(result.solution, problem)[sent == 0] == 1).all()


def hurried() -> tuple[StepProblem, Plan]:
    """One server sends to two others over one link; one of these has much to do."""
    builder = GraphBuilder("hurried")
    for op in range(3):
        builder.add_operator(f"op{op}")
    for op, size in ((1, 2.0), (2, 2.0)):
        builder.add_use(builder.add_tensor(0, size), op)
    problem = problem_of(builder, [0.5, 8.0, 0.5], cluster(3, 1, 1))
    return problem, plan_of(problem, {"op0": 0, "op1": 1, "op2": 2})


def test_who_has_more_to_do_gets_more_of_the_link() -> None:
    problem, plan = hurried()
    found = WeightDescent().improve(problem, plan, Budget(AMPLE_S))
    assert found.solution is not None
    weight = weights_of(found.solution, problem)
    assert weight[0, 1] > USUAL >= weight[0, 2] or weight[0, 1] >= USUAL > weight[0, 2]
    simulator = FairSimulator(problem, multipath=True)
    fair = simulator.step_time(plan.placement.device, plan.order)
    first = 0.5 + 2.0 + 8.0  # one link of 1 byte/s, all of it for the longer one
    assert first < found.value < fair == 0.5 + 4.0 + 8.0
    tried = []
    for a, b in product([1, 4, 16, 64, 256, 1024, 4096], repeat=2):
        simulator.weigh(np.array([[1, a, b], [1, 1, 1], [1, 1, 1]]))
        tried.append(simulator.step_time(plan.placement.device, plan.order))
    assert found.value <= min(tried) * (1 + 1e-3)


def test_a_wrong_placement_is_told() -> None:
    problem, _ = hurried()
    wrong = plan_of(problem, {"op0": 0, "op1": 1, "op2": 2})
    wrong.placement.device[0] = 9
    found = WeightDescent().improve(problem, wrong, Budget(AMPLE_S))
    assert found.status == "infeasible"
    assert "is on device 9" in found.reason


@pytest.mark.parametrize(
    ("field", "value"),
    [("placement_share", 0.0), ("sharing_share", 1.0), ("turn_share", 0.0), ("patience", 0)],
)
def test_bad_arguments_are_named(field: str, value: object) -> None:
    with refusal() as error:
        planner(**{field: value})
    assert error.value.field == field
